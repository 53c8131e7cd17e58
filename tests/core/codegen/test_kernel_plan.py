"""Plans of kernels: golden text, starts, sizes for the host, and the rules. No compiler and no device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._sympy.functions import Max, ToFloat, TruncToInt

from litz.codegen.kernel_plan import KernelPlan, plan_kernel
from litz.codegen.plan_rules import RULES, verify_plan
from litz.ir import Buffer, Layout, Loop, Program, Range, Store
from litz.ir.build import call, load
from litz.ir.index import FloorDiv, Symbol, loop_var, to_expr
from litz.ir.operation import StoreMode
from litz.schedule.schedule import Kernel
from litz_testing.parse.cursor import ParseError
from litz_testing.parse.kernel_plans import parse_kernel_plan
from support.triton_cases import CASES

CPU = torch.device("cpu")
i0 = loop_var(0)

SOFTMAX = """
kernel kernel on cuda:0
  symbol s77 (integer, nonnegative) about 16
  input a: bf16 [4, 50] cuda:0
  buffer o: bf16 [4, 50] cuda:0
  loop loop [i0<4 | r0<50] cuda:0
    v0: bf16 = load a[50*i0 + r0]
    v1: f32 = cast v0
    v2: f32 = reduce max v1
    v3: f32 = sub v1, v2
    v4: f32 = exp v3
    v5: f32 = reduce sum v4
    v6: f32 = div v4, v5
    v7: bf16 = cast v6
    store o[50*i0 + r0] = v7
    walk 0: reduces v2
    walk 1: reduces v5
    walk 2: stores o
    one walk: v5 with v2
"""
SYMBOLIC_LENGTH = """
kernel kernel on cuda:0
  size s77 (integer, nonnegative) about 64
  input a: f32 [8, s77, 40] cuda:0
  buffer loop_part0: f32 [8, 40] cuda:0
  buffer o: f32 [40] cuda:0
  pieces i0<8
  loop loop_parts [i0<8, i1<40 | r0<s77] cuda:0
    v0: f32 = load a[40*i0*s77 + i1 + 40*r0]
    v1: f32 = reduce sum v0
    store loop_part0[40*i0 + i1] = v1
    walk 0: reduces v1
    then: stores loop_part0
  loop loop [i1<40 | r0<8] cuda:0
    v0: f32 = load loop_part0[i1 + 40*r0]
    v1: f32 = reduce sum v0
    store o[i1] = v1
    walk 0: reduces v1
    then: stores o
"""
LATE_STORE = """
kernel kernel on cuda:0
  size s77 (integer, nonnegative) about 16
  input a: f32 [3, s77] cuda:0
  buffer o: f32 [3, s77] cuda:0, in the memory of a
  buffer total: f32 [3] cuda:0
  loop loop [i0<3 | r0<s77] cuda:0
    v0: f32 = load a[i0*s77 + r0]
    v1: f32 = add v0, 1.0:f32
    v2: f32 = reduce max v0
    v3: f32 = sub v0, v2
    v4: f32 = reduce sum v3
    store o[i0*s77 + r0] = v1
    store total[i0] = v4
    walk 0: reduces v2
    walk 1: reduces v4, stores o
    then: stores total
"""


@pytest.mark.parametrize(
    "name, text", [("softmax", SOFTMAX), ("finish-symbolic-length", SYMBOLIC_LENGTH), ("late-store", LATE_STORE)]
)
def test_golden(name: str, text: str) -> None:
    assert str(CASES[name]().plan) == text.strip()


@pytest.mark.parametrize("name", CASES)
def test_plans_are_read_back(name: str) -> None:
    plan = CASES[name]().plan
    assert parse_kernel_plan(str(plan)) == plan, str(plan)


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ("on cuda:0\n", "at cuda:0\n", 2, "'on'"),
        ("size s77", "sizes s77", 3, "symbol, size, buffer"),
        ("in the memory of a", "over a", 5, "'in the memory of', 'from element' or 'unaligned'"),
        ("i0<3 | r0<s77", "i0<3 | r0<s78", 7, "a loop's variable or a size"),
    ],
)
def test_errors_name_the_place(old: str, new: str, line: int, expected: str) -> None:
    assert str(parse_kernel_plan(LATE_STORE)) == LATE_STORE.strip()
    with pytest.raises(ParseError, match=f"line {line}, column") as caught:
        parse_kernel_plan(LATE_STORE.replace(old, new, 1))
    assert caught.value.expected.startswith(expected), str(caught.value)


def plan_of(*stores: Store, size: Any = 10, length: Any = 100, hints: dict[Symbol, int] | None = None) -> KernelPlan:
    layout = Layout.contiguous((to_expr(length),))
    buffers = {name: Buffer(name, torch.float32, CPU, layout) for name in ("x", "y", "z")}
    buffers["x"] = replace(buffers["x"], kind="input")
    loop = Loop("op0", CPU, (Range(i0, to_expr(size)),), (), stores)
    return plan_kernel(Kernel("kernel0", loop), Program("g", ("x",), buffers, (loop,), (), hints=hints or {}))


def copy(to: str, offset: int = 0, start: int = 0, mode: StoreMode = "set") -> Store:
    return Store(to, (i0 + start,), load("x", (i0 + offset,), torch.float32), mode=mode)


def test_a_stride_that_the_host_computes_is_read_back() -> None:
    """Of a dimension of one element, so no loop names it."""
    n = Symbol("s0", integer=True, positive=True)
    half = TruncToInt(0.5 * ToFloat(n))
    layout = Layout((to_expr(1), half), (Max(1, half), to_expr(1)))
    buffers = {name: Buffer(name, torch.float32, CPU, layout) for name in ("x", "y")}
    zero = to_expr(0)
    loop = Loop("op0", CPU, (Range(i0, half),), (), (Store("y", (zero, i0), load("x", (zero, i0), torch.float32)),))
    plan = plan_kernel(Kernel("kernel0", loop), Program("g", ("x",), buffers, (loop,), (), hints={n: 9}))
    assert set(plan.host) > set(plan.sizes)
    assert parse_kernel_plan(str(plan)) == plan, str(plan)


def test_the_least_element_that_is_touched_is_known() -> None:
    plan = plan_of(copy("y", 20), copy("z", 30, 5))
    assert plan.starts == {"x": 20, "z": 5} and not list(verify_plan(plan))
    assert "  input x: f32 [100] cpu, from element 20" in str(plan).splitlines()


def test_arguments_are_in_order_of_first_use() -> None:
    assert list(plan_of(copy("z"), copy("y", mode="add")).buffers) == ["x", "z", "y"]


def test_what_a_kernel_has_no_text_for_the_host_computes() -> None:
    s0, s1 = (Symbol(f"s{n}", integer=True) for n in (0, 1))
    size = FloorDiv(s0, s1)
    plan = plan_of(copy("y"), size=size, length=size, hints={s0: 24, s1: 3})
    (told,) = plan.sizes
    assert plan.values(plan.sizes) == (size,) and plan.host == {told: size} and not list(verify_plan(plan))
    assert f"  size {told} (integer, nonnegative) = {size}\n" in str(plan) and plan.hint(told) == 8192
    assert parse_kernel_plan(str(plan)) == plan


def test_what_the_host_computes_of_a_layout_is_read_back() -> None:
    """The launcher asks how long a buffer is, also by sizes that the loops do not name."""
    s0, s1 = (Symbol(f"s{n}", integer=True) for n in (0, 1))
    length = FloorDiv(s0, s1)
    plan = plan_of(copy("y"), size=4, length=length, hints={s0: 24, s1: 3})
    (told,) = plan.host
    assert told not in plan.sizes and plan.host == {told: length}
    assert f"  symbol {told} (integer, nonnegative) = {length}\n" in str(plan)
    assert parse_kernel_plan(str(plan)) == plan


def test_inputs_that_are_written_may_lie_anywhere() -> None:
    assert plan_of(Store("x", (i0,), load("y", (i0,), torch.float32))).unaligned == {"x"}


def broken(change: Callable[[KernelPlan], KernelPlan], case: str = "softmax") -> list[str]:
    return list(verify_plan(change(CASES[case]().plan)))


def changed_loop(plan: KernelPlan, **changes: Any) -> KernelPlan:
    return replace(plan, loops=(replace(plan.loops[0], **changes), *plan.loops[1:]))


def two_indices(plan: KernelPlan) -> KernelPlan:
    (store,) = plan.loops[0].stores
    return changed_loop(plan, stores=(replace(store, index=(i0, i0)),))


def negative_size(plan: KernelPlan) -> KernelPlan:
    (store,) = plan.loops[0].stores
    size = FloorDiv(Symbol("s0", integer=True), Symbol("s1", integer=True))
    value = call("add", store.value, load("a", (size,), store.value.dtype))
    return replace(
        changed_loop(plan, stores=(replace(store, value=value),)), sizes=tuple(sorted(size.free_symbols, key=str))
    )


BROKEN: dict[str, tuple[Callable[[KernelPlan], KernelPlan], str, str]] = {
    "_flat": (two_indices, "softmax", "store o[i0, i0] has 2 indices"),
    "_collapsed": (
        lambda plan: changed_loop(plan, ranges=(*plan.loops[0].ranges, Range(loop_var(7), to_expr(1)))),
        "softmax",
        "loop walks the range i7<1",
    ),
    "_arguments": (
        lambda plan: replace(plan, buffers={"a": plan.buffers["a"]}, sizes=()),
        "symbolic",
        "b is no argument; o is no argument; the size s12 has no argument; the size s77 has no argument",
    ),
    "_texts": (negative_size, "softmax", "loop: no text for (s0//s1)"),
    "_inside": (
        lambda plan: replace(plan, starts={"a": 7}),
        "bias",
        "load a[24*i0 + i1] lies before the start of its buffer, 7",
    ),
    "_in_place": (
        lambda plan: replace(plan, inplace={"b": "o"}),
        "bias",
        "b is stored in the memory of o: one is not stored, or the other not loaded",
    ),
    "_combining": (
        lambda plan: replace(plan, pieces=()),
        "finish-symbolic-length",
        "loop has other output ranges than loop_parts",
    ),
}


@pytest.mark.parametrize("rule", [rule.__name__ for rule in RULES if rule.__name__ != "_walks"])
def test_a_plan_that_breaks_a_rule_is_refused(rule: str) -> None:
    change, case, complaint = BROKEN[rule]
    assert "; ".join(broken(change, case)) == complaint


def test_a_store_that_no_walk_makes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = KernelPlan.stages
    monkeypatch.setattr(KernelPlan, "stages", lambda plan, loop, **how: replace(stages(plan, loop, **how), final=()))
    (complaint, *_) = list(verify_plan(plan_of(copy("y"))))
    assert complaint == "op0: a reduction or a store is on no walk, or on several"

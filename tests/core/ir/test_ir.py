"""Nodes, loops, programs: interning, printing, legality, and the interpreter against torch."""

from __future__ import annotations

import copy
import gc
import itertools
import math
import pickle
from dataclasses import replace

import pytest
import sympy
import torch

from core.ir.harness import CPU, I0, I1, R0, n, program
from litz.ir import Buffer, Check, Layout, Loop, Program, Range, Store, TensorRef, build
from litz.ir import philox as philox_module
from litz.ir.index import loop_var, placeholder
from litz.ir.interpret import interpret
from litz.ir.node import walk
from litz.ir.operation import require
from litz.ir.ops import OPS
from litz.ir.printer import loop_lines
from litz.ir.transform import collapse, flatten
from litz.ir.verify import IllegalProgram, verify
from litz.pipeline import schedule_only
from litz.schedule import unscheduled


def softmax(rows: int = 4, columns: int = 8) -> Program:
    x = build.load("x", (I0, R0), torch.float32)
    e = build.call("exp", build.call("sub", x, build.reduce("max", x)))
    value = build.call("div", e, build.reduce("sum", e))
    size = ((rows, columns), torch.float32)
    return program((Store("out", (I0, R0), value),), {I0: rows}, {R0: columns}, {"x": size}, {"out": size})


def test_equal_nodes_are_one_node() -> None:
    a = build.load("x", (I0,), torch.float32)
    b = build.load("x", (I0,), torch.float32)
    assert a is b
    assert build.call("sin", a) is build.call("sin", b)
    assert copy.deepcopy(a) is a
    assert pickle.loads(pickle.dumps(build.call("sin", a))) is build.call("sin", a)


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (1.0, float("nan")), (float("inf"), float("-inf"))])
def test_constants_that_compare_oddly_are_kept_apart(one: float, other: float) -> None:
    assert build.const(one, torch.float32) is not build.const(other, torch.float32)
    assert build.const(other, torch.float32) is build.const(other, torch.float32)
    assert build.const(1, torch.int64) is not build.const(True, torch.bool)


@pytest.mark.parametrize(
    ("value", "dtype"), [(-2, torch.uint8), (300, torch.int8), (200, torch.int8), (-1, torch.int64)]
)
def test_integers_wrap(value: int, dtype: torch.dtype) -> None:
    assert build.const(value, dtype).attrs[0] == torch.tensor(value).to(dtype).item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_remainders_mean_what_c_computes(dtype: torch.dtype) -> None:
    """For any quotient; torch's kernels in vectors have NaN where the quotient leaves the type."""
    exponents = torch.arange(*(-149, 128) if dtype == torch.float32 else (-1074, 1023), 7, dtype=torch.float64)
    x, y = (3 * torch.exp2(exponents - 1).flip(0)).to(dtype), torch.exp2(exponents).to(dtype) * -1.1
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.5], dtype=dtype)
    x, y = torch.cat([x, special]).repeat(len(y) + 6), torch.cat([y, special]).repeat_interleave(len(x) + 6)
    got, moved = OPS["fmod"].torch(x, y), OPS["remainder"].torch(x, y)
    odd = x.isinf() | x.isnan() | y.isnan() | (y == 0)
    assert got[odd].isnan().all() and moved[odd].isnan().all()
    rests = [math.fmod(a, b) for a, b in zip(x[~odd].tolist(), y[~odd].tolist(), strict=True)]
    want = torch.tensor(rests, dtype=torch.float64).to(dtype)
    assert torch.equal(got[~odd], want) and torch.equal(got[~odd].signbit(), want.signbit())
    apart = (want != 0) & ((want < 0) != (y[~odd] < 0))
    assert torch.equal(moved[~odd], torch.where(apart, want + y[~odd], want))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64])
def test_integers_divided_by_zero_mean_what_c_computes(dtype: torch.dtype) -> None:
    """No error, as in the kernels: masked values may divide by anything, and a GPU raises none. Where eager raises, a
    check stands before the division."""
    a, b = torch.tensor([7, 5, 0, 9], dtype=dtype), torch.tensor([0, 2, 0, 3], dtype=dtype)
    found = {name: OPS[name].torch(a, b) for name in ("truncdiv", "floordiv", "fmod", "remainder")}
    assert found["truncdiv"].tolist() == found["floordiv"].tolist() == [0, 2, 0, 3]
    assert found["fmod"].tolist() == found["remainder"].tolist() == [7, 1, 0, 0]
    assert all(value.dtype == dtype for value in found.values())


def test_nodes_that_nothing_holds_are_forgotten() -> None:
    from litz.ir import node as node_module

    gc.collect()
    before = len(node_module._table)
    chain = build.load("forgotten", (I0,), torch.float32)
    for _ in range(50):
        chain = build.call("sin", chain)
    assert len(node_module._table) == before + 51
    del chain
    gc.collect()
    assert len(node_module._table) == before


def test_walk_of_a_deep_chain_does_not_recurse() -> None:
    chain = build.load("x", (I0,), torch.float32)
    for _ in range(20_000):
        chain = build.call("neg", chain)
    assert len(list(walk(chain))) == 20_001


def test_type_rules() -> None:
    x, y = build.load("x", (I0,), torch.float32), build.load("y", (I0,), torch.int64)
    with pytest.raises(TypeError, match=r"add: arguments differ in dtype: torch.float32, torch.int64"):
        build.call("add", x, y)
    with pytest.raises(ValueError, match=r"no op 'tahn'; the nearest: .*tanh.* \(docs/plugins/ir-ops.md"):
        build.call("tahn", x)
    with pytest.raises(ValueError, match=r"no reduction 'summ'; the nearest: .*sum"):
        build.reduce("summ", x)
    with pytest.raises(ValueError, match=r"no scan 'gelu' \(docs"):
        build.scan("gelu", x)
    with pytest.raises(TypeError, match="sin: needs floating point"):
        build.call("sin", y)
    assert build.call("lt", x, x).dtype == torch.bool


def test_a_cast_there_and_back_is_nothing_only_where_it_loses_nothing() -> None:
    half = build.load("h", (I0,), torch.bfloat16)
    single = build.load("f", (I0,), torch.float32)
    assert build.cast(build.cast(half, torch.float32), torch.bfloat16) is half
    assert build.cast(build.cast(single, torch.bfloat16), torch.float32) is not single


def test_softmax_prints_verifies_and_runs() -> None:
    prog = softmax()
    verify(prog)
    assert str(prog) == (
        "program test\n"
        "  input x: f32 [4, 8] cpu\n"
        "  loop loop0 [i0<4 | r0<8] cpu\n"
        "    v0: f32 = load x[i0, r0]\n"
        "    v1: f32 = reduce max v0\n"
        "    v2: f32 = sub v0, v1\n"
        "    v3: f32 = exp v2\n"
        "    v4: f32 = reduce sum v3\n"
        "    v5: f32 = div v3, v4\n"
        "    store out[i0, r0] = v5  # f32 [4, 8]\n"
        "  return out[4, 8]"
    )
    x = torch.randn(4, 8)
    torch.testing.assert_close(interpret(prog, [x])[0], x.softmax(-1))


def test_levels() -> None:
    loop = softmax().loops[0]
    inner = {repr(node): level for node, level in loop.levels.items()}
    assert [level for text, level in inner.items() if text.startswith("reduce")] == [False, False]
    assert loop.at_reduction_level(loop.stores[0])


@pytest.mark.parametrize(
    ("break_it", "complaint"),
    [
        (lambda s: replace(s, buffer="nowhere"), "buffer nowhere does not exist"),
        (lambda s: replace(s, index=(I0,)), "stores out at 1 indices, it has 2"),
        (lambda s: replace(s, value=build.cast(s.value, torch.float64)), "stores torch.float64 into out"),
        (lambda s: replace(s, value=build.load("x", (I0, I1), torch.float32)), "uses i1, which has no range"),
        (lambda s: replace(s, value=build.load("x", (I0,), torch.float32)), "1 indices for 2 dimensions"),
        (lambda s: replace(s, value=build.load("x", (I0, R0), torch.float64)), "loads torch.float32 as torch.float64"),
        (lambda s: replace(s, mask=s.value), "the mask of the store into out is torch.float32"),
        (lambda s: replace(s, index=(placeholder(0), R0)), "more placeholders than indirect values"),
    ],
)
def test_the_verifier_names_what_is_wrong(break_it: object, complaint: str) -> None:
    prog = softmax()
    loop = prog.loops[0]
    broken = replace(prog, operations=(replace(loop, stores=(break_it(loop.stores[0]),)),))
    with pytest.raises(IllegalProgram, match="program test is not legal") as caught:
        verify(broken)
    assert complaint in str(caught.value)


def test_the_verifier_wants_a_write_before_a_read() -> None:
    prog = softmax()
    second = replace(prog.loops[0], name="loop1")
    early = replace(second, stores=(replace(second.stores[0], value=build.load("late", (I0, R0), torch.float32)),))
    buffers = {**prog.buffers, "late": replace(prog.buffers["out"], name="late")}
    with pytest.raises(IllegalProgram, match="loop1: reads late before anything writes it"):
        verify(replace(prog, buffers=buffers, operations=(prog.loops[0], early)))


def test_masked_loads_read_nothing_where_the_mask_is_false() -> None:
    inside = build.call("lt", build.index(I0), build.const(3, torch.int64))
    value = build.load("x", (I0,), torch.float32, mask=inside)
    prog = program(
        (Store("out", (I0,), value),), {I0: 5}, {}, {"x": ((3,), torch.float32)}, {"out": ((5,), torch.float32)}
    )
    verify(prog)
    assert interpret(prog, [torch.tensor([1.0, 2.0, 3.0])])[0].tolist() == [1, 2, 3, 0, 0]


def test_guard_masks_every_load_and_bound_below_it() -> None:
    position = build.bounded(build.load("at", (I0,), torch.int64), 4)
    value = build.load("x", (placeholder(0),), torch.float32, (position,))
    mask = build.call("lt", build.index(I0), build.const(2, torch.int64))
    guarded = build.guard(value, mask)
    inputs = {"x": ((4,), torch.float32), "at": ((2,), torch.int64)}
    prog = program((Store("out", (I0,), guarded),), {I0: 3}, {}, inputs, {"out": ((3,), torch.float32)})
    verify(prog)
    assert interpret(prog, [torch.arange(4.0), torch.tensor([3, 1])])[0].tolist() == [3, 1, 0]
    with pytest.raises(IndexError, match="out of range for size 4"):
        interpret(prog, [torch.arange(4.0), torch.tensor([3, 4])])


@pytest.mark.parametrize("mode", ["add", "max", "min", "prod"])
def test_stores_that_meet_combine(mode: str) -> None:
    position = build.load("at", (I0,), torch.int64)
    value = build.load("x", (I0,), torch.float32)
    store = Store("acc", (placeholder(0),), value, (position,), mode)
    inputs = {"x": ((4,), torch.float32), "at": ((4,), torch.int64), "acc": ((2,), torch.float32)}
    prog = program((store,), {I0: 4}, {}, inputs, {})
    acc = torch.tensor([1.0, 2.0])
    x, at = torch.tensor([3.0, 4.0, 0.5, 6.0]), torch.tensor([0, 0, 1, 1])
    expected = acc.clone()
    kinds = {"add": "sum", "max": "amax", "min": "amin", "prod": "prod"}
    expected.scatter_reduce_(0, at, x, kinds[mode])
    interpret(prog, [x, at, acc])
    assert acc.tolist() == expected.tolist()


def test_half_types_compute_in_float_and_round_at_the_store() -> None:
    x = build.load("x", (I0,), torch.float16)
    tiny = build.const(2.0**-12, torch.float16)
    value = build.call("sub", build.call("add", x, tiny), x)
    size = ((1,), torch.float16)
    prog = program((Store("out", (I0,), value),), {I0: 1}, {}, {"x": size}, {"out": size})
    assert interpret(prog, [torch.ones(1, dtype=torch.float16)])[0].item() == 2.0**-12
    rounded = build.call("sub", build.cast(build.cast(build.call("add", x, tiny), torch.float32), torch.float16), x)
    # The cast to float32 is of a half value: it rounds to what a half can hold, as eager does.
    assert rounded.op == "sub"


def test_symbolic_sizes_are_read_off_the_inputs() -> None:
    s0 = sympy.Symbol("s0", integer=True, positive=True)
    layout = Layout((s0,), (n(1),))
    buffers = {"x": Buffer("x", torch.float32, CPU, layout, "input"), "out": Buffer("out", torch.float32, CPU, layout)}
    value = build.call("mul", build.load("x", (I0,), torch.float32), build.cast(build.index(s0), torch.float32))
    loop = Loop("loop0", CPU, (Range(I0, s0),), (), (Store("out", (I0,), value),))
    prog = Program("test", ("x",), buffers, (loop,), (TensorRef("out", layout), s0 * 2))
    verify(prog)
    out, double = interpret(prog, [torch.ones(7)])
    assert (out.tolist(), double) == ([7.0] * 7, 14)


def test_a_check_prints_verifies_and_runs() -> None:
    n, u = sympy.Symbol("s0", integer=True), sympy.Symbol("u0", integer=True)
    x = Buffer("x", torch.float32, torch.device("cpu"), Layout.contiguous((n,)), "input")
    check = Check("op0", x.device, require, (sympy.Le(n, 4),), effect=True, message="too long", shown=(n,))
    program = Program("checked", ("x",), {"x": x}, (check,), ())
    assert '  check op0 s0 <= 4 "too long" shows s0 effect\n' in str(program)
    verify(program)
    assert interpret(program, [torch.ones(4)]) == []
    with pytest.raises(RuntimeError, match=r"^too long: s0 = 5$"):
        interpret(program, [torch.ones(5)])
    with pytest.raises(IllegalProgram, match="op0: checks u0 before anything finds it out"):
        verify(replace(program, operations=(replace(check, args=(sympy.Le(u, 4),)),)))


def test_flatten_and_collapse_join_what_is_contiguous() -> None:
    sizes = ((4, 8, 16), torch.float32)
    i2 = loop_var(2)
    value = build.call("add", build.load("x", (I0, I1, i2), torch.float32), build.load("b", (i2,), torch.float32))
    inputs = {"x": sizes, "b": ((16,), torch.float32)}
    prog = program((Store("out", (I0, I1, i2), value),), {I0: 4, I1: 8, i2: 16}, {}, inputs, {"out": sizes})
    assert loop_lines(collapse(flatten(prog.loops[0], prog.buffers))) == [
        "loop loop0 [i1<32, i2<16] cpu",
        "  v0: f32 = load x[16*i1 + i2]",
        "  v1: f32 = load b[i2]",
        "  v2: f32 = add v0, v1",
        "  store out[16*i1 + i2] = v2",
    ]


def test_ranges_that_are_no_neighbours_join() -> None:
    """x.t().reshape(12, 32) of an x of 16 x 24: by strides, the range within half a row stands between the others."""
    i2 = loop_var(2)
    value = build.load("x", (i2, 2 * I0 + I1), torch.float32)
    sizes = {"x": ((16, 24), torch.float32)}
    stores = (Store("out", (I0, 16 * I1 + i2), value),)
    prog = program(stores, {I0: 12, I1: 2, i2: 16}, {}, sizes, {"out": ((12, 32), torch.float32)})
    for order in itertools.permutations(prog.loops[0].ranges):
        loop = replace(prog.loops[0], ranges=order)
        assert sorted(int(r.size) for r in collapse(flatten(loop, prog.buffers)).ranges) == [16, 24]


def test_random_numbers_are_a_function_of_seed_and_position() -> None:
    seed, offset = torch.tensor(1234567890123), torch.arange(30_000)
    uniform, normal = philox_module.uniform(seed, offset), philox_module.normal(seed, offset)
    assert torch.equal(uniform, philox_module.uniform(seed, offset))
    assert float(uniform.min()) >= 0 and float(uniform.max()) < 1
    assert abs(float(uniform.mean()) - 0.5) < 0.01
    assert abs(float(normal.mean())) < 0.03 and abs(float(normal.std()) - 1) < 0.03
    assert not torch.equal(uniform, philox_module.uniform(seed + 1, offset))


def test_philox_known_answer() -> None:
    """The all-zeros vector of the Random123 distribution's known-answer tests for philox4x32-10."""
    first, second = philox_module.philox(torch.tensor(0), torch.tensor(0))
    assert (int(first), int(second)) == (0x6627E8D5, 0xE169C58D)


def test_tensors_on_another_default_device() -> None:
    """Where tensors are made elsewhere by default, the interpreter keeps to the devices of the program: a CPU loop that
    stored a number indexed with a tensor on the GPU."""

    def f(x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        padded = torch.nn.functional.pad(x, (1, 1))
        least = torch.clamp(x, min=torch.ops.aten.add(2.0, 0.75))
        return padded, least, x.std(), x.prod(), x.cumsum(0), x[at].index_put((at,), x[at], accumulate=True)

    x, at = torch.randn(5, 4), torch.tensor([0, 2, 1])
    (schedule,) = schedule_only(f, [x, at])
    with torch.device("meta"):
        found = interpret(unscheduled(schedule), [x, at])
    for actual, expected in zip(found, f(x, at), strict=True):
        torch.testing.assert_close(actual, expected)


def test_a_value_that_was_loaded_stays_when_its_buffer_is_written() -> None:
    """All positions are single ones, as torch takes a view for."""
    x = build.load("x", (n(0), n(0)), torch.float32)
    twice = build.call("mul", x, build.const(2.0, torch.float32))
    stores = Store("x", (n(0), n(0)), twice), Store("y", (n(0), n(0)), x)
    prog = program(stores, {}, {}, {"x": ((1, 1), torch.float32)}, {"y": ((1, 1), torch.float32)})
    given = torch.full((1, 1), 3.0)
    assert interpret(prog, [given])[0].tolist() == [[3.0]] and given.tolist() == [[6.0]]

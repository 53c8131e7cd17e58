"""Sums over rows that are added to each other: one loop, and the kernels that make the rows stay pointwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from core.schedule.harness import CPU, GPU, check, plan_of
from core.schedule.programs import Writer, call
from litz.ir.interpret import interpret
from litz.pipeline import make_compiler, plan_schedule
from litz.schedule import Kernel, unscheduled
from litz_plugins import Decision
from support.retarget import cuda_schedules


def chain(count: int, rows: int = 64, width: int = 40, dtype: torch.dtype = torch.float32) -> Writer:
    """Rows that are inputs, summed, and the sums added one after the other: "total"."""
    w = Writer()
    for n in range(count):
        w.input(f"x{n}", rows, width, dtype=dtype)
        w.reduce(f"s{n}", "sum", (width,), (rows,), lambda i, r, n=n: w.load(f"x{n}", r, i))
        if n:
            before = "s0" if n == 1 else f"a{n - 1}"
            name = "total" if n == count - 1 else f"a{n}"
            w.pointwise(
                name, (width,), lambda i, n=n, before=before: call("add", w.load(before, i), w.load(f"s{n}", i))
            )
    return w


def reductions(plan: Any) -> int:
    return sum(kernel.loop.is_reduction for kernel in plan.kernels)


@pytest.mark.parametrize("rows", [64, 23, 1, 0])
@pytest.mark.parametrize(("count", "loops"), [(4, 1), (16, 1), (17, 2), (40, 3)])
def test_one_loop_for_as_many_as_it_may_read(count: int, loops: int, rows: int) -> None:
    writer = chain(count, rows)
    plan = check(writer.program("total"), writer.args(), GPU)
    if rows == 64:
        assert 1 <= reductions(plan) <= loops


def test_so_many_tensors_wait_in_memory() -> None:
    """4 MiB of them for one loop, and none that has more than a quarter of that."""
    assert decided(chain(40, 64, 4096), "total") == ["10 loops"]
    assert decided(chain(8, 128, 4096), "total") == ["apart"]


def test_sums_of_half_types_are_rounded_once() -> None:
    """Nearer to float64 than sums that are rounded one by one."""
    writer = chain(12, dtype=torch.bfloat16)
    program, args = writer.program("total"), writer.args()
    plan = plan_of(program, GPU)
    assert reductions(plan) == 1
    exact = sum(x.double().sum(0) for x in args)
    (found,), (one_by_one,) = interpret(unscheduled(plan), list(args)), interpret(program, list(args))
    torch.testing.assert_close(found, exact.to(torch.bfloat16))
    assert (found - exact).abs().sum() <= (one_by_one - exact).abs().sum()


def other_readers() -> Writer:
    w = chain(8)
    w.pointwise("seen", (40,), lambda i: call("mul", w.load("s3", i), 2.0))
    return w


def another_value() -> Writer:
    w = chain(8)
    w.input("b", 40)
    w.pointwise("more", (40,), lambda i: call("add", w.load("total", i), w.load("b", i)))
    return w


def of_rows() -> Writer:
    w = Writer()
    for n in range(8):
        w.input(f"x{n}", 40, 64)
        w.reduce(f"s{n}", "sum", (40,), (64,), lambda i, r, n=n: w.load(f"x{n}", i, r))
        if n:
            before = "s0" if n == 1 else f"a{n - 1}"
            w.pointwise(
                f"a{n}", (40,), lambda i, n=n, before=before: call("add", w.load(before, i), w.load(f"s{n}", i))
            )
    return w


def rows_of_their_own() -> Writer:
    """Rows that nobody else reads: each sum computes them, and they are not written."""
    w = Writer()
    for n in range(8):
        w.input(f"x{n}", 64, 40)
        w.pointwise(f"g{n}", (64, 40), lambda r, i, n=n: call("exp", w.load(f"x{n}", r, i)))
        w.reduce(f"s{n}", "sum", (40,), (64,), lambda i, r, n=n: w.load(f"g{n}", r, i))
        if n:
            before = "s0" if n == 1 else f"a{n - 1}"
            w.pointwise(
                f"a{n}", (40,), lambda i, n=n, before=before: call("add", w.load(before, i), w.load(f"s{n}", i))
            )
    return w


def decided(writer: Writer, *outputs: str, target: Any = GPU) -> list[str]:
    decisions: list[Decision] = []
    from litz_passes.program.join_sums import join_sums
    from litz_plugins import PassContext

    context = PassContext(None, "program", "join_sums", note=decisions.append, target_of=lambda device: target)
    join_sums(writer.program(*outputs), context)
    return [decision.chosen for decision in decisions]


@pytest.mark.parametrize(
    ("writer", "outputs"),
    [
        (lambda: chain(3), ["total"]),
        (other_readers, ["total", "seen"]),
        (of_rows, ["a7"]),
        (rows_of_their_own, ["a7"]),
        (lambda: chain(8), ["total", "a2"]),
    ],
    ids=["few", "read by others", "of rows", "rows of their own", "returned"],
)
def test_others_stay_apart(writer: Callable[[], Writer], outputs: list[str]) -> None:
    assert not decided(writer(), *outputs)
    made = writer()
    check(made.program(*outputs), made.args(), GPU)


def test_what_is_decided() -> None:
    assert decided(chain(8), "total") == ["1 loops"]
    assert decided(chain(40), "total") == ["3 loops"]
    assert decided(chain(8, 4096, 1024), "total") == ["apart"]
    assert not decided(chain(8), "total", target=CPU)
    writer = another_value()
    assert reductions(check(writer.program("more"), writer.args(), GPU)) == 1


def test_a_recurrent_networks_steps_are_pointwise() -> None:
    """On an H200 a step's kernel with the sum took 3.0 us, and TorchInductor's pointwise kernel 1.6."""
    torch.manual_seed(0)
    cell = torch.nn.GRUCell(8, 64)
    x = torch.randn(9, 64, 8)

    def loss(x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(64, 64)
        for step in x:
            state = cell(step, state)
        return state.square().sum()

    compiler = make_compiler()
    torch._dynamo.reset()
    schedules = cuda_schedules(
        lambda backend: torch.compile(loss, backend=backend, dynamic=False)(x).backward(), compiler
    )
    plan = plan_schedule(schedules[-1], compiler)
    loops = [step.loop for step in plan.steps if isinstance(step, Kernel)]
    sums = [node for loop in loops for node in loop.nodes if node.op == "reduce"]
    assert len(sums) < len(x) / 2  # one in each step without the pass

"""Sums of many products: accumulated by the products, in place, and the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # defines the ops
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from core.schedule.harness import check
from core.schedule.programs import Writer
from litz.ir import Extern
from litz.pipeline import make_compiler, plan_schedule
from litz.report import collect
from support.retarget import cuda_schedules

COUNT = 12


def chain(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> Tensor:
    total = xs[0] @ ys[0]
    for x, y in zip(xs[1:], ys[1:], strict=True):
        total = total + x @ y
    return total


def pairs(count: int = COUNT, dtype: torch.dtype = torch.float32, rows: int = 24) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    xs = [torch.randn(rows, 7, generator=generator).to(dtype) for _ in range(count)]
    ys = [torch.randn(7, 16, generator=generator).to(dtype) for _ in range(count)]
    return xs, ys


def called(fn: Callable[..., Any], *args: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(fn, backend="litz", dynamic=False, options={"debug": True})(*args)


@pytest.mark.each_value
@pytest.mark.parametrize("rows", [24, 1, 0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_long_sum_is_as_exact_as_eagers(dtype: torch.dtype, rows: int) -> None:
    xs, ys = pairs(dtype=dtype, rows=rows)
    found = called(chain, xs, ys)
    exact = chain([x.double() for x in xs], [y.double() for y in ys])
    error, eager = (found.double() - exact).abs().sum(), (chain(xs, ys).double() - exact).abs().sum()
    assert found.dtype == dtype and error <= 1.1 * eager + torch.finfo(torch.float32).eps * exact.abs().sum()


def schedule_of(fn: Callable[..., Any], *args: Any) -> Any:
    torch._dynamo.reset()
    compiler = make_compiler()
    (found,) = cuda_schedules(lambda backend: torch.compile(fn, backend=backend, dynamic=False)(*args), compiler)
    return plan_schedule(found, compiler)


def targets(plan: Any) -> list[str]:
    return [str(step.target) for step in plan.steps if isinstance(step, Extern)]


def test_only_the_sum_is_in_memory() -> None:
    xs, ys = pairs()
    plan = schedule_of(chain, xs, ys)
    assert targets(plan) == ["aten.mm.default"] + (COUNT - 1) * ["aten.addmm.default"] and not plan.kernels
    assert len(plan.memory.reuse) == COUNT - 1 and plan.memory.peak_bytes == 24 * 16 * 4
    assert not plan.results.keys() - {plan.steps[0].name}, "the others write into what they are given"


def test_sums_that_stay_as_they_are() -> None:
    xs, ys = pairs()

    def another_reader(xs: list[Tensor], ys: list[Tensor]) -> tuple[Tensor, Tensor]:
        first = xs[0] @ ys[0]
        return first.sin(), first + chain(xs[1:], ys[1:])

    def partial_sum(xs: list[Tensor], ys: list[Tensor]) -> tuple[Tensor, Tensor]:
        some = chain(xs[:6], ys[:6])
        return some * 2, some + xs[6] @ ys[6]

    def scaled(xs: list[Tensor], ys: list[Tensor]) -> Tensor:
        total = xs[0] @ ys[0]
        for x, y in zip(xs[1:], ys[1:], strict=True):
            total = torch.add(total, x @ y, alpha=2)
        return total

    for fn in (lambda xs, ys: chain(xs[:7], ys[:7]), another_reader, partial_sum, scaled):
        assert set(targets(schedule_of(fn, xs, ys))) == {"aten.mm.default"}
        found = called(fn, xs, ys)
        torch.testing.assert_close(found, fn(xs, ys))


def test_a_sum_from_right_to_left_keeps_its_order() -> None:
    """The first product is added last: nothing is accumulated in the order in which products are made."""
    xs, ys = pairs()

    def fn(xs: list[Tensor], ys: list[Tensor]) -> Tensor:
        products = [x @ y for x, y in zip(xs, ys, strict=True)]
        total = products[-1]
        for product in reversed(products[:-1]):
            total = total + product
        return total

    assert set(targets(schedule_of(fn, xs, ys))) == {"aten.mm.default"}
    torch.testing.assert_close(called(fn, xs, ys), fn(xs, ys))


@pytest.mark.parametrize("steps", [6, pytest.param(20, marks=pytest.mark.nightly)])
def test_a_recurrent_networks_gradients(steps: int) -> None:
    torch.manual_seed(0)
    cell = torch.nn.GRUCell(8, 16)
    x = torch.randn(steps, 4, 8)

    def loss(x: Tensor) -> Tensor:
        state = torch.zeros(4, 16)
        for step in x:
            state = cell(step, state)
        return state.square().sum()

    loss(x).backward()
    expected = [p.grad.clone() for p in cell.parameters() if p.grad is not None]
    cell.zero_grad()
    torch._dynamo.reset()
    value = torch.compile(loss, backend="litz", options={"debug": True})(x)
    value.backward(retain_graph=True)
    value.backward()
    for parameter, wanted in zip(cell.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * wanted, rtol=1e-4, atol=1e-5)


def cpu_targets(fn: Callable[..., Any], *args: Any) -> list[str]:
    """The library calls of a function on the CPU, whose result is as exact as eager's."""
    torch._dynamo.reset()
    with collect() as reports:
        found = torch.compile(fn, backend="litz", dynamic=False, options={"debug": True})(*args)
    expected = fn(*args)
    exact = fn(*[arg.double() if arg.is_floating_point() else arg for arg in args])
    leaves = zip(*map(tree_leaves, (found, expected, exact)), strict=True)
    for mine, theirs, true in leaves:
        assert mine.dtype == theirs.dtype and mine.stride() == theirs.stride()
        error, eager = (mine.double() - true).abs().sum(), (theirs.double() - true).abs().sum()
        assert error <= 1.1 * eager + torch.finfo(torch.float32).eps * true.abs().sum()
    return [str(step.target) for report in reports for step in report.plan.steps if isinstance(step, Extern)]


def square(seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(24, 24, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_one_product_is_added_by_its_call_on_a_processor(dtype: torch.dtype) -> None:
    x, a, b = (square(seed, dtype) for seed in range(3))
    assert cpu_targets(lambda x, a, b: a @ b + x, x, a, b) == ["aten.addmm.default"]
    assert cpu_targets(lambda x, a, b: x + a @ b, x, a, b) == ["aten.addmm.default"]
    assert cpu_targets(lambda x, a, b: (x + a.relu() @ b) @ x, x, a, b) == ["aten.addmm.default", "aten.mm.default"]
    two = ["aten.mm.default", "aten.addmm.default"]
    assert cpu_targets(lambda x, a, b: a @ b + b @ x, x, a, b) == two, "a product is added to the other"
    assert cpu_targets(lambda x, a, b: x.t() + a @ b, x, a, b) == ["aten.mm.default"], "lies otherwise"


NOT_ADDED: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "a loop reads the sum": lambda x, a, b: (a @ b + x).relu(),
    "a loop makes what it is added to": lambda x, a, b: a @ b + x.cos(),
    "the product has another reader": lambda x, a, b: (lambda p: (p + x, p @ a))(a @ b),
    "the product is returned": lambda x, a, b: (lambda p: (p + x, p))(a @ b),
    "a view of the product is returned": lambda x, a, b: (lambda p: (p + x, p.t()))(a @ b),
    "added twice": lambda x, a, b: (lambda p: p + p)(a @ b),
    "a row": lambda x, a, b: a @ b + x[0],
    "scaled": lambda x, a, b: torch.add(x, a @ b, alpha=2),
}


@pytest.mark.parametrize("name", NOT_ADDED)
def test_one_product_is_left_to_loops(name: str) -> None:
    found = cpu_targets(NOT_ADDED[name], *(square(seed) for seed in range(3)))
    assert "aten.mm.default" in found and "aten.addmm.default" not in found


def test_weights_of_fewer_bits_stay_with_their_product() -> None:
    """A loop unpacks them as it multiplies."""
    x, a = square(0), square(1)
    packed = torch.randint(-8, 8, (24, 24), dtype=torch.int8, generator=torch.Generator().manual_seed(2))
    assert "aten.addmm.default" not in cpu_targets(lambda x, a, b: a @ b.to(a.dtype) + x, x, a, packed)


@pytest.mark.parametrize(("size", "call"), [(16, "aten.addmm.default"), (256, "aten.mm.default")])
def test_a_product_that_hides_communication_does_not_wait_for_it(size: int, call: str) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    ops = torch.ops._c10d_functional
    try:
        torch._dynamo.reset()
        with collect() as reports:
            fn = lambda x, a: a @ a + ops.wait_tensor(ops.all_reduce(x, "sum", "0"))
            x, a = torch.randn(size, size), torch.randn(size, size)
            torch.testing.assert_close(torch.compile(fn, backend="litz", options={"debug": True})(x, a), fn(x, a))
    finally:
        dist.destroy_process_group()
    (report,) = reports
    assert call in [str(step.target) for step in report.plan.steps if isinstance(step, Extern)]


def test_a_product_is_added_to_a_view() -> None:
    """What it is added to has no memory of its own: the plan failed on such a call."""
    w = Writer()
    for name in "xab":
        w.input(name, 16, 16)
    w.call("m", torch.ops.aten.mm.default, "a", "b")
    w.call("v", torch.ops.aten.alias.default, "m", alias=True)
    w.call("s", torch.ops.aten.addmm.default, "v", "a", "x")
    assert check(w.program("s"), w.args()).memory.reuse.get("s") is None


@pytest.mark.parametrize("again", [False, True])
def test_a_product_is_written_over_a_dying_matrix(again: bool) -> None:
    """Not over one that is read later, or is multiplied as well."""
    w = Writer()
    for name in "xab":
        w.input(name, 16, 16)
    w.call("m", torch.ops.aten.mm.default, "a", "b")
    w.call("s", torch.ops.aten.addmm.default, "m", "a", "b")
    w.call("t", torch.ops.aten.addmm.default, "s", "s", "b")
    w.call("y", torch.ops.aten.mul.Tensor, "t", "m" if again else "x")
    plan = check(w.program("y"), w.args())
    assert (plan.memory.reuse.get("s") == "m") is not again
    assert plan.memory.reuse.get("t") != "s"

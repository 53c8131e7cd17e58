"""Cumulative ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from core.lowering.harness import capture
from litz.ir import Program, TensorRef
from litz.ir.interpret import interpret
from litz.lower import lower
from litz.pipeline import schedule_only
from litz.schedule import Schedule
from litz.target import target_named
from support.own_plugins import operators
from support.retarget import cuda_schedules

from .harness import check

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool]


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dynamic", [False, True])
def test_cumsum_and_cumprod(dtype: torch.dtype, dim: int, dynamic: bool) -> None:
    x = torch.randint(-1, 3, (3, 4, 5)).to(dtype)
    check(lambda x: (x.cumsum(dim), x.cumprod(dim)), x, dynamic=dynamic)
    check(lambda x: x.transpose(0, 2).cumsum(dim), x, dynamic=dynamic)


def test_result_dtype() -> None:
    check(lambda x: x.cumsum(0, dtype=torch.float32), torch.ones(300, dtype=torch.bfloat16))
    check(lambda x: x.cumsum(0, dtype=torch.int32), torch.tensor([1.7, 1.7, 1.7]))
    check(lambda x: x.cumsum(0), torch.ones(300, dtype=torch.bfloat16))


def test_shapes() -> None:
    check(lambda x: x.cumsum(0), torch.tensor(3.0))
    check(lambda x: x.cumsum(0), torch.tensor(True))
    check(lambda x: x.cumsum(1), torch.ones(3, 1))
    check(lambda x: x.cumsum(0), torch.ones(1, 3))
    check(lambda x: x.cumsum(1), torch.ones(3, 0))
    check(lambda x: x.cumsum(0), torch.ones(1, 1).expand(4, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_cumulative_extremes(dtype: torch.dtype) -> None:
    x = torch.randint(-9, 9, (4, 6)).to(dtype)
    check(lambda x: (x.cummax(1).values, x.cummin(0).values), x)
    check(lambda x: x.cummax(1), x, native=False)
    check(lambda x: x.float().logcumsumexp(1), x, native=False)


@pytest.mark.parametrize("fn", [lambda x: x.cumsum(-1), lambda x: x.argmax(-1), lambda x: x.min(-1)])
def test_few_long_rows_are_the_librarys_on_a_gpu(fn: Callable[[torch.Tensor], Any]) -> None:
    def externs(*size: int) -> int:
        torch._dynamo.reset()
        (schedule,) = cuda_schedules(lambda backend: torch.compile(fn, backend=backend)(torch.zeros(size)))
        return len(schedule.program.externs)

    assert (externs(1, 2**20), externs(512, 2**17), externs(2, 2**10)) == (1, 0, 0)


HALF = [torch.float16, torch.bfloat16]
FLAT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cumsum": lambda x: x.view(-1).cumsum(0),
    "cumprod": lambda x: x.view(-1).cumprod(0),
    "logcumsumexp": lambda x: x.view(-1).logcumsumexp(0),
    "logcumsumexp of rows": lambda x: x.logcumsumexp(1),
    "logcumsumexp of columns": lambda x: x.logcumsumexp(0),
}
"""Scans of (100, 1000) elements that are library calls on a GPU."""


def on_a_gpu(fn: Callable[[torch.Tensor], Any], dtype: torch.dtype) -> Schedule:
    with FakeTensorMode(), torch.no_grad():
        (schedule,) = schedule_only(fn, (torch.empty(100, 1000, dtype=dtype, device="cuda"),))
    return schedule


def called_with(program: Program) -> list[tuple[torch.dtype, torch.dtype]]:
    """(dtype of the tensor that it takes, of its result) for each library call."""
    found = []
    for call in program.externs:
        (given,), (made,) = [arg for arg in call.args if isinstance(arg, TensorRef)], call.outputs
        assert made is not None
        found.append((program.buffers[given.buffer].dtype, program.buffers[made].dtype))
    return found


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", FLAT)
def test_a_gpu_s_library_scans_half_types_in_float32(name: str, dtype: torch.dtype) -> None:
    """The conversions are in the kernels before and after, where there are any."""
    schedule = on_a_gpu(lambda x: FLAT[name](x * 2) + 1, dtype)
    assert called_with(schedule.program) == [(torch.float32, torch.float32)]
    assert len(schedule.steps) == 3
    (result,) = schedule.program.outputs
    assert isinstance(result, TensorRef) and schedule.program.buffers[result.buffer].dtype == dtype
    wider = on_a_gpu(FLAT[name], torch.float64)
    assert called_with(wider.program) == [(torch.float64, torch.float64)] and len(wider.steps) == 1


def test_the_dtype_of_a_library_s_scan() -> None:
    half, wide, whole = torch.bfloat16, torch.float32, torch.int64
    assert called_with(on_a_gpu(lambda x: x.view(-1).cumsum(0, dtype=wide), half).program) == [(half, wide)]
    assert called_with(on_a_gpu(lambda x: x.view(-1).cumsum(0, dtype=half), wide).program) == [(wide, wide)]
    assert called_with(on_a_gpu(lambda x: x.view(-1).cumprod(0, dtype=half), whole).program) == [(wide, wide)]
    assert called_with(on_a_gpu(lambda x: x.cumsum(1), half).program) == []


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_half_scans_are_scanned_in_float32(dynamic: bool) -> None:
    def run(backend: Callable[..., Any]) -> None:
        x = torch.rand(2**16 + 1, dtype=torch.bfloat16, requires_grad=True)
        torch._dynamo.mark_dynamic(x, 0) if dynamic else None
        compiled = torch.compile(lambda x: (x.cumsum(0), x.logcumsumexp(0)), backend=backend, dynamic=dynamic)
        sum(y.sum() for y in compiled(x)).backward()

    torch._dynamo.reset()
    scans = [
        called
        for schedule in cuda_schedules(run)
        for op, called in zip(schedule.program.externs, called_with(schedule.program), strict=True)
        if "cumsum" in op.target_name
    ]
    assert len(scans) >= 4 and set(scans) == {(torch.float32, torch.float32)}


def as_on_a_gpu(fn: Callable[..., torch.Tensor], x: torch.Tensor, dynamic: bool) -> torch.Tensor:
    """The value of what is lowered for a GPU, with the calls of the CPU's library."""
    graph = capture(fn, x, dynamic=dynamic)
    program = lower(graph, operators().lowerings(), target_of=lambda device: target_named("H100"))
    (value,) = interpret(program, [x])
    return value


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("op", [torch.cumsum, torch.cumprod, torch.logcumsumexp])
def test_values_of_wide_calls(op: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    """One rounding at the result, for few and many elements, and where eager has NaN or an infinity."""
    inf, nan = float("inf"), float("nan")
    long = (1 + 1e-3 * torch.randn(100_000)).to(dtype)
    long = long / 2 if op is torch.cumsum else long  # float16 does not hold 100,000
    special = torch.tensor([[-inf, -inf, 1, 2], [1, -inf, inf, 3], [0, nan, 2, 1], [-inf, inf, 1, 2]], dtype=dtype)
    cases = [(long, 0), (special, 0), (special, 1), (long[:700].view(20, 35).t()[::2], 0)]
    cases += [(long[:1], 0), (long[:0], 0), (long[0], 0), (long[:3].view(1, 3, 1), -2), (long[:0].view(3, 0), 1)]
    for x, dim in cases:
        for dynamic in (False, True):
            value = as_on_a_gpu(lambda x, dim=dim: op(x, dim), x, dynamic)
            exact = op(x.double(), dim)
            assert value.dtype == dtype and value.shape == exact.shape and value.stride() == op(x, dim).stride()
            # Half a unit in the last place, and float32's own rounding.
            torch.testing.assert_close(
                value.double(), exact, rtol=0.52 * torch.finfo(dtype).eps, atol=1e-5, equal_nan=True
            )


@pytest.mark.parametrize("dtype", HALF)
def test_the_cpu_s_library_scans_half_types_as_they_are(dtype: torch.dtype) -> None:
    """Its kernels round once."""
    x = (1 + 1e-3 * torch.randn(2**16 + 1)).to(dtype)
    check(lambda x: (x.cumsum(0), x.cumprod(0)), x, by_float64=True)
    program = check(lambda x: x.logcumsumexp(0), x, native=False, by_float64=True)
    assert called_with(program) == [(dtype, dtype)] and len(program.operations) == 1

"""torch.associative_scan: one loop, or a region for each step in core alone, against loops in Python in float64.

torch's own function takes pointwise functions of CUDA tensors alone, so what runs on a CPU calls the op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from litz import report as reports
from litz.driver.builtin import builtin_plugins
from litz.ir import build
from litz.ir.combined import combined_kinds, leaf, scan_row
from litz.ir.interpret import interpret
from litz.ir.printer import objects_in
from litz.pipeline import compile_backend, generate, make_compiler, plan_schedule, schedule_only
from litz.regions import associative_scan as associative_scan_by_steps
from litz.schedule.schedule_program import unscheduled
from litz_plugins import make_plugins
from litz_testing.parse.programs import parse_program
from support.compare import litz

Function = Callable[..., Any]
op = torch.ops.higher_order.associative_scan


def _recurrence(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, ...]:
    return a * c, b * c + d


def _first_extreme(x: Any, at: Any, y: Any, also: Any) -> tuple[Any, ...]:
    return torch.where(y > x, y, x), torch.where(y > x, also, at)


def _since_reset(a: Any, reset: Any, b: Any, again: Any) -> tuple[Any, ...]:
    return torch.where(again, b, a + b), reset | again


def _scaled(a: Any, b: Any, w: Any) -> tuple[Any, ...]:
    return (a * b * w,)


def _made(size: tuple[int, ...], function: Function) -> list[torch.Tensor]:
    x = torch.randn(size)
    if function is _recurrence:
        return [x.sigmoid(), torch.randn(size)]
    if function is _first_extreme:
        return [x, torch.arange(size[0]).reshape(-1, *[1] * (len(size) - 1)).expand(size).contiguous()]
    if function is _since_reset:
        return [x, torch.rand(size) < 0.2]
    return [x.sigmoid() + 0.5]


def _stepwise(function: Function, xs: list[torch.Tensor], *others: torch.Tensor) -> list[torch.Tensor]:
    """The scan in Python, floats in float64."""
    wide = [x.double() if x.is_floating_point() else x for x in xs]
    more = [other.double() for other in others]
    states = [[x[0] for x in wide]]
    for n in range(1, len(xs[0])):
        states.append([*function(*states[-1], *(x[n] for x in wide), *more)])
    return [torch.stack(parts) for parts in zip(*states, strict=True)]


FUNCTIONS: Mapping[str, Function] = {
    "recurrence": _recurrence,
    "extreme": _first_extreme,
    "reset": _since_reset,
}


def _check(found: Any, expected: list[torch.Tensor], **tolerances: float) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.to(theirs.dtype), theirs, **{"rtol": 1e-4, "atol": 1e-5, **tolerances})


@pytest.mark.ci_cases("extreme-True", "reset-False", "recurrence-False")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_several_parts(name: str, dynamic: bool) -> None:
    """The op was a call of torch's, with the function as eager runs it."""
    function = FUNCTIONS[name]
    compiled = litz(lambda *xs: op(function, tuple(x.clone() for x in xs), ()), dynamic=dynamic, fullgraph=True)
    with reports.collect() as collected:
        for size in ((33, 20), (20, 3, 4)):
            xs = _made(size, function)
            _check(compiled(*xs), _stepwise(function, xs))
    for report in collected:
        assert not report.program.regions and not report.program.externs
        assert len([loop for loop in report.program.loops if loop.has_scan]) == 1


@pytest.mark.ci_cases("size1", "size2")
@pytest.mark.parametrize("size", [(1, 5), (7,), (300, 1), (3, 0)])
def test_sizes_of_nought_and_one(size: tuple[int, ...]) -> None:
    xs = _made(size, _recurrence)
    _check(litz(lambda *xs: op(_recurrence, xs, ()))(*xs), _stepwise(_recurrence, xs))


@pytest.mark.ci_cases("dtype0", "dtype3")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int8, torch.int32])
def test_types(dtype: torch.dtype) -> None:
    x = (torch.randn(17, 6) * 3).to(dtype)
    (found,) = litz(lambda x: op(lambda a, b: (torch.maximum(a, b) + 0,), (x,), ()))(x)
    assert found.dtype == dtype
    torch.testing.assert_close(found, x.cummax(0).values)


def test_a_tensor_from_outside() -> None:
    """It stays what it is from step to step."""
    x, w = torch.rand(12, 7) + 0.5, torch.rand(7) + 0.5
    compiled = litz(lambda x, w: op(lambda a, b: _scaled(a, b, w), (x,), ()), fullgraph=True)
    with torch.no_grad(), reports.collect() as collected:
        _check(compiled(x, w), _stepwise(lambda a, b: _scaled(a, b, w.double()), [x]))
    assert not collected[0].program.regions and not collected[0].program.externs


@pytest.mark.parametrize("size", [(6, 5), (1, 3), (0, 3), (4,)])
def test_step_by_step_without_the_plugin(size: tuple[int, ...]) -> None:
    """Core alone runs a region for each step."""
    plugins = make_plugins(builtin_plugins(), entry_points=())
    backend = lambda module, inputs: compile_backend(module, inputs, options={"graph_cache": False}, plugins=plugins)
    xs = [x.transpose(0, -1).contiguous().transpose(0, -1) for x in _made(size, _recurrence)]
    if not size[0]:
        results = associative_scan_by_steps(lambda args: (), xs, ())
        assert [result.shape for result in results] == [x.shape for x in xs]
        return
    torch._dynamo.reset()
    with reports.collect() as collected:
        _check(torch.compile(lambda *xs: op(_recurrence, xs, ()), backend=backend)(*xs), _stepwise(_recurrence, xs))
    assert collected[0].program.regions and "def region0(args):" in collected[0].wrapper_source


def test_types_that_loops_do_not_hold() -> None:
    x = torch.randn(5, 3, dtype=torch.complex64)
    with reports.collect() as collected:
        (found,) = litz(lambda x: op(lambda a, b: (a * b,), (x,), ()))(x)
    torch.testing.assert_close(found, x.cumprod(0))
    assert collected[0].program.regions


def test_gradients() -> None:
    """Those of one tensor: torch's own are wrong where one part of a state depends on another."""
    x = (torch.rand(9, 5) + 0.5).requires_grad_()
    found = litz(lambda x: op(lambda a, b: (a * b.sin(),), (x * 2,), ())[0], fullgraph=True)(x)
    (gradient,) = torch.autograd.grad(found.square().sum(), x)
    wide = x.detach().double().requires_grad_()
    (expected,) = _stepwise(lambda a, b: (a * b.sin(),), [wide * 2])
    _check([gradient], [*torch.autograd.grad(expected.square().sum(), wide)])


def test_text_and_interpreter() -> None:
    xs = _made((5, 8), _recurrence)
    (schedule,) = schedule_only(lambda *xs: op(_recurrence, xs, ())[1], xs, {"debug": True})
    program = schedule.program
    assert 'scan "combine 1 f32 f32; ' in str(program) and not program.regions
    assert parse_program(str(program), objects_in(program)) == program
    (result,) = interpret(unscheduled(schedule), xs)
    torch.testing.assert_close(result.double(), _stepwise(_recurrence, xs)[1], rtol=1e-5, atol=1e-5)


def test_a_kind_says_its_function() -> None:
    """Constants, conversions and what is used twice come back as they went into the text."""
    s, o = leaf("s", 0, torch.float32), leaf("o", 0, torch.float32)
    less = build.call("lt", s, build.const(float("-inf"), torch.float32))
    both = build.call("bitwise_and", less, build.const(True, torch.bool))
    halved = build.call("mul", o, build.const(1e-30, torch.float32))
    made = build.call(
        "where", both, build.cast(build.cast(halved, torch.int64), torch.float32), build.call("add", halved, s)
    )
    (kind,) = combined_kinds((made,), (torch.float32,))
    row = scan_row(kind)
    assert row is not None and row.merge((s,), (o,)) == (made,) and row is scan_row(str(kind))


# ----------------------------------------------------------------------------------------------------------------- GPUs


@pytest.mark.ci_cases("size1-0-True")
@pytest.mark.parametrize(
    ("size", "dim", "reverse"), [((64, 256), 1, False), ((512, 64), 0, True), ((3, 40000), 1, True)]
)
def test_one_kernel_on_a_gpu(size: tuple[int, int], dim: int, reverse: bool) -> None:
    """What comes before and after the scan is in its kernel."""

    def scan(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        pairs = x.sigmoid(), y * 2
        step = lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1])
        return associative_scan(step, pairs, dim, reverse, combine_mode="pointwise")[1] + 1

    with FakeTensorMode(shape_env=ShapeEnv()):
        (schedule,) = schedule_only(scan, [torch.empty(size, device="cuda") for _ in range(2)])
    compiler = make_compiler(None, None)
    sources = generate(plan_schedule(schedule, compiler), compiler)
    source, *after = sources.values()
    assert source.language == "triton" and source.text.count("tl.associative_scan(") == 1
    assert "tl.reduce(" not in source.text  # merges lanes in any order, and the function need not be commutative
    assert ("carry" in source.text) == (size != (64, 256))
    assert len(after) == int(reverse)  # what reads a flipped scan is a kernel of its own


@pytest.mark.gpu
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("size", [(64, 256), (512, 64), (3, 40000), (1, 1), (5, 1023)])
def test_values_on_a_gpu(size: tuple[int, int], reverse: bool) -> None:
    x, y = torch.rand(size, device="cuda"), torch.randn(size, device="cuda")

    def scan(x: torch.Tensor, y: torch.Tensor) -> Any:
        step = lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1])
        return associative_scan(step, (x.sigmoid(), y * 2), 1, reverse, combine_mode="pointwise")

    flip = (lambda x: x.flip(0)) if reverse else (lambda x: x)
    given = [flip(x.double().sigmoid().t()), flip(y.double().t() * 2)]
    _check(litz(scan, fullgraph=True)(x, y), [flip(part).t() for part in _stepwise(_recurrence, given)])

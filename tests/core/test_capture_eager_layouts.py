"""Results of elementwise ops lie as eager's, also where operands are expanded, overlap or lie each in its own way."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from litz.capture import eager_layouts
from litz.capture.decompositions import decompositions
from litz_testing.tensors import lies_otherwise

aten = torch.ops.aten
SHAPE = (3, 4, 5)
ROWS = torch.rand(SHAPE) + 0.5
LAYOUTS = {
    "rows": ROWS,
    "permuted": (torch.rand(5, 3, 4) + 0.5).permute(1, 2, 0),
    "gaps": (torch.rand(6, 8, 5) + 0.5)[::2, ::2],
    "one expanded": (torch.rand(1, 1, 1) + 0.5).expand(SHAPE),
    "columns expanded": (torch.rand(3, 4, 1) + 0.5).expand(SHAPE),
    "overlapping": (torch.rand(40) + 0.5).as_strided(SHAPE, (1, 2, 4)),
    "fewer dimensions": (torch.rand(5, 4) + 0.5).mT,
    "a number": torch.tensor(0.75),
}
PAIRS = list(itertools.product(LAYOUTS, repeat=2))[::3]
TRIPLES = list(itertools.product(("permuted", "columns expanded", "overlapping", "one expanded"), repeat=3))[::3]
Function = Callable[..., Any]
ONE: dict[str, Function] = {
    "pow.Scalar": lambda x: aten.pow.Scalar(2.0, x),
    "angle": lambda x: aten.angle(aten.complex(x, -x)),
    "log_sigmoid_forward": lambda x: aten.log_sigmoid_forward(x)[0],
    "masked_fill.Scalar": lambda x: aten.masked_fill.Scalar(x, x > 1, 0.0),
}
TWO: dict[str, Function] = {
    **{name: getattr(aten, name) for name in (
        "logical_and", "logical_xor", "copysign", "logaddexp", "logaddexp2", "xlogy", "special_xlog1py", "heaviside",
        "floor_divide", "ldexp", "hypot", "polar", "complex", "add", "rsub", "fmod", "maximum",
        "gelu_backward", "hardswish_backward", "mish_backward", "hardsigmoid_backward")
    },
    "div.Tensor_mode": lambda a, b: aten.div.Tensor_mode(a, b, rounding_mode="floor"),
    "threshold_backward": lambda a, b: aten.threshold_backward(a, b, 0.7),
    "leaky_relu_backward": lambda a, b: aten.leaky_relu_backward(a, b, 0.1, False),
    "hardtanh_backward": lambda a, b: aten.hardtanh_backward(a, b, 0, 1),
    "elu_backward": lambda a, b: aten.elu_backward(a, 1, 1, 1, False, b),
    "softplus_backward": lambda a, b: aten.softplus_backward(a, b, 1, 20),
    "clamp_min.Tensor": aten.clamp_min.Tensor,
    "masked_fill": lambda a, b: aten.masked_fill(a, b > 1, 0.0),
    "huber_loss": lambda a, b: aten.huber_loss(a, b, 0),
    "mse_loss": lambda a, b: aten.mse_loss(a, b, 0),
    "smooth_l1_loss": lambda a, b: aten.smooth_l1_loss(a, b, 0),
    "mse_loss_backward": lambda a, b: aten.mse_loss_backward(b, a, a * 0.5, 0),
    "huber_loss_backward": lambda a, b: aten.huber_loss_backward(b, a, a * 0.5, 0, 0.7),
    "smooth_l1_loss_backward": lambda a, b: aten.smooth_l1_loss_backward(b, a, a * 0.5, 0, 0.7),
    "binary_cross_entropy": lambda a, b: aten.binary_cross_entropy(a * 0.5, b * 0.5, None, 0),
}  # fmt: skip
THREE: dict[str, Function] = {
    "clamp": aten.clamp,
    "addcmul": aten.addcmul,
    "addcdiv": aten.addcdiv,
    "lerp": aten.lerp,
    "where": lambda a, b, c: aten.where(a > 1, b, c),
}


@pytest.mark.parametrize("name", [*ONE, *TWO, *THREE])
def test_results_lie_as_in_eager(name: str) -> None:
    places: list[tuple[str, ...]] = [(one,) for one in LAYOUTS] if name in ONE else PAIRS if name in TWO else TRIPLES
    function = {**ONE, **TWO, **THREE}[name]
    if "loss" in name or "entropy" in name:  # of operands of one size, as their functions make them
        places = [at for at in places if all(LAYOUTS[one].shape == SHAPE for one in at)]
    calls, expected = [], []
    for at in places:
        try:
            expected.append(function(*(LAYOUTS[one] for one in at)))
            calls.append(at)
        except RuntimeError:  # gradients do not broadcast
            continue
    assert len(calls) > len(places) // 3

    def all_of(layouts: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        return [function(*(layouts[one] for one in at)) for at in calls]

    graph = make_fx(all_of, tracing_mode="fake", decomposition_table=decompositions())(LAYOUTS)
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    made = [node.meta["val"] for node in output.args[0]]
    wrong = [
        f"{at}: {mine.stride()} for {real.stride()}"
        for at, mine, real in zip(calls, made, expected, strict=True)
        if mine.dtype != real.dtype or lies_otherwise(mine, real)
    ]
    assert not wrong, f"{len(wrong)} of {len(calls)}: {wrong[:5]}"
    for value, real in zip(graph(LAYOUTS), expected, strict=True):
        torch.testing.assert_close(value, real, equal_nan=True)


def test_alike_operands_cost_no_copy() -> None:
    x = LAYOUTS["permuted"]
    table = decompositions()
    for function, args in ((aten.addcmul, (x, x, x)), (aten.clamp, (ROWS, ROWS[0], ROWS)), (aten.logical_and, (x, x))):
        graph = make_fx(lambda *a, f=function: f(*a), tracing_mode="fake", decomposition_table=table)(*args)
        assert not any("clone" in str(node.target) or "permute" in str(node.target) for node in graph.graph.nodes)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_results_lie_as_in_eager(dynamic: bool) -> None:
    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> list[torch.Tensor]:
        return [torch.clamp(a, b, c), torch.addcmul(a, b, c), torch.xlogy(a, c), 2.0**c, torch.logical_or(a, c)]

    places = (("one expanded", "columns expanded", "permuted"), ("one expanded", "one expanded", "overlapping"))
    for names in places[: 1 if dynamic else 2]:
        args = [LAYOUTS[name] for name in names]
        torch._dynamo.reset()
        for mine, real in zip(torch.compile(f, backend="litz", dynamic=dynamic)(*args), f(*args), strict=True):
            assert not lies_otherwise(mine, real), (names, mine.stride(), real.stride())
            torch.testing.assert_close(mine, real)


def test_named_ops_are_torch_s() -> None:
    names = [*eager_layouts.UNTAGGED, *eager_layouts._DECIDING]
    assert all(hasattr(aten, name.partition(".")[0]) for name in names)
    assert len(list(eager_layouts.whole_ops())) == len(eager_layouts.WHOLE)


REBUILT: dict[str, Function] = {
    "copysign": torch.copysign,
    "logaddexp": torch.logaddexp,
    "xlogy": torch.xlogy,
    "ldexp": torch.ldexp,
    "heaviside": lambda a, b: a * torch.heaviside(b.detach(), a.detach()),
}


@pytest.mark.ci_cases("copysign-static", "logaddexp-dynamic", "xlogy-static", "ldexp-static", "heaviside-static")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", REBUILT)
def test_views_of_results_hold_what_eager_s_do(name: str, dynamic: bool) -> None:
    """Where an output is a view of another, AOTAutograd makes it anew by the other's strides, as it found them with
    torch's own fake results. Those of copysign lie otherwise than eager's: the view had its elements in another
    order, or ended in an error."""

    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = REBUILT[name](a, b)
        return made.flatten(0, 1), made

    base = (torch.arange(12.0) - 5.3).abs().as_strided((2, 3, 2), (2, 4, 1))
    compiled = torch.compile(f, backend="litz", dynamic=dynamic)
    for swap in (False, True):
        results = []
        for function in (compiled, f):
            x = base.clone().requires_grad_()
            view, made = function(*((x, x.narrow(0, 0, 1)), (x.narrow(0, 0, 1), x))[swap])
            (view * torch.arange(12.0).view(view.shape)).sum().backward()
            shared = view.untyped_storage().data_ptr() == made.untyped_storage().data_ptr()
            results.append((view, made, x.grad, torch.tensor(shared)))
        for mine, real in zip(*results, strict=True):
            torch.testing.assert_close(mine, real)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_gradients_of_pads_lie_as_in_eager(mode: str, dynamic: bool) -> None:
    """Torch's fake gradient of a pad in channels last is contiguous, eager's on a CPU is not."""
    for shape, widths in (((2, 3, 4, 5), (1, 2, 1, 0)), ((2, 3, 4, 5), (3, -1, -1, 3)), ((2, 3, 4, 5, 4), (1,) * 6)):
        last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        x = torch.randn(shape).contiguous(memory_format=last).requires_grad_()
        torch._dynamo.reset()
        if volume := len(shape) == 5:  # torch works at six lengths of symbols for three seconds
            torch._dynamo.mark_dynamic(x, [0, 2, 4] if dynamic else [])
        padded = torch.compile(torch.nn.functional.pad, backend="litz", dynamic=None if volume else dynamic)
        results = [function(x, widths, mode) for function in (padded, torch.nn.functional.pad)]
        mine, real = (torch.autograd.grad(y.square().sum(), x)[0] for y in results)
        assert mine.stride() == real.stride() and real.is_contiguous(memory_format=last)
        torch.testing.assert_close(mine, real)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_random_numbers_lie_as_in_eager(dynamic: bool) -> None:
    """Torch's fake results of these lie as what they are drawn for, eager's are contiguous."""

    def f(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        normal = [torch.normal(x, y), torch.normal(y, x), torch.normal(x, x), torch.normal(1.0, x), torch.normal(x, 1)]
        return [*normal, torch.poisson(x), torch._standard_gamma(x), torch.bernoulli(x / 2), torch.rand_like(x)]

    torch._dynamo.reset()
    x, y = torch.rand(5, 4, 3).permute(2, 0, 1) + 0.5, torch.rand(3, 5, 4)
    mine, real = torch.compile(f, backend="litz", dynamic=dynamic)(x, y), f(x, y)
    assert [v.stride() for v in mine] == [v.stride() for v in real]
    assert all(v.isfinite().all() for v in mine) and bool((mine[6] > 0).all())

"""Tensors of which a gradient reads the sizes alone: not saved, and no memory beside what is saved anyway."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from litz.capture.graph import Graph
from litz.ir import Extern
from passes.test_saved_positions import eager, graphs_of
from support.layout_plans import copies, cuda_plan

aten = torch.ops.aten
BLUR = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]]).div(16).expand(8, 1, 3, 3).contiguous()


def blurred(x: Tensor) -> Tensor:
    """Sinus: its gradient needs its input, and the blur's gradient its output's sizes."""
    return F.conv2d(x.sin(), BLUR, stride=2, padding=1, groups=8).square().sum()


def blurred_and_saved(x: Tensor) -> Tensor:
    """Tanh: its gradient needs its output."""
    return F.conv2d(x.tanh(), BLUR, stride=2, padding=1, groups=8).square().sum()


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x.sin(), weight, padding=1, groups=8).square().sum()


def calls(graph: Graph, target: Any) -> list[torch.fx.Node]:
    return [node for node in graph.nodes if node.target is target]


def gradients(graph: Graph) -> torch.fx.Node:
    (found,) = calls(graph, aten.convolution_backward.default)
    return found


def as_eager(fn: Any, *args: Tensor) -> Graph:
    graphs, gradient = graphs_of(fn, *args, kernels=False)
    torch.testing.assert_close(gradient, eager(fn, *args), rtol=1e-4, atol=1e-4)
    return graphs[1]


@pytest.mark.parametrize("fmt", [torch.contiguous_format, torch.channels_last], ids=["first", "last"])
def test_the_input_of_a_fixed_weights_convolution_is_not_saved(fmt: torch.memory_format) -> None:
    x = torch.randn(2, 8, 12, 16).to(memory_format=fmt)
    backward = as_eager(blurred, x)
    (stand_in,) = calls(backward, aten.empty_strided.default)
    assert gradients(backward).args[1] is stand_in
    large = [node for node in backward.placeholders if node.meta["val"].shape == x.shape]
    assert len(large) == 1, "the sine's own input"


def test_what_is_saved_anyway_stands_for_itself() -> None:
    backward = as_eager(blurred_and_saved, torch.randn(2, 8, 12, 16))
    assert not calls(backward, aten.empty_strided.default)
    assert gradients(backward).args[1] in backward.placeholders


def test_a_weight_that_has_a_gradient_needs_the_values() -> None:
    weight = BLUR.clone().requires_grad_()
    backward = as_eager(convolved, torch.randn(2, 8, 12, 16), weight)
    assert not calls(backward, aten.empty_strided.default)


CONVOLUTIONS: dict[str, tuple[int, int, int, bool, int]] = {
    # dimensions, input channels, output channels, transposed, groups
    "line": (1, 4, 6, False, 1),
    "image": (2, 4, 6, False, 1),
    "wide image": (2, 64, 32, False, 1),
    "volume": (3, 4, 6, False, 1),
    "groups": (2, 8, 4, False, 2),
    "depthwise": (2, 8, 8, False, 8),
    "depthwise volume": (3, 8, 8, False, 8),
    "transposed": (2, 4, 6, True, 1),
    "transposed depthwise": (2, 8, 8, True, 8),
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_library_reads_sizes_alone(name: str, dtype: torch.dtype, last: bool, device: str) -> None:
    """What the capture relies on: NaN in place of the values changes nothing, in any of torch's ways to compute it."""
    ndim, channels, out, transposed, groups = CONVOLUTIONS[name]
    fmt = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d}[ndim]
    first = channels if transposed else out
    for stride, dilation in ((1, 1), (2, 1), (1, 2)):
        each = (out if transposed else channels) // groups
        x = torch.randn(2, channels, *(9, 8, 7)[:ndim], device=device, dtype=dtype)
        weight = torch.randn(first, each, *(3,) * ndim, device=device, dtype=dtype)
        if last:
            x, weight = x.to(memory_format=fmt), weight.to(memory_format=fmt)
        steps = ([stride] * ndim, [1] * ndim, [dilation] * ndim, transposed, [0] * ndim, groups)
        grad = torch.randn_like(aten.convolution(x, weight, None, *steps))
        wanted = [True, False, False]
        expected = aten.convolution_backward(grad, x, weight, None, *steps, wanted)[0]
        unread = torch.full_like(x, float("nan"))
        actual = aten.convolution_backward(grad, unread, weight, None, *steps, wanted)[0]
        torch.testing.assert_close(actual, expected)
        assert actual.stride() == expected.stride()


class Blurs(nn.Module):
    """Convolutions that gain by channels last, a fixed blur between them."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(64, 64, 3, padding=1) for _ in range(4))
        self.register_buffer("blur", torch.ones(64, 1, 3, 3) / 9)

    def forward(self, x: Tensor) -> Tensor:
        for convolution in self.convolutions:
            x = convolution(x).sin()
        x = F.conv2d(x, self.blur, padding=1, groups=64)
        return self.convolutions[0](x)


def test_a_plan_of_layouts_lays_out_memory_without_values() -> None:
    """No copy of them: the call that makes the memory names other strides."""
    decisions, schedules = cuda_plan(Blurs, (64, 64, 56, 56), train=True)
    operations = schedules[1].program.operations
    (made,) = (op for op in operations if isinstance(op, Extern) and op.target is aten.empty_strided.default)
    assert made.args[1] == (64 * 56 * 56, 1, 56 * 64, 64)
    assert not any("empty_strided" in text for text in copies(decisions))

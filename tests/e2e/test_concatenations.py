"""Concatenations whose segments share values: gradients of gates, rotations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from litz.report import collect
from support.compare import check, close, device_param, litz, t


def gate(dy: Tensor, h: Tensor, g: Tensor) -> Tensor:
    """The gradient of `h * silu(g)` by both, as of a chunk in two."""
    s = g.sigmoid()
    return torch.cat((dy * g * s, dy * h * (s + g * s * (1 - s))), -1)


def gate_and_bias(dy: Tensor, h: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """With the sum over the rows."""
    both = gate(dy, h, g)
    return both, both.sum(0)


def cell(dy: Tensor, c: Tensor, x: Tensor) -> Tensor:
    """Four parts, as of an LSTM's gates."""
    i, f, o = c.sigmoid(), (c + 1).sigmoid(), (c - 1).tanh()
    return torch.cat((dy * i * (1 - i) * x, dy * f * x, dy * o * i, dy * (1 - o * o)), -1)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def stacked(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Along the first dimension, and turned."""
    return torch.cat((a * b, a + c, b.exp()), 0).t()


def counted(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Positions are part of the value."""
    return torch.cat((a + b, a * c), -1) + torch.arange(2 * a.shape[-1], device=a.device)


FUNCTIONS = (gate, gate_and_bias, cell, rotated, stacked, counted)


@device_param
@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("width", [64, 34, 6])
def test_as_eager(function: Callable[..., object], width: int, dtype: torch.dtype, device: str) -> None:
    (report,) = check(function, *(t(70 + n, width, device=device, dtype=dtype)[:70] for n in range(3)))
    if width == 64 and not (
        function is gate_and_bias and device == "cuda"
    ):  # in one kernel with a sum: some GPUs' gain
        assert any("segments at once" in decision.chosen for decision in report.decisions)


@device_param
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64], ids=str)
def test_types(dtype: torch.dtype, device: str) -> None:
    tensors = [(t(5, 96 + n, device=device) * 9).to(dtype)[:, :96] for n in range(3)]
    check(rotated, *tensors)
    check(stacked if dtype.is_floating_point else counted, *tensors)


@pytest.mark.ci_cases("size1-cpu", "size2-cpu", "size5-cpu")
@device_param
@pytest.mark.parametrize("size", [(0, 32), (1, 32), (4, 0), (4, 2), (1, 1, 32), (2, 3, 4, 32)])
def test_sizes(size: tuple[int, ...], device: str) -> None:
    tensors = [t(*size, device=device) for _ in range(3)]
    check(gate, *tensors)
    check(rotated, *tensors)


@device_param
def test_strides(device: str) -> None:
    """Parts of other layouts: turned, apart, expanded."""
    a, b, c = t(64, 48, device=device).t(), t(48, 128, device=device)[:, ::2], t(1, 64, device=device).expand(48, 64)
    check(gate, a, b, c)
    check(gate_and_bias, b, c, a)
    check(rotated, a, b, c)


def normalized(x: Tensor, bias: Tensor, over_tokens: bool) -> Tensor:
    """Attention of normalized queries and keys, whose gradients lie side by side; the bias' gradient is their sum."""
    order = (2, 0, 3, 4, 1) if over_tokens else (2, 0, 3, 1, 4)
    q, k, v = (x + bias).reshape(2, -1, 3, 4, 32).permute(order).unbind(0)
    q, k = (torch.nn.functional.normalize(each, dim=-1) for each in (q, k))
    return (q @ k.transpose(-2, -1)).softmax(-1) @ v


@device_param
@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("over_tokens", [False, True])
@pytest.mark.parametrize("tokens", [196, 33])
def test_gradients_of_queries_keys_and_values(dtype: torch.dtype, over_tokens: bool, tokens: int, device: str) -> None:
    """On a GPU programs of their own make each of the three."""
    x, bias = t(2, tokens, 384, device=device), t(384, device=device)

    def gradients(function: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        torch._dynamo.reset()
        leaves = [each.to(dtype).requires_grad_() for each in (x, bias)]
        function(*leaves, over_tokens).square().sum().backward()
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    exact = gradients(normalized, torch.float64)
    ours, theirs = (gradients(f, dtype) for f in (torch.compile(normalized, backend="litz"), normalized))
    for mine, eager, want in zip(ours, theirs, exact, strict=True):
        limit = max(2e-5, 2 * error(eager, want))
        assert error(mine, want) < limit


def error(value: Tensor, want: Tensor) -> float:
    """The greatest, as a part of the greatest value."""
    return float((value.double() - want).abs().max() / want.abs().max())


@device_param
def test_any_number_of_rows(device: str) -> None:
    compiled = litz(gate_and_bias, dynamic=True)
    with collect() as graphs:
        for rows in (7, 12, 300):
            given = [t(rows, 32, device=device) for _ in range(3)]
            close(compiled(*given), gate_and_bias(*given), gate_and_bias(*(x.double() for x in given)))
    assert len(graphs) == 1


@device_param
def test_gradients(device: str) -> None:
    """As autograd makes them."""

    def halves(x: Tensor, bias: Tensor) -> Tensor:
        h, g = (x + bias).chunk(2, -1)
        return torch.nn.functional.gelu(g) * h

    results = []
    for function in (halves, torch.compile(halves, backend="litz")):
        x, bias = t(300, 96, device=device).requires_grad_(), t(96, device=device).requires_grad_()
        function(x, bias).square().sum().backward()
        results.append((x.grad, bias.grad))
    for ours, theirs in zip(*reversed(results), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)


@device_param
def test_written_over_what_they_are_made_of(device: str) -> None:
    def turn(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x.copy_(torch.cat((second.exp(), first * second), -1))

    check(turn, t(40, 64, device=device))

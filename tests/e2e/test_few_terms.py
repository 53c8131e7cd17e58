"""Products of a few terms, and temporaries that loops alone use, compiled and run: as exact as eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from support.compare import check, close, device_param, litz, t


def talking_heads(scores: Tensor, before: Tensor, bias: Tensor, after: Tensor) -> Tensor:
    """Scores are mixed over the heads before the softmax and after it."""
    mixed = F.linear(scores.permute(0, 2, 3, 1), before, bias).permute(0, 3, 1, 2)
    return F.linear(mixed.softmax(-1).permute(0, 2, 3, 1), after).permute(0, 3, 1, 2)


def taps(x: Tensor, weights: Tensor) -> Tensor:
    around = F.pad(x, (0, 0, 4, 4)).unfold(1, 9, 1)
    around = around.reshape(-1, x.shape[2] // weights.shape[2], 9)
    return torch.bmm(around, weights.softmax(-1).reshape(-1, 9, 1)).reshape(x.shape)


def outer(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, None] @ b[None]).relu() + a[:, None]


def streams(image: Tensor, places: Tensor, weight: Tensor) -> Tensor:
    """A residual that begins in channels first and is normalized along the channels."""
    x = (image + places).flatten(2).transpose(1, 2)
    for _ in range(2):
        x = x + F.layer_norm(x, weight.shape, weight).sin()
    return F.layer_norm(x, weight.shape, weight)


CASES: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "talking heads": (talking_heads, ((3, 4, 17, 33), (4, 4), (4,), (4, 4))),
    "taps": (taps, ((2, 40, 24), (2, 40, 3, 9))),
    "outer": (outer, ((70,), (133,))),
    "streams": (streams, ((2, 96, 7, 9), (1, 96, 7, 9), (96,))),
}


@pytest.mark.each_value
@device_param
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_as_eager(name: str, dtype: torch.dtype, device: str) -> None:
    function, sizes = CASES[name]
    check(function, *(t(*size, device=device, dtype=dtype) for size in sizes))


@pytest.mark.ci_cases("talking heads-cpu", "taps-cpu")
@device_param
@pytest.mark.parametrize("name", ["talking heads", "taps", "streams"])
def test_gradients(name: str, device: str) -> None:
    function, sizes = CASES[name]
    exact, ours = [], []
    for results, dtype, run in (
        (exact, torch.float64, function),
        (ours, torch.float32, torch.compile(function, backend="litz")),
    ):
        args = [t(*size, device=device).to(dtype).requires_grad_() for size in sizes]
        run(*args).square().sum().backward()
        results += [x.grad for x in args]
    largest = max(float(wanted.abs().max()) for wanted in exact)  # a softmax's row does not depend on what it adds
    for found, wanted in zip(ours, exact, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5 * largest)


@device_param
def test_any_sizes(device: str) -> None:
    compiled = litz(talking_heads, dynamic=True)
    for batch, places in ((2, 16), (3, 31), (1, 7)):
        given = [t(*size, device=device) for size in ((batch, 4, places, places + 2), (4, 4), (4,), (4, 4))]
        close(compiled(*given), talking_heads(*given), talking_heads(*(x.double() for x in given)))

"""Cases of `benchmarks.gpu_kernels` that were found in models, each by its name, with the model that showed it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

from .kernel_case import Case

STATISTICS = (64, 56), (256, 28), (52, 28), (1024, 14), (128, 150), (256, 75), (728, 38), (728, 19)
"""Channels of a batch norm, and the height and width of its images; the last four are xception's."""
GRADIENTS = (256, 28), (1024, 14), (128, 150), (728, 38), (728, 19)
"""The same of a batch norm's gradient."""


def _statistics(channels: int, side: int) -> Callable[[torch.dtype], Case]:
    """A batch norm's mean and variance of 32 images in channels last (seresnet50, hrnet, res2net)."""

    def build(dtype: torch.dtype) -> Case:
        x = torch.randn(32, channels, side, side, device="cuda").to(dtype)
        x = x.to(memory_format=torch.channels_last)
        return Case(lambda x: torch.var_mean(x.float(), (0, 2, 3), correction=0), (x,), x.nbytes)

    return build


def _statistics_backward(channels: int, side: int) -> Callable[[torch.dtype], Case]:
    """The two sums of a batch norm's gradient, of 32 images in channels last (seresnet50, hrnet, res2net)."""

    def build(dtype: torch.dtype) -> Case:
        grad, x = (torch.randn(32, channels, side, side, device="cuda").to(dtype) for _ in range(2))
        grad, x = (each.to(memory_format=torch.channels_last) for each in (grad, x))
        mean = torch.randn(channels, 1, 1, device="cuda")

        def function(grad: torch.Tensor, x: torch.Tensor, mean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            wide = grad.to(mean.dtype)
            return wide.sum((0, 2, 3)), (wide * (x - mean)).sum((0, 2, 3))

        return Case(function, (grad, x, mean), 2 * x.nbytes)

    return build


def _row_sums(rows: int, columns: int) -> Callable[[torch.dtype], Case]:
    """The gradient of a bias (hiera, nest)."""

    def build(dtype: torch.dtype) -> Case:
        x = torch.randn(rows, columns, device="cuda").to(dtype)
        return Case(lambda x: x.sum(0), (x,), x.nbytes)

    return build


def _joined_gradients(transposed: int, windows: bool = False) -> Callable[[torch.dtype], Case]:
    """The gradients of queries, keys and values side by side, and their sum, the gradient of a bias. transposed: how
    many of the three lie with the tokens innermost (xcit); windows: tokens of a window lie apart (hiera)."""

    def build(dtype: torch.dtype) -> Case:
        batch, heads, tokens, width = (1568, 1, 64, 96) if windows else (32, 8, 196, 48)
        parts = []
        for n in range(3):
            size = (batch, heads, width, tokens) if n < transposed else (batch, heads, tokens, width)
            part = torch.randn(size, device="cuda").to(dtype)
            parts.append(part.transpose(-1, -2) if n < transposed else part)

        def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            joined = torch.stack([q, k, v])  # 3, batch, heads, tokens, width
            if windows:
                joined = joined.unflatten(1, (32, 49)).permute(1, 4, 2, 0, 3, 5)
            else:
                joined = joined.permute(1, 3, 0, 2, 4)
            rows = joined.reshape(batch * tokens, 3 * heads * width)
            return rows, rows.sum(0)

        return Case(function, tuple(parts), 2 * sum(part.nbytes for part in parts))

    return build


def _joined_norms(
    batch: int, tokens: int, heads: int, width: int, over_tokens: bool, sums: bool
) -> Callable[[torch.dtype], Case]:
    """The gradients of normalized queries and keys and of values, side by side, and their sum, the gradient of a bias.
    The norm is over tokens (xcit) or over the width (swinv2); the keys' gradient lies turned."""

    def build(dtype: torch.dtype) -> Case:
        inputs = torch.randn(batch, tokens, 3, heads, width, device="cuda").to(dtype)
        q, k = (inputs[:, :, n].permute(0, 2, 3, 1) for n in range(2))
        if not over_tokens:
            q, k = q.transpose(-1, -2), k.transpose(-1, -2)
        grads = [torch.randn(q.shape, device="cuda").to(dtype) for _ in range(3)]
        turned = torch.randn(q.transpose(-1, -2).shape, device="cuda").to(dtype).transpose(-1, -2)

        def function(q: torch.Tensor, k: torch.Tensor, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
            parts = []
            for grad, x in zip(grads, (q, k), strict=False):
                norm = x.norm(dim=-1, keepdim=True)
                held = norm.clamp_min(1e-12)
                along = (-grad * (x / held / held)).sum(-1, keepdim=True)
                parts.append(grad / held + torch.where(norm == 0, 0, along * (x / norm)))
            parts.append(grads[-1])
            if over_tokens:
                parts = [part.transpose(-1, -2) for part in parts]
            joined = torch.stack([part.transpose(1, 2) for part in parts], 2)
            joined = joined.reshape(batch, tokens, 3 * heads * width)
            return (joined, joined.sum((0, 1))) if sums else (joined,)

        args = (q, k, grads[0], turned, grads[2])
        return Case(function, args, (2 + 3 + 3) * q.numel() * dtype.itemsize)

    return build


def _greatest(values: int) -> Callable[[torch.dtype], Case]:
    """The greatest of a few values, and which of them it is (hiera)."""

    def build(dtype: torch.dtype) -> Case:
        x = torch.randn(32, values, 3136 // values, 384, device="cuda").to(dtype)

        def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            top = x.amax(1)
            return top, x == top[:, None]

        return Case(function, (x,), x.nbytes + x.nbytes // values + x.numel())

    return build


def greatest_backward(dtype: torch.dtype) -> Case:
    """The gradient of the greatest of four values (hiera)."""
    chosen = torch.rand(32, 4, 784, 192, device="cuda") > 0.7
    grad = torch.randn(32, 784, 192, device="cuda").to(dtype)
    function = lambda grad, chosen: (grad / chosen.sum(1))[:, None] * chosen  # noqa: E731
    return Case(function, (grad, chosen), grad.nbytes + chosen.nbytes + chosen.numel() * grad.itemsize)


def windows_backward(dtype: torch.dtype) -> Case:
    """The gradient of overlapping windows of an image (halonet26t)."""
    grad = torch.randn(32, 512, 2, 2, 12, 12, device="cuda").to(dtype)
    unfold = torch.ops.aten.unfold_backward

    def function(grad: torch.Tensor) -> torch.Tensor:
        return unfold(unfold(grad, [32, 512, 2, 20, 12], 3, 12, 8), [32, 512, 20, 20], 2, 12, 8)

    return Case(function, (grad,), grad.nbytes + 32 * 512 * 400 * grad.itemsize)


def average_pool_backward(dtype: torch.dtype) -> Case:
    """The gradient of an average pool of 3 by 3 (res2net50)."""
    grad = torch.randn(32, 104, 56, 56, device="cuda").to(dtype).to(memory_format=torch.channels_last)
    x = torch.randn_like(grad)
    back = torch.ops.aten.avg_pool2d_backward
    function = lambda grad, x: back(grad, x, [3, 3], [1, 1], [1, 1], False, True, None)  # noqa: E731
    return Case(function, (grad, x), 2 * grad.nbytes)


def channel_softmax(dtype: torch.dtype) -> Case:
    """A softmax over four channels, whose values lie apart."""
    x = torch.randn(64, 4, 256, 512, device="cuda").to(dtype)
    return Case(lambda x: F.softmax(x, 1), (x,), 2 * x.nbytes)


MODEL_CASES: Mapping[str, Callable[[torch.dtype], Case]] = {
    **{f"statistics {c} x {side}": _statistics(c, side) for c, side in STATISTICS},
    **{f"statistics backward {c} x {side}": _statistics_backward(c, side) for c, side in GRADIENTS},
    **{f"row sums {n} x {c}": _row_sums(n, c) for n, c in ((6272, 768), (25088, 384), (100352, 96))},
    "joined gradients": _joined_gradients(0),
    "joined gradients, one transposed": _joined_gradients(1),
    "joined gradients, two transposed": _joined_gradients(2),
    "joined gradients, windows": _joined_gradients(1, windows=True),
    "joined norms over tokens": _joined_norms(32, 196, 8, 48, over_tokens=True, sums=True),
    "joined norms": _joined_norms(2048, 64, 3, 32, over_tokens=False, sums=False),
    "joined norms and their sum": _joined_norms(2048, 64, 3, 32, over_tokens=False, sums=True),
    **{f"greatest of {n}": _greatest(n) for n in (2, 4, 8, 16)},
    "greatest of 4 backward": greatest_backward,
    "softmax of 4 channels": channel_softmax,
    "windows backward": windows_backward,
    "average pool backward": average_pool_backward,
}
"""By name."""

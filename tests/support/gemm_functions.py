"""What the cases of matrix products compute, and how their inputs are made: see `support.gemm_matrix`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from litz_contractions.products.configs import Config
from support.kernel_programs import randn

Make = Callable[[], Sequence[torch.Tensor]]


F = torch.nn.functional
HALF = 8e-3
"""The tolerance of half types."""


def mm(m: int, k: int, n: int, dtype: torch.dtype = torch.float32) -> Make:
    return lambda: (randn(m, k, dtype=dtype), randn(k, n, dtype=dtype))


def conv(*sizes: Sequence[int], dtype: torch.dtype = torch.float32, last: bool = False) -> Make:
    """Input, weight and, if there is a third size, bias; `last`: with the channels last."""

    def make() -> Sequence[torch.Tensor]:
        found = [randn(*size, dtype=dtype) for size in sizes]
        if not last:
            return found
        form = torch.channels_last if len(sizes[0]) == 4 else torch.channels_last_3d
        return [t.contiguous(memory_format=form) if t.dim() > 3 else t for t in found]

    return make


def mm_mm(dtype: torch.dtype = torch.float32) -> Make:
    return lambda: tuple(randn(*s, dtype=dtype) for s in ((33, 40), (40, 50), (33, 20), (20, 50)))


def scaled(*scales: Sequence[int]) -> Make:
    """float8 operands and their scales."""
    return lambda: (
        randn(64, 128).to(torch.float8_e4m3fn),
        randn(96, 128).to(torch.float8_e4m3fn).t(),
        *(randn(*size).abs() for size in scales),
    )


def scaled_mm(a: torch.Tensor, b: torch.Tensor, *scales: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(a, b, scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16)


def in_blocks(block_a: Sequence[int], block_b: Sequence[int], m: int = 70, n: int = 192, k: int = 256) -> Make:
    """float8 operands with a scale for each block, of (rows, depth)."""

    def make() -> tuple[torch.Tensor, ...]:
        a, b = randn(m, k).to(torch.float8_e4m3fn), randn(n, k).to(torch.float8_e4m3fn)
        scales = [randn(k // each[1], -(-rows // each[0])).abs() for each, rows in ((block_a, m), (block_b, n))]
        return a, b.t(), scales[0].t(), scales[1]

    return make


def by_blocks(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """In float64."""
    wide = []
    for scale, rows in ((scale_a, a.shape[0]), (scale_b.t(), b.shape[1])):
        each = scale if scale.shape[0] == rows else scale.repeat_interleave(128, 0)[:rows]
        wide.append(each.repeat_interleave(128, 1))
    return (a * wide[0]) @ (b * wide[1].t())


def quantised(a: torch.Tensor, b: torch.Tensor, *scales: torch.Tensor) -> torch.Tensor:
    """A product and what makes float8 of it again."""
    y = torch._scaled_mm(a, b, scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16)
    return (F.silu(y.float()) / 8).to(torch.float8_e4m3fn)


def made_and_scaled(x: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    made = (x.float() * 8).clamp(-448, 448).to(torch.float8_e4m3fn)
    one = torch.full_like(s, 0.125)
    return F.relu(torch._scaled_mm(made, w, scale_a=one, scale_b=s, out_dtype=torch.bfloat16))


def scaled_v2(recipe: int) -> Callable[..., torch.Tensor]:
    def call(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
        x, y = a.view(a.shape), b.view(b.shape)  # a graph's inputs come in the order of their first use
        return torch.ops.aten._scaled_mm_v2(
            x, y, [scale_a], [recipe], [0], [scale_b], [recipe], [0], None, torch.bfloat16
        )

    return call


def scaled_exactly(a: torch.Tensor, b: torch.Tensor, *scales: torch.Tensor) -> torch.Tensor:
    return (a @ b) * scales[0] * scales[1]


def linear_int4(block: int) -> Callable[..., Any]:
    """A linear layer whose weights are packed two to a byte, with a scale for each `block` of them."""

    def f(w: torch.Tensor, s: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        values = torch.stack((w & 15, w >> 4), -1).reshape(w.shape[0], -1).to(s.dtype) - 8
        scaled = values.reshape(w.shape[0], -1, block) * s.unsqueeze(-1)
        return F.linear(x, scaled.reshape(w.shape[0], -1))

    return f


def int4(m: int, n: int, k: int, block: int, dtype: torch.dtype = torch.float16) -> Make:
    return lambda: (
        torch.randint(0, 255, (n, k // 2), dtype=torch.uint8),
        randn(n, k // block, dtype=dtype),
        randn(m, k, dtype=dtype),
    )


INT4 = Config(16, 32, 16, 3, 4)
OF_INT4: dict[str, Any] = {"tolerance": HALF}

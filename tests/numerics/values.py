"""Values in which kernels differ, if they differ: edges, random bits, and each way for a tensor to lie."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from litz_testing.tensors import other_bits

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, torch.float64, *HALVES)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def edges(dtype: torch.dtype) -> torch.Tensor:
    """Returns zeros of both signs, infinities, NaN, subnormal numbers, halves between whole numbers and the ends."""
    if dtype == torch.bool:
        return torch.tensor([True, False])
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        return torch.tensor([limits.min, limits.min + 1, 0, 1, 2, 3, 6, limits.max - 1, limits.max], dtype=dtype)
    limits = torch.finfo(dtype)
    usual = [0.0, 0.5, 1.0, 1.5, 2.5, 3.0, 6.0, 0.1, 1 / 3, limits.tiny, limits.tiny / 2, limits.max, limits.eps]
    values = [sign * value for value in usual for sign in (1, -1)]
    return torch.tensor([*values, torch.inf, -torch.inf, torch.nan], dtype=torch.float64).to(dtype)


def random_bits(dtype: torch.dtype, count: int) -> torch.Tensor:
    """Returns values of random bits, NaN and subnormal numbers among them."""
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,)).bool()
    width = _BITS[dtype.itemsize]
    limits = torch.iinfo(width)
    return torch.randint(limits.min, limits.max, (count,), dtype=torch.int64).to(width).view(dtype)


def every_half(dtype: torch.dtype) -> torch.Tensor:
    """Returns all 65,536 values of a half type."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int64).to(torch.int16).view(dtype)


def operands(dtype: torch.dtype, count: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yields `count` operands each time: all pairs of edges (first), near numbers, random bits, strided, transposed
    and, of two, broadcast ones, of sizes 0, 1, 7 and 33."""
    first = edges(dtype)
    if count == 2:
        yield tuple(x.flatten() for x in torch.meshgrid(first, first.flip(0), indexing="ij"))
    else:
        yield tuple(first.roll(n) for n in range(count))

    def near() -> torch.Tensor:
        return torch.randn(33, 7).mul(4).to(dtype)

    yield tuple(near() for _ in range(count))
    yield tuple(random_bits(dtype, 7 * 33).view(7, 33).t() for _ in range(count))
    yield tuple(random_bits(dtype, 66)[::2] for _ in range(count))
    if count > 1:
        yield tuple(random_bits(dtype, 33).view(33, 1) if n else random_bits(dtype, 7) for n in range(count))
    yield tuple(random_bits(dtype, 1) for _ in range(count))
    yield tuple(random_bits(dtype, 0) for _ in range(count))


def same_bits(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Returns whether two tensors are equal: type, size, strides, and each value, zeros with their signs. NaN is NaN,
    whatever its other bits."""
    if (got.dtype, got.shape) != (want.dtype, want.shape) or (got.numel() > 1 and got.stride() != want.stride()):
        return False
    return not other_bits(got, want)

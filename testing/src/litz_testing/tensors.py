"""Questions about real tensors that the conformance run, the fuzzer and the tests ask."""

from __future__ import annotations

import torch


def is_dense(tensor: torch.Tensor) -> bool:
    """Returns whether the elements fill a stretch of memory, each in a place of its own."""
    step = 1
    for stride, extent in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n != 1):
        if stride != step:
            return False
        step *= extent
    return True


def lies_otherwise(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Returns whether `want` is dense, so that its strides count, and `got` of the same shape has others (but of
    extents 1)."""
    pairs = zip(want.shape, got.stride(), want.stride(), strict=True)
    return want.numel() > 1 and is_dense(want) and any(n > 1 and a != b for n, a, b in pairs)


def other_bits(got: torch.Tensor, want: torch.Tensor) -> int:
    """Returns how many elements of two real tensors of one type and shape differ. Zeros have signs; NaN is NaN,
    whatever its other bits."""
    if want.dtype.is_floating_point:
        got, want = got.double(), want.double()  # which holds each, and compares float8 too
    same = got == want
    if want.dtype.is_floating_point:
        same = (same & (got.signbit() == want.signbit())) | (got.isnan() & want.isnan())
    return int((~same).sum())


def overlaps(value: torch.Tensor) -> bool:
    """Returns whether several elements may lie in one place."""
    reach = 1
    for stride, extent in sorted((s, n) for n, s in zip(value.shape, value.stride(), strict=True) if n > 1):
        if stride < reach:
            return True
        reach += stride * (extent - 1)
    return False


def eager_or_exact(got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Returns what to compare a floating-point result with: eager's, and float64's (rounded) at elements where one of
    eager and the result is infinite or NaN and the other is not, or is so in another way.

    Eager's vector kernels are not right for all numbers: with AVX-512, gelu of infinity is NaN, and gelu of a float32
    beyond half of its range infinite. A machine with AVX2 gives the right ones.
    """
    unlike = got.isnan() != want.isnan()
    unlike |= (got.isinf() | want.isinf()) & (got != want) & ~(got.isnan() & want.isnan())
    return torch.where(unlike, exact.to(want.dtype), want)


def in_range(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns where C defines a conversion to an integer dtype: the whole part of the number is one of the dtype's
    values. Elsewhere the result is the processor's and the compiler's."""
    info, whole = torch.iinfo(dtype), values.double().trunc()
    # Beyond 2**53 the greatest number is rounded up, to one that the type lacks.
    return (whole >= info.min) & (whole < float(info.max) + 1 if info.max >= 2**53 else whole <= info.max)

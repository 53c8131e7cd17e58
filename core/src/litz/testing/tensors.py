"""Questions about real tensors that the conformance run and the fuzzer both ask."""

from __future__ import annotations

import torch


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill a stretch of memory, each its own place."""
    step = 1
    for stride, extent in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n != 1):
        if stride != step:
            return False
        step *= extent
    return True


def overlaps(value: torch.Tensor) -> bool:
    """Whether several elements may lie in one place."""
    reach = 1
    for stride, extent in sorted((s, n) for n, s in zip(value.shape, value.stride(), strict=True) if n > 1):
        if stride < reach:
            return True
        reach += stride * (extent - 1)
    return False

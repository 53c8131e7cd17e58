"""What torch's library has for this processor. In: nothing. Out: types."""

from __future__ import annotations

from functools import cache

import torch

QUESTIONS = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
"""The names of torch's functions that say whether its library has kernels of a type for this processor."""


@cache
def without_kernels() -> frozenset[torch.dtype]:
    """Returns the half types of which torch's library has no products for this processor: oneDNN has some for AVX-512
    and later extensions. A build of torch without oneDNN does not say, and has others."""
    asked = {dtype: getattr(torch.ops.mkldnn, name, None) for dtype, name in QUESTIONS.items()}
    return frozenset(dtype for dtype, supported in asked.items() if supported is not None and not supported())


__all__ = ["without_kernels"]

"""Which kernel torch would pick for scaled_dot_product_attention."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend


def is_unfused(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> bool:
    """Would torch do without a fused kernel, on a CUDA device? The arguments are scaled_dot_product_attention's;
    tensors may be fake. False where nobody knows: on another device, or where this build of torch has no CUDA."""
    if query.device.type != "cuda" or not torch.backends.cuda.is_built():
        return False
    try:
        return int(torch._fused_sdp_choice(query, key, value, *args, **kwargs)) == int(SDPBackend.MATH.value)
    except RuntimeError:
        return False

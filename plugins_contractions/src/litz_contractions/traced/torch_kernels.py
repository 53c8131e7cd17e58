"""Which kernel torch would pick for scaled_dot_product_attention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from litz.capture.decompositions import FUSED_ATTENTION
from litz.capture.torch_api import fake_mode_around


def is_unfused(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> bool:
    """Returns whether torch would do without a fused kernel, on a device with the ability "fused_attention". In: what
    scaled_dot_product_attention takes, with fake tensors. False where nobody knows: this machine has no such device.

    torch is asked by the call itself. `torch._fused_sdp_choice` has a kernel of its own for fake tensors, which
    answers that there is no fused one, whatever the device (torch 2.11 to 2.13).
    """
    if not torch.get_device_module(query.device).is_available():
        return False
    return is_in_pieces(query, key, value, *args, **kwargs)


def is_in_pieces(*args: Any, **kwargs: Any) -> bool:
    """Returns whether a call of scaled_dot_product_attention with these arguments, fake tensors, calls no fused kernel.
    False where the call fails."""
    tensors = [item for item in (*args, *kwargs.values()) if isinstance(item, torch.Tensor)]
    with fake_mode_around(tensors), _Names() as called:
        try:
            F.scaled_dot_product_attention(*args, **kwargs)
        except RuntimeError:
            return False
    return called.names.isdisjoint(FUSED_ATTENTION)


class _Names(TorchDispatchMode):
    """Takes note of the names of the ops that are called, without namespace and overload."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))

"""Lowerings: torch's attention as an `Attention` or an `AttentionBackward`, which templates implement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from litz.lower import find_op

from .flex_attention import flex_attention
from .flex_attention_backward import flex_attention_backward
from .sdpa import attention

LOWERINGS: Mapping[str, Callable[..., Any]] = {
    "higher_order.flex_attention": flex_attention,
    "higher_order.flex_attention_backward": flex_attention_backward,
    "aten._scaled_dot_product_efficient_attention.default": attention,
    "aten._scaled_dot_product_flash_attention.default": attention,
    "aten._scaled_dot_product_cudnn_attention.default": attention,
}
"""By the name of the op."""


def attention_lowerings() -> Mapping[Any, Callable[..., Any]]:
    """Returns the lowerings by op, of the ops that this version of torch has."""
    found = {find_op(name): function for name, function in LOWERINGS.items()}
    return {op: function for op, function in found.items() if op is not None}

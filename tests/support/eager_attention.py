"""Eager's flex_attention without dynamo: what tests compare with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock


@contextmanager
def untraced() -> Iterator[None]:
    """Inside, eager's flex_attention calls its operator, which torch else traces for each function of the scores: the
    same bits in a tenth of the time (`test_eager_is_the_same_untraced`). Not for gradients."""
    import torch.nn.attention.flex_attention as module  # late: few tests need torch's attention

    with mock.patch.object(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True, create=True):
        yield


def called_directly(
    tensors: Any, score_mod: Any, block_mask: Any, scale: float | None, lse: bool
) -> Callable[[Any, Any, Any], Any]:
    """flex_attention of (query, key, value) as it calls its operator, without the checks before: of a trace these are
    the longer half. Of static sizes: it marks those that are never symbols."""
    import torch.nn.attention.flex_attention as module  # late: few tests need torch's attention

    query, key, value = tensors
    blocks = (block_mask or module._create_empty_block_mask(query, key)).as_tuple()
    options = module._apply_kernel_options(query, key, value, lse, None, None)
    score, scale = score_mod or module._identity, 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    operator = module.flex_attention_hop

    def attention(query: Any, key: Any, value: Any) -> Any:
        out, sums, _ = operator(query, key, value, score, blocks, scale, options)
        return (out, sums * math.log(2.0)) if lse else out

    return attention

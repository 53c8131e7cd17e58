"""Eager's flex_attention without dynamo: what tests compare with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


@contextmanager
def untraced() -> Iterator[None]:
    """Inside, eager's flex_attention calls its operator, which torch else traces for each function of the scores: the
    same bits in a tenth of the time (`test_eager_is_the_same_untraced`). Not for gradients."""
    import torch.nn.attention.flex_attention as module  # late: few tests need torch's attention

    with mock.patch.object(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True, create=True):
        yield

"""Calls of a compiled graph by which the user traces: with fake tensors, or under a mode of torch's for tracing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._guards import TracingContext
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


def is_users_trace(value: object) -> bool:
    """Returns whether the user traces a call of the compiled function with this tensor: a fake or functional one that
    is none of dynamo's own trace. Dynamo compiles for such tensors apart: its guards know each tensor's type."""
    from torch._subclasses.fake_tensor import maybe_get_fake_mode
    from torch._subclasses.functional_tensor import FunctionalTensor

    context = TracingContext.try_get()
    if context is None or not isinstance(value, torch.Tensor):
        return False
    if isinstance(value, FunctionalTensor) or torch._is_functional_tensor(value):
        return True
    mode = maybe_get_fake_mode(value)
    return mode is not None and mode is not context.fake_mode


def seen_by_modes(compiled: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """`compiled`, but `original`, the same by torch's own operations, under FakeTensorMode, under the modes of make_fx,
    and while tensors carry forward gradients: no guard of dynamo's sees them. Under other modes that ask for each
    operation dynamo calls no compiled code."""
    depth = torch._C._len_torch_dispatch_stack

    def call(*args: Any) -> Any:
        if (depth() and _is_traced()) or forward_ad._current_level >= 0:
            return original(*args)
        return compiled(*args)

    return call


def _is_traced() -> bool:
    context = TracingContext.try_get()
    # Under the trace's own mode DDP calls what it has compiled, for fake results that AOTAutograd has ready.
    own = context.fake_mode if context is not None and context.fakify_first_call else None
    return any(mode is not own and mode.is_infra_mode() for mode in _get_current_dispatch_mode_stack())

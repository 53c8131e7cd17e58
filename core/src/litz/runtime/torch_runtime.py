"""The few private torch functions that the runtime needs at run time; the twin of `capture/torch_api`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_guards: Any = torch._C._dynamo.guards
empty_cpu: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor] = _guards._empty_strided_cpu
"""`torch.empty_strided` for the CPU without its argument parsing: a quarter of the host time."""
empty_cuda: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor] = _guards._empty_strided_cuda
"""Allocates an uninitialised tensor on the current CUDA device."""
view: Callable[[torch.Tensor, tuple[int, ...], tuple[int, ...], int], torch.Tensor] = _guards._reinterpret_tensor
"""view(base, size, stride, offset): a strided part of `base`'s memory, `offset` in elements from base's own first. No
view to autograd, and nothing checks that it lies inside. A third of the host time of `as_strided`."""


def graph_is_kept() -> bool:
    """Returns whether the backward that runs keeps what was saved (`retain_graph=True`); True outside of a backward."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


mode_count: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""Returns how many dispatch modes are active."""


def tracing_mode() -> str:
    """Returns the name of an active mode of torch's for tracing: of fake tensors, of make_fx; '' if there is none."""
    modes = map(torch._C._get_dispatch_stack_at, range(mode_count()))
    return next((type(mode).__name__ for mode in modes if mode.is_infra_mode()), "")


def storage_of_allocator(nbytes: int, allocator: int) -> torch.UntypedStorage:
    """Returns a storage of host memory that comes from, and goes back to, the allocator at an address."""
    return torch.UntypedStorage(nbytes, allocator=allocator)  # type: ignore[call-arg]

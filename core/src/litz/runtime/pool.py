"""Host memory for what calls make: memory that its last owner gave back serves the next call.

A freshly mapped page costs a fault when it is first touched, which for an elementwise kernel is as slow as the kernel
itself. torch's own allocator maps blocks over 32 MiB anew each time, and gives the memory of a call's several blocks
back to the system. A storage of the pool has an allocator of its own (`host_memory.cpp`), to which memory returns when
torch frees the storage, and not before. So nobody is asked who holds what: tensors, views, NumPy arrays, capsules and
other processes' handles hold memory as they hold eager's, and a storage of the pool can be resized and shared.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from litz.cache.disk import Cache

from . import host_memory
from .torch_runtime import storage_of_allocator

SMALLEST = 1 << 17
"""Bytes. glibc serves requests below its mmap threshold (128 KiB by default) from memory that it keeps anyway."""
_CPU = torch.device("cpu")  # the user may have made another device the default


class Pool:
    """Makes tensors in host memory. find: returns the address of the allocator for large ones, or 0 where there is
    none; asked once, when there is a large one. Safe for several threads."""

    def __init__(self, find: Callable[[], int] = lambda: 0) -> None:
        self._find = find
        self._allocator: int | None = None
        self._lock = threading.Lock()

    def empty(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, nbytes: int) -> torch.Tensor:
        """Returns an uninitialised CPU tensor over a storage of `nbytes` bytes, at offset 0."""
        allocator = self._known() if nbytes >= SMALLEST else 0
        if not allocator:
            return torch.empty_strided(size, stride, dtype=dtype, device=_CPU)
        storage = storage_of_allocator(nbytes, allocator)
        return torch.empty(0, dtype=dtype, device=_CPU).set_(storage, 0, size, stride)  # type: ignore[call-overload, no-any-return]

    def _known(self) -> int:
        if self._allocator is None:
            with self._lock:
                if self._allocator is None:
                    self._allocator = self._find()
        return self._allocator


def pool_for(options: Any, cache: Cache) -> Pool:
    """Returns the pool that `Options` ask for. cache: where its allocator is built."""
    return Pool(partial(host_memory.load, options.cpp_compiler, cache)) if options.memory_pool else Pool()

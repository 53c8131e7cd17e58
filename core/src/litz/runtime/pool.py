"""Reuse of CPU memory between calls.

A freshly mapped page costs a fault when it is first touched, which for an elementwise kernel is as slow as the kernel
itself. The pool keeps the storages that it handed out and hands one out again once nobody else holds it: it asks the
storage's own reference count, so an output that the caller keeps, or any view of it, is safe for as long as it lives.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache

import torch

from .torch_runtime import storage_use_count

SMALLEST = 1 << 17
"""Bytes. glibc serves requests below its mmap threshold (128 KiB by default) from memory that it keeps anyway."""
_CPU = torch.device("cpu")  # the user may have made another device the default
KEEP_CALLS = 64
"""A storage that has been free for this many turns of the pool is given back."""


class Pool:
    """Storages by size, each lent until nobody but the pool holds it; with `keeps=False` each is a fresh one. Safe for
    several threads."""

    def __init__(self, keeps: bool = True) -> None:
        self._keeps = keeps
        self._free_since: dict[int, list[tuple[torch.UntypedStorage, int]]] = {}
        self._lock = threading.Lock()
        self._turn = 0

    def empty(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, nbytes: int) -> torch.Tensor:
        """Returns an uninitialised CPU tensor over a storage of `nbytes` bytes, at offset 0."""
        if nbytes < SMALLEST:
            return torch.empty_strided(size, stride, dtype=dtype, device=_CPU)
        return torch.empty(0, dtype=dtype, device=_CPU).set_(self._take(nbytes), 0, size, stride)  # type: ignore[call-overload]

    def _take(self, nbytes: int) -> torch.UntypedStorage:
        with self._lock:
            blocks = self._free_since.setdefault(nbytes, [])
            for position, (storage, _) in enumerate(blocks):
                if storage_use_count(storage) == 1:
                    # To the back: what is in use gathers there, and the search stays short.
                    blocks.append((blocks.pop(position)[0], self._turn))
                    return storage
            storage = torch.UntypedStorage(nbytes)
            if self._keeps:
                blocks.append((storage, self._turn))
            return storage

    def end_of_call(self) -> None:
        """Counts one call; from time to time frees storages that no call asked for lately."""
        self._turn += 1
        if self._turn % KEEP_CALLS:
            return
        with self._lock:
            for nbytes, blocks in list(self._free_since.items()):
                kept = [b for b in blocks if self._turn - b[1] <= KEEP_CALLS or storage_use_count(b[0]) > 1]
                if kept:
                    self._free_since[nbytes] = kept
                else:
                    del self._free_since[nbytes]


@cache
def shared_pool() -> Pool:
    """Returns the process's pool. Graphs that run in turn share its memory."""
    return Pool()

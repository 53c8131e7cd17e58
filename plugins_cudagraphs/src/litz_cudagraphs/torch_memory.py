"""The private torch functions that recordings need: owners of storages, and torch's caching allocator."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from litz.runtime.torch_runtime import empty_cuda

use_count: Callable[[int], int] = torch._C._storage_Use_Count
"""Returns how many owners a storage has, by the number that torch has for the storage."""


owns_block: Callable[[int], bool] = getattr(torch._C, "_has_Standard_Deleter", lambda number: True)
"""Returns whether a storage, by that number, owns a block of torch's caching allocator. A storage that was sent to
another process does not: torch keeps the block until that process is done. Builds of torch without CUDA have no such
function, and no such storages."""


def storage_use_count(storage: torch.UntypedStorage) -> int:
    """Returns how many owners a storage has, this Python object included."""
    return use_count(storage._cdata)


def storage_of(tensor: torch.Tensor) -> int:
    """Returns the number that torch has for a tensor's storage while the storage lives."""
    number: int = tensor.untyped_storage()._cdata
    return number


def storage_at(place: int, device: torch.device, size: int) -> torch.UntypedStorage:
    """Returns a storage of `size` bytes at an address. The storage does not own the memory, and cannot be resized."""
    storage: Any = torch._C._construct_storage_from_data_pointer(place, device, size)
    return storage


def storage_that_tells(owner: Any, place: int, device: torch.device, size: int) -> torch.UntypedStorage:
    """Returns a storage of `size` bytes (at least one) of a GPU's memory at an address. The storage does not own the
    memory, and holds `owner` for as long as the storage lives."""
    owner.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (place, False), "version": 2}
    return torch.as_tensor(owner, device=device).untyped_storage()


def may_be_freed(storage: torch.UntypedStorage) -> bool:
    """Returns whether `free_under` can be called: the memory is a block of torch's caching allocator, which the storage
    owns. torch needs NumPy for `storage_that_tells`."""
    return _has_numpy() and owns_block(storage._cdata)


def free_under(storage: torch.UntypedStorage) -> None:
    """Gives a storage's memory back to torch's caching allocator. The storage keeps its address, without owning it."""
    torch._C._free_And_Remove_DeleterFn(storage._cdata)


@cache
def _has_numpy() -> bool:
    return importlib.util.find_spec("numpy") is not None


def drop_library_workspaces() -> None:
    """Makes torch forget the memory that cuBLAS works in. The next product on each stream allocates memory anew."""
    torch._C._cuda_clearCublasWorkspaces()


def unused_bytes(pool: Any) -> int:
    """Returns the bytes that a pool of torch's caching allocator has, and that nothing uses. pool: its handle."""
    segments: Any = torch.cuda.memory_snapshot(pool)
    return sum(segment["total_size"] - segment["active_size"] for segment in segments)


def take_segment(nbytes: int) -> None:
    """Makes torch's caching allocator have so many free bytes of the current GPU in one piece. Nothing happens where a
    GPU has fewer, or where the user forbids to split such a piece (PYTORCH_CUDA_ALLOC_CONF's max_split_size_mb)."""
    if nbytes <= 0 or 0 < torch.cuda.memory_stats_as_nested_dict()["max_split_size"] < nbytes:
        return
    with contextlib.suppress(torch.OutOfMemoryError):
        empty_cuda((nbytes,), (1,), torch.uint8)

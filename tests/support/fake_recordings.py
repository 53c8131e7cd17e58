"""Recordings without a GPU: graphs that replay kernels at the addresses that they were recorded with, and pools of
memory that hand out again what was freed.

A recorded function takes memory by `empty` and computes by `launch`. While a graph is recorded, a launch only notes the
kernel and its tensors' addresses, as on a GPU. So what lies where is right or wrong as it would be there.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from litz_cudagraphs import ceding, lent, recordings, shared_memory
from litz_cudagraphs.torch_memory import storage_at, storage_of

CPU = torch.device("cpu")
ARENA = 1 << 18
Kernel = Callable[..., None]


class Arena:
    """The memory of one pool: the first gap that is large enough is taken. used: by address, the size and the number of
    what lies there."""

    def __init__(self) -> None:
        self.memory = torch.full((ARENA,), 255, dtype=torch.uint8)
        self.used: dict[int, tuple[int, int]] = {}
        self.peak = 0
        self.numbers = itertools.count()
        self.graphs = 0

    def wipe(self) -> None:
        """What is free when the last graph ends goes to others, who write there."""
        place = begin = self.memory.data_ptr()
        for used, (taken, _) in (*sorted(self.used.items()), (begin + ARENA, (0, 0))):
            self.memory[place - begin : used - begin] = 255
            place = used + taken

    def take(self, size: int) -> Block:
        place = begin = self.memory.data_ptr()
        for used, (taken, _) in sorted(self.used.items()):
            if used - place >= size:
                break
            place = used + taken
        assert place + size <= begin + ARENA
        self.peak = max(self.peak, place + size - begin)
        self.used[place] = (size, next(self.numbers))
        return Block(self, place)


class Block:
    """Memory that is in use for as long as this object lives, or until the arena is told that it is free."""

    def __init__(self, arena: Arena, place: int) -> None:
        self.arena, self.place, self.taken = arena, place, arena.used[place]

    def __del__(self) -> None:
        if self.arena.used.get(self.place) == self.taken:
            del self.arena.used[self.place]


class Graph:
    """In place of torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        self.steps: list[tuple[Kernel, list[Callable[[], Tensor]]]] = []
        self.arena: Arena | None = None

    def replay(self) -> None:
        for kernel, tensors in self.steps:
            kernel(*[tensor() for tensor in tensors])

    def __del__(self) -> None:
        if self.arena is not None:
            self.arena.graphs -= 1
            if not self.arena.graphs:
                self.arena.wipe()


class Machine:
    """The pools, by their handles, and the graph that is being recorded."""

    def __init__(self) -> None:
        self.arenas: dict[object, Arena] = {}
        self.recording: tuple[Graph, Arena] | None = None
        self.borrowed: set[int] = set()
        self.without_block: set[int] = set()

    @contextlib.contextmanager
    def record(self, graph: Graph, pool: object, **_: Any) -> Iterator[None]:
        arena = graph.arena = self.arenas.setdefault(pool, Arena())
        arena.graphs += 1
        self.recording = (graph, arena)
        try:
            yield
        finally:
            self.recording = None

    def empty(self, *shape: int) -> Tensor:
        if self.recording is None:
            return torch.full(shape, math.nan)
        size = math.prod(shape) * 4
        block = self.recording[1].take(size)
        return torch.frombuffer(_buffer(block, block.place, size), dtype=torch.float32).view(shape)

    def launch(self, kernel: Kernel, *tensors: Tensor) -> None:
        if self.recording is None:
            kernel(*tensors)
        else:
            self.recording[0].steps.append((kernel, [_at_its_place(tensor) for tensor in tensors]))

    def move(self, storage: torch.UntypedStorage) -> None:
        """As `lent._move`: storages over an arena cannot be resized, so each tensor gets another one."""
        new = storage.clone()
        assert self.recording is None
        # By type: asked for its class, a dead weak proxy raises.
        known = [item for item in gc.get_objects() if type(item) in (Tensor, torch.nn.Parameter)]
        gradients = [item.grad for item in known if item.is_leaf and item.grad is not None]  # not of Python's before
        for tensor in {id(item): item for item in (*known, *gradients)}.values():
            if storage_of(tensor) == storage._cdata:
                with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(tensor):
                    tensor.set_(new, tensor.storage_offset(), tensor.shape, tensor.stride())  # type: ignore[call-overload]

    def storage_that_tells(self, owner: Any, place: int, _: torch.device, size: int) -> torch.UntypedStorage:
        holder = _Holder(owner, self.borrowed)
        storage = torch.frombuffer(_buffer(holder, place, size), dtype=torch.uint8).untyped_storage()
        holder.borrow(storage)
        return storage

    def owns_memory(self, storage: torch.UntypedStorage) -> bool:
        return storage._cdata not in self.borrowed and self.arena_of(storage) is not None

    def arena_of(self, storage: torch.UntypedStorage) -> Arena | None:
        return next((arena for arena in self.arenas.values() if storage.data_ptr() in arena.used), None)

    def free(self, storage: torch.UntypedStorage) -> None:
        arena = self.arena_of(storage)
        assert arena is not None
        del arena.used[storage.data_ptr()]
        self.without_block.add(storage._cdata)

    def send(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Another process gets a tensor: torch keeps its block until that process is done, and the storage does not
        own the block any more. Returns what that process finds there."""
        found, arena = _at_its_place(tensor), self.arena_of(tensor.untyped_storage())
        assert arena is not None
        arena.used[tensor.untyped_storage().data_ptr()] = (tensor.nbytes, next(arena.numbers))  # no Block frees it
        self.without_block.add(storage_of(tensor))
        return lambda: found().clone()

    def owns_block(self, number: int) -> bool:
        return number not in self.without_block

    @property
    def peak(self) -> int:
        """Bytes of the pools that have graphs."""
        return sum(arena.peak for arena in self.arenas.values() if arena.graphs)


def machine(patch: pytest.MonkeyPatch) -> Machine:
    """Returns a machine on which litz records for as long as the patch holds."""
    made, numbers = Machine(), itertools.count(1)
    patch.setattr(torch.cuda, "CUDAGraph", Graph)
    patch.setattr(torch.cuda, "graph", made.record)
    patch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, next(numbers)))
    patch.setattr(recordings, "_stream", lambda: (0, 0))
    patch.setattr(recordings, "_capturing", lambda: False)
    patch.setattr(recordings, "drop_library_workspaces", lambda: None)
    patch.setattr(recordings, "take_segment", lambda nbytes: None)
    patch.setattr(shared_memory, "unused_bytes", lambda pool: 0)
    patch.setattr(lent, "_move", made.move)
    patch.setattr(recordings, "room_for", lambda tensor: made.empty(*tensor.shape))
    patch.setattr(lent, "can_move", made.owns_memory)
    patch.setattr(ceding, "storage_that_tells", made.storage_that_tells)
    patch.setattr(ceding, "may_be_freed", made.owns_memory)
    patch.setattr(ceding, "free_under", made.free)
    patch.setattr(lent, "owns_block", made.owns_block)
    return made


def _buffer(owner: Any, place: int, size: int) -> Any:
    buffer = type("Buffer", (ctypes.c_uint8 * size,), {}).from_address(place)  # type: ignore[attr-defined]
    buffer.owner = owner
    return buffer


class _Holder:
    """Holds something for a storage that owns no memory, and notes which storages these are."""

    def __init__(self, held: Any, borrowed: set[int]) -> None:
        self.held, self.borrowed, self.number = held, borrowed, 0

    def borrow(self, storage: torch.UntypedStorage) -> None:
        self.number = storage._cdata
        self.borrowed.add(self.number)

    def __del__(self) -> None:
        self.borrowed.discard(self.number)


def _at_its_place(tensor: Tensor) -> Callable[[], Tensor]:
    storage = tensor.untyped_storage()
    place, size, like = storage.data_ptr(), storage.nbytes(), (tensor.storage_offset(), tensor.shape, tensor.stride())
    dtype = tensor.dtype
    return lambda: torch.empty(0, dtype=dtype).set_(storage_at(place, CPU, size), *like)  # type: ignore[call-overload]

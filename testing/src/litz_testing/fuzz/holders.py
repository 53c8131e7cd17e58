"""Ways to hold a tensor's memory without the tensor: whoever uses memory again must see each of them.

A holder takes a tensor, and returns a `Reader` that gives the tensor's elements as whoever holds them sees them later.
The caller drops the tensor, and compares `bits`: a storage, an address and a message to another process do not say
whether a tensor reads its memory as negated or conjugated. A `Change` does to a storage what its owner may do, and
holds nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy
import torch
import torch.multiprocessing.reductions  # with it, a pipe of Python's carries tensors as memory that is shared

Reader = Callable[[], torch.Tensor]
Holder = Callable[[torch.Tensor], Reader]
Change = Callable[[torch.UntypedStorage], object]
REFUSES = (TypeError, RuntimeError, BufferError)
"""What a holder raises for a tensor of which it cannot hold the memory: NumPy has no float8, DLPack no conjugated
view."""


WAITS = 30
"""Seconds that another process may take to answer."""


class Keeper:
    """Another process, which keeps the tensors that it is sent, and sends copies of them back."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_keep, args=(theirs, self._pipe), daemon=True)
        self._process.start()
        theirs.close()
        self._sent = 0
        self.close = weakref.finalize(self, _stop, self._pipe, self._process)

    def hold(self, value: torch.Tensor) -> Reader:
        """Returns a reader that asks the other process."""
        number, self._sent = self._sent, self._sent + 1
        self._pipe.send(value.detach())
        self._answer()  # it has mapped the memory

        def read() -> torch.Tensor:
            self._pipe.send(number)
            return torch.as_tensor(self._answer())

        return read

    def forget(self) -> None:
        """Makes the other process drop what it keeps."""
        self._pipe.send(None)
        self._answer()
        self._sent = 0

    def _answer(self) -> Any:
        if not self._pipe.poll(WAITS):
            raise TimeoutError(f"the process that keeps tensors has not answered for {WAITS} s")
        return self._pipe.recv()


def _keep(pipe: Any, theirs: Any) -> None:
    theirs.close()  # else the pipe never ends
    torch.set_num_threads(1)  # OpenMP's threads are not there after a fork, and a parallel loop would wait for them
    kept: list[torch.Tensor] = []
    with suppress(EOFError):
        while True:
            asked = pipe.recv()
            if isinstance(asked, torch.Tensor):
                kept.append(asked)
                pipe.send(None)
            elif asked is None:
                kept.clear()
                pipe.send(None)
            else:
                pipe.send(bits(kept[asked]).numpy().copy())
    os._exit(0)  # what the parent wants done at exit is the parent's


def _stop(pipe: Any, process: Any) -> None:
    pipe.close()
    process.join(5)


def bits(value: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of the elements as they are in memory, copied."""
    return _in_memory(value).clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def _in_memory(value: torch.Tensor) -> torch.Tensor:
    """The elements in the same memory, without a gradient, neither negated nor conjugated where they are read."""
    value = value.detach()
    value = torch._neg_view(value) if value.is_neg() else value
    return value.conj() if value.is_conj() else value


def _plain(value: torch.Tensor) -> torch.Tensor:
    """The elements in memory, as a type that NumPy and DLPack have."""
    value = _in_memory(value)
    return value.view(torch.int16) if value.dtype == torch.bfloat16 else value


def _in_storage(storage: torch.UntypedStorage, value: torch.Tensor) -> Reader:
    """Reads a storage in which elements lie as those of `value` do in its own. The reader does not hold `value`."""
    dtype, place = value.dtype, (value.storage_offset(), value.shape, value.stride())
    return lambda: torch.empty(0, dtype=dtype).set_(storage, *place)  # type: ignore[call-overload, no-any-return]


def _itself(value: torch.Tensor) -> Reader:
    return lambda: value


def _view(value: torch.Tensor) -> Reader:
    view = value.detach()[...]
    return lambda: view


def _storage(value: torch.Tensor) -> Reader:
    return _in_storage(value.untyped_storage(), value)


def _other_tensor(value: torch.Tensor) -> Reader:
    other = _in_storage(value.untyped_storage(), value)()
    return lambda: other


def _numpy(value: torch.Tensor) -> Reader:
    array = _plain(value).numpy()
    return lambda: torch.from_numpy(array)


def _buffer(value: torch.Tensor) -> Reader:
    array: Any = _plain(value).numpy()
    buffer = memoryview(array)
    return lambda: torch.from_numpy(numpy.asarray(buffer))


def _capsule(value: torch.Tensor) -> Reader:
    capsule = torch.utils.dlpack.to_dlpack(_plain(value))
    return lambda: torch.utils.dlpack.from_dlpack(capsule)  # type: ignore[no-any-return]


class _Saves(torch.autograd.Function):
    """Saves a value for a backward, which reads it as it is: a product with 1 has other bits where it is NaN."""

    @staticmethod
    def forward(ctx: Any, factor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(value)
        return factor.clone()


def _saved_for_backward(value: torch.Tensor) -> Reader:
    result: Any = _Saves.apply(torch.ones((), requires_grad=True), _in_memory(value))
    return lambda: result.grad_fn.saved_tensors[0]  # type: ignore[no-any-return]


def _shared_by_descriptor(value: torch.Tensor) -> Reader:
    """Returns a reader of what another process maps that was sent the descriptor."""
    descriptor, size = value.untyped_storage()._share_fd_cpu_()
    mapped: Any = torch.UntypedStorage
    return _in_storage(mapped._new_shared_fd_cpu(os.dup(descriptor), size), value)


def _shared_by_file(value: torch.Tensor) -> Reader:
    """Returns a reader of what another process maps that was sent the name."""
    parts = value.untyped_storage()._share_filename_cpu_()
    return _in_storage(torch.UntypedStorage._new_shared_filename_cpu(*parts), value)


HOLDERS: Mapping[str, Holder] = {
    "tensor": _itself,
    "view": _view,
    "untyped_storage()": _storage,
    "set_": _other_tensor,
    "numpy()": _numpy,
    "memoryview": _buffer,
    "DLPack": _capsule,
    "saved for backward": _saved_for_backward,
    "shared by descriptor": _shared_by_descriptor,
    "shared by file": _shared_by_file,
}
SENT = ("shared by descriptor", "shared by file", "another process")
"""Of the holders, `Keeper.hold` among them, those that move a storage into memory that processes share."""
CHANGES: Mapping[str, Change] = {
    "emptied": lambda storage: storage.resize_(0),
    "grown": lambda storage: storage.resize_(2 * storage.nbytes() + 64),
    "share_memory_()": lambda storage: storage.share_memory_(),
}

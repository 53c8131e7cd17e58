"""Outputs of a recording: callers get the recording's memory itself, and keep what they hold.

A replay writes its outputs to the same memory each time. Before a replay litz asks which outputs somebody still holds
(`Outputs.held`): an output, a view of an output, a tensor that autograd saved, or another process. If there is one,
litz makes the recording anew, elsewhere, and the new recording copies this output for each caller, before any other
recording runs. So memory that somebody holds is neither written nor moved: any thread may be about to hand its address
to the GPU, and any stream may have a kernel that is still to read there. The same is done for an output whose memory
somebody gave back (`storage.resize_(0)`). A caller who drops outputs before the next call pays nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from sys import getrefcount
from typing import Any

import torch

from litz.runtime.torch_runtime import empty_cuda

from .torch_memory import owns_block, storage_at, storage_of, storage_use_count, use_count


@dataclass(eq=False)
class Loan:
    """Memory that callers get. storage: of the memory. number: what torch has for the storage. idle: how many
    references the storage has while no caller holds the memory. outputs: the positions of the outputs in this memory.
    place: its address. owned: whether the storage owned a block of torch's allocator when the memory was lent. ceded:
    the number of the recording that was the first to get the memory for its own use after it had read it
    (`ceding.py`), 0 while there is none."""

    storage: torch.UntypedStorage
    number: int
    idle: int
    outputs: list[int]
    place: int
    owned: bool
    ceded: int = 0

    def is_held(self, by: int = 0) -> bool:
        """Returns whether somebody holds the memory besides `by` tensors that are known. Of what was sent to another
        process nobody can tell when that process is done: it is held for ever."""
        return use_count(self.number) > self.idle + by or _is_known_to_python(self) or self._was_sent()

    def is_elsewhere(self) -> bool:
        """Returns whether somebody resized the storage, so that the memory is not under the outputs any more."""
        return self.storage.data_ptr() != self.place

    def owns(self) -> bool:
        """Returns whether the storage owns its block while nobody has sent or resized the storage."""
        return self.owned and not self.ceded

    def _was_sent(self) -> bool:
        return self.owns() and not owns_block(self.number) and not self.is_elsewhere()


class Outputs:
    """In: what the recorded function returned, callers' inputs left out. A tensor that others hold as well (a constant
    of the graph), or one that cannot move, is copied for each caller. ceded: the first recording that got some of the
    memory for its own use, 0 while there is none."""

    def __init__(self, returned: Sequence[Any]) -> None:
        # Without autograd's references to bases, which would count as somebody's.
        self.values = [value.data if isinstance(value, torch.Tensor) else value for value in returned]
        self.loans: list[Loan] = []
        self.ceded = 0
        self._note()

    def settle(self, to_copy: Collection[int] = ()) -> None:
        """Finds what can be lent. Call it when nobody else refers to what the recorded function returned. to_copy: the
        positions of outputs that are not lent."""
        if torch.cuda.is_available() and torch.cuda.get_allocator_backend() != "native":
            return  # another allocator may give a recording's free memory to others
        alike: dict[int, list[int]] = {}
        for position, value in enumerate(self.values):
            if isinstance(value, torch.Tensor):
                alike.setdefault(storage_of(value), []).append(position)
        one = _references(torch.empty(1, device="cpu")) - 1  # of the question itself
        for positions in alike.values():
            if not set(positions).isdisjoint(to_copy):
                continue
            first = self.values[positions[0]]
            if _references(first) == one + len(positions) and can_move(first.untyped_storage()):
                storage = first.untyped_storage()
                number, place = storage._cdata, storage.data_ptr()
                self.loans.append(Loan(storage, number, one + len(positions), positions, place, owns_block(number)))
        self._note()

    def held(self) -> list[Loan]:
        """Returns what somebody holds of the memory. Each call asks this, so the usual answer takes few comparisons."""
        if (
            list(map(use_count, self._numbers)) == self._idle
            and list(map(owns_block, self._numbers)) == self._owned
            and not any(map(_is_known_to_python, self.loans))
        ):
            return []
        held = [loan for loan in self.loans if loan.is_held()]
        if not held:
            self._note()  # some have been ceded since
        return held

    def unavailable(self) -> list[Loan]:
        """Returns what a replay must not write and lend again: what somebody holds, or gave back."""
        held = self.held()
        return held + [loan for loan in self.loans if loan.is_elsewhere() and loan not in held]

    def _note(self) -> None:
        """Takes note of what the loans are now."""
        self._numbers = [loan.number for loan in self.loans]
        self._idle = [loan.idle for loan in self.loans]
        self._owned = [loan.owns() for loan in self.loans]
        lent = {position for loan in self.loans for position in loan.outputs}
        self._is_lent = [position in lent for position in range(len(self.values))]

    def held_of_ceded(self) -> list[Loan]:
        """Returns what somebody holds of the memory that other recordings write, too."""
        return [loan for loan in self.loans if loan.ceded and loan.is_held()]

    def keep(self, loans: Sequence[Loan]) -> None:
        """Drops all but some loans: the others' memory is free for other recordings."""
        kept = {position for loan in loans for position in loan.outputs}
        self.values = [value if position in kept else None for position, value in enumerate(self.values)]
        self.loans = list(loans)
        self._note()

    def move(self, loans: Sequence[Loan]) -> None:
        """Moves the contents of loans to memory of their own, under the tensors that callers hold."""
        for loan in loans:
            if loan.storage.nbytes():
                _move(loan.storage)
        self.keep([loan for loan in self.loans if loan not in loans])

    def given(self) -> list[Any]:
        """Returns each output for a caller, after a replay: a tensor lent, or a copy."""
        return [
            value.data if lent else copied(value) if isinstance(value, torch.Tensor) else value
            for value, lent in zip(self.values, self._is_lent, strict=True)
        ]


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy with the same strides, and with the conjugate and negative bits of the tensor: the graph was
    traced for these."""
    fresh = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return _with_bits(fresh, tensor).copy_(tensor)


def room_for(tensor: torch.Tensor) -> torch.Tensor:
    """Returns memory of the current GPU for such a copy. Nothing is written there, as `torch.empty` may do."""
    fresh = empty_cuda(tuple(tensor.shape), tensor.stride(), tensor.dtype)
    return _with_bits(fresh, tensor)


def can_move(storage: torch.UntypedStorage) -> bool:
    """Returns whether the contents of a storage can move to other memory under the tensors in the storage."""
    return storage.resizable()


def _is_known_to_python(loan: Loan) -> bool:
    """Returns whether somebody holds the storage's Python object, which is one for all who ask a tensor for its
    storage: torch counts all of them as one owner."""
    return getrefcount(loan.storage) > _idle_references()


@cache
def _idle_references() -> int:
    """Returns how many references the Python object of a storage has that a loan alone holds."""
    tensor = torch.empty(1, device="cpu")
    loan = Loan(tensor.untyped_storage(), 0, 0, [], 0, True)
    return getrefcount(loan.storage)


def _references(tensor: torch.Tensor) -> int:
    """Returns the number of tensors that share a tensor's storage, and a constant more."""
    return storage_use_count(tensor.untyped_storage())


def _move(storage: torch.UntypedStorage) -> None:
    """Moves the contents of a storage to other memory. Kernels of all streams that read there end before."""
    torch.cuda.synchronize(storage.device)
    storage.resize_(storage.nbytes())
    torch.cuda.synchronize(storage.device)


def unowned(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor at the place of another, whose memory it does not own."""
    storage = tensor.untyped_storage()
    return within(storage_at(storage.data_ptr(), storage.device, storage.nbytes()), tensor)


def within(storage: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    """Returns a tensor that lies in a storage as `like` lies in the storage of `like`."""
    empty = torch.empty(0, dtype=like.dtype, device=like.device)
    return _with_bits(empty.set_(storage, like.storage_offset(), like.shape, like.stride()), like)


def _with_bits(fresh: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    fresh = fresh.conj() if like.is_conj() else fresh
    return fresh._neg_view() if like.is_neg() else fresh

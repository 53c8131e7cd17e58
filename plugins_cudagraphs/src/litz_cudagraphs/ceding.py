"""Memory that a forward's recording cedes to the recording of its backward.

What a forward saves for its backward alone is dead once the backward has read it. While the backward is recorded, its
inputs lie in storages that do not own their memory. The generated code lets go of each tensor after its last use. When
the last tensor in such a storage goes, the memory goes back to the pool, and the backward's temporaries and outputs
take it. The forward's storage stays where it is, over memory that is no longer its own.

So a replay of the backward writes over what the forward saved, and so may every later recording of the pool
(`Loan.ceded` says from which one on). `shared_memory.py` asks before each replay who holds such memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from .lent import Loan, Outputs, within
from .torch_memory import free_under, may_be_freed, storage_of, storage_that_tells


class _Deed:
    """A loan of which a recording that is being made gets the memory. number: of the recording in its pool."""

    def __init__(self, loan: Loan, number: int) -> None:
        self.loan, self.number = loan, number
        self.open = True

    def end(self) -> None:
        """Called when nothing of the recording lies in the memory any more."""
        if self.open:
            self.open = False
            self.loan.ceded = self.number
            free_under(self.loan.storage)


class _Owner:
    """The object that a storage over ceded memory holds: the end of the one is the end of the other."""

    def __init__(self, deed: _Deed) -> None:
        self._deed = deed

    def __del__(self) -> None:
        self._deed.end()


class Handover:
    """The inputs of a recording that is being made whose memory it gets. inputs: the tensors to record with, by
    position; whoever records empties this."""

    def __init__(self, args: Sequence[Any], loans: Mapping[Loan, Sequence[int]], number: int) -> None:
        self.inputs: dict[int, torch.Tensor] = {}
        self._deeds: dict[_Deed, int] = {}
        for loan, positions in loans.items():
            deed, old = _Deed(loan, number), loan.storage
            self._deeds[deed] = _tensors(args, positions)
            if not positions:
                deed.end()
                continue
            storage = storage_that_tells(_Owner(deed), old.data_ptr(), old.device, old.nbytes())
            self.inputs |= {position: within(storage, args[position]) for position in positions}

    def end(self) -> dict[Loan, int]:
        """Called when the recording has been made. Memory that something of the recording still lies in (an output that
        took an input's place) stays the forward's. Returns what was ceded: the loans, and how many inputs lie in
        each."""
        ceded = {deed.loan: inputs for deed, inputs in self._deeds.items() if not deed.open}
        for deed in self._deeds:
            deed.open = False
        return ceded


def to_cede(args: Sequence[Any], made: frozenset[int], out: Iterable[Outputs]) -> dict[Loan, list[int]]:
    """Returns the loans whose memory a backward may get, with the positions of its inputs in each. args: the inputs.
    made: positions of those that its forward made. out: what recordings of the pool have lent. Nobody may hold the
    memory besides the inputs. What a forward lent and nobody holds any more, such as results of which only the loss was
    wanted, goes with what it saved."""
    places: dict[int, list[int]] = {}
    for position, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            places.setdefault(storage_of(value), []).append(position)
    found: dict[Loan, list[int]] = {}
    for outputs in out:
        inside = {loan: places.get(loan.number, []) for loan in outputs.loans}
        if any(made.intersection(positions) for positions in inside.values()):
            found |= {loan: positions for loan, positions in inside.items() if made.issuperset(positions)}
    return {
        loan: positions
        for loan, positions in found.items()
        if not loan.is_held(_tensors(args, positions))
        and not loan.is_elsewhere()
        and loan.storage.nbytes()
        and may_be_freed(loan.storage)
    }


def _tensors(args: Sequence[Any], positions: Sequence[int]) -> int:
    """The number of inputs, each tensor once."""
    return len({id(args[position]) for position in positions})

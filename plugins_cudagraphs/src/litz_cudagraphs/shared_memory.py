"""The memory of recordings: those of a stream share one pool of torch's caching allocator.

Recording takes memory from the pool and gives back all but the outputs, which the recording keeps. So a later recording
works in the same memory as an earlier one, as two calls of ordinary code do, and a training step needs no more memory
with recordings than without. A recording's outputs lie where no later recording writes, since they were taken when the
later one was made. An earlier recording does write there: a replay of the earlier one would change an output of the
later one, if somebody still holds that output. Each replay asks for such outputs first (`Place.is_in_use`), and then
litz makes the earlier recording anew, in a pool of its own. So nothing is copied, and no caller sees values change.

A recording may cede memory of its outputs to a later one (`ceding.py`), and from then on later recordings do write
there. So a replay of a later recording asks for such memory, too, as does whoever makes a new recording.

torch's allocator gets each large block of a pool as a segment of its own, and a block that is free serves no request
for a little more. So a recording first takes what the pool lacks for it as one segment (`Pool.lacks`), in which blocks
that are free and adjacent become one.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from .lent import Loan, Outputs
from .torch_memory import unused_bytes


class Pool:
    """handle: torch's. out: by their numbers, the recordings whose outputs somebody may hold. The numbers are in the
    order in which the recordings were made."""

    def __init__(self) -> None:
        self.handle: Any = torch.cuda.graph_pool_handle()
        self.made = 0
        self.out: dict[int, Outputs] = {}

    def lacks(self, nbytes: int) -> int:
        """Returns how many of so many bytes the pool does not have."""
        return max(0, nbytes - unused_bytes(self.handle)) if nbytes > 0 else 0

    def place(self, outputs: Outputs, ceded: dict[Loan, int]) -> Place:
        """Returns the place of a recording that has just been made here. ceded: what it was ceded."""
        self.next()
        return Place(self, self.made, outputs, ceded)

    def next(self) -> None:
        """Counts a recording that was made, or failed, and takes note of what it was ceded."""
        self.made += 1
        for lent in self.out.values():
            lent.ceded = min((loan.ceded for loan in lent.loans if loan.ceded), default=0)

    def endangered(self, number: int) -> list[Loan]:
        """Returns what somebody holds and recording `number` may write over, whatever it has been ceded itself."""
        found: list[Loan] = []
        for other, outputs in list(self.out.items()):
            if other > number or 0 < outputs.ceded < number:
                held = outputs.held()
                if not held:
                    del self.out[other]
                found += [loan for loan in held if other > number or 0 < loan.ceded < number]
        return found

    def endangered_by_new(self) -> list[Loan]:
        """Returns what somebody holds and the next recording may write over."""
        return self.endangered(self.made + 1)


@dataclass(frozen=True)
class Place:
    """The place of a recording's memory. number: among the recordings of the pool. ceded: what the recording got of
    earlier recordings' outputs, and how many of its inputs lie in each."""

    pool: Pool
    number: int
    outputs: Outputs
    ceded: dict[Loan, int] = field(default_factory=dict)

    def endangered(self) -> list[Loan]:
        """Returns what somebody holds and a replay could change: outputs of later recordings, ceded outputs of earlier
        ones, and what the recording was ceded if others than its inputs hold that."""
        mine = [loan for loan, inputs in self.ceded.items() if loan.is_held(inputs)]
        return mine + self.pool.endangered(self.number)

    def leave(self) -> None:
        """Frees the outputs of a recording that ends, but for those that somebody holds."""
        self.outputs.keep(self.outputs.held())
        if not self.outputs.loans:
            self.pool.out.pop(self.number, None)

    def take(self) -> None:
        """Lends the recording's outputs. Call it before a replay, when nobody holds any."""
        if self.outputs.loans:
            self.pool.out[self.number] = self.outputs


@dataclass
class Pools:
    """The pools that recordings of each stream share. A pool lives as long as a recording in it."""

    of_streams: weakref.WeakValueDictionary[Any, Pool] = field(default_factory=weakref.WeakValueDictionary)

    def shared(self, stream: Any) -> Pool:
        """Returns the pool of a stream."""
        pool = self.of_streams.get(stream)
        if pool is None:
            pool = self.of_streams[stream] = Pool()
        return pool

    def own(self) -> Pool:
        """Returns a pool for one recording."""
        return Pool()

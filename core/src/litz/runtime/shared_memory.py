"""The memory of recordings: those of a stream share one pool of torch's caching allocator.

Recording takes memory from the pool and gives back all but the outputs, which the recording keeps. So a later recording
works in the same memory as an earlier one, as two calls of ordinary code do, and a training step needs no more memory
with recordings than without. A recording's outputs lie where no later recording writes, since they were taken when the
later one was made. An earlier recording does write there: a replay of the earlier one would change an output of the
later one, if somebody still holds that output. Each replay asks for such outputs first (`Place.is_in_use`), and then
litz makes the earlier recording anew, in a pool of its own. So nothing is copied, and no caller sees values change.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from .lent import Outputs


class Pool:
    """handle: torch's. out: by their numbers, the recordings whose outputs somebody may hold. The numbers are in the
    order in which the recordings were made."""

    def __init__(self) -> None:
        self.handle: Any = torch.cuda.graph_pool_handle()
        self.made = 0
        self.out: dict[int, Outputs] = {}

    def place(self, outputs: Outputs) -> Place:
        """Returns the place of a recording that has just been made here."""
        self.made += 1
        return Place(self, self.made, outputs)


@dataclass(frozen=True)
class Place:
    """Where a recording has its memory. number: among the recordings of the pool."""

    pool: Pool
    number: int
    outputs: Outputs

    def is_in_use(self) -> bool:
        """Returns whether a replay could change an output of a later recording that somebody holds."""
        later = [number for number in self.pool.out if number > self.number]
        for number in later:
            if self.pool.out[number].held():
                return True
            del self.pool.out[number]
        return False

    def take(self) -> None:
        """Makes the recording's own outputs free to be written, before a replay; the replay lends them again."""
        if self.pool.out.pop(self.number, None) is not None:
            self.outputs.take_back()
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

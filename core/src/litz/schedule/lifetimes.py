"""How long memory is needed. In: steps in their order. Out: `Lifetimes`, and the most memory needed at a time.

Memory is that of a buffer and of all its aliases, named by the first of them, its root.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import accumulate

from litz.ir import Program
from litz.ir.communication import flights
from litz.ir.operation import storage_roots

from .schedule import Step


class Lifetimes:
    """The steps at which each piece of memory, named by its root buffer, begins and ends."""

    def __init__(self, program: Program, steps: Sequence[Step]) -> None:
        self.program, self.steps = program, steps
        self.roots = storage_roots(steps)
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.fixed: set[str] = set()
        """Memory that is not freed: it belongs to the caller, or is returned."""
        communication = flights(steps, self.roots)
        for number, step in enumerate(steps):
            for part in (step, *communication.ended.get(number, ())):
                for name in (*part.reads, *part.writes):
                    root = self.root(name)
                    if program.buffers[name].kind != "temporary":
                        self.fixed.add(root)
                    self.first.setdefault(root, number)
                    self.last[root] = number
        for started in communication.endless:  # who knows when it is done?
            self.fixed.update(self.root(name) for name in (*started.reads, *started.writes))
        self.fixed.update(self.root(name) for name in program.output_buffers)

    def root(self, name: str) -> str:
        """Returns the buffer whose memory `name` uses, which is `name` unless the buffer is an alias."""
        return self.roots.get(name, name)

    def temporaries(self) -> list[str]:
        """Returns every piece of memory that the schedule allocates, by its first use."""
        return [name for name in self.first if self.program.buffers[name].kind == "temporary"]

    def by_step(self, when: Mapping[str, int]) -> list[list[str]]:
        """Returns the temporaries of each step, by `first` or by `last`."""
        found: list[list[str]] = [[] for _ in self.steps]
        for name in self.temporaries():
            found[when[name]].append(name)
        return found

    def may_be_taken(self, name: str) -> bool:
        """Returns whether another buffer could take over the memory of this one, once this one is dead."""
        # A layout with an offset starts inside of its storage; an alias shares it.
        return name not in self.fixed and name not in self.roots and self.program.buffers[name].layout.offset == 0

    def peak(self, reuse: Mapping[str, str], elsewhere: Container[str] = ()) -> int:
        """Returns the most bytes that temporaries and outputs take at a time. reuse: by buffer, the buffer whose memory
        it takes over (inputs' memory does not count). elsewhere: buffers that do not count."""
        return max(self._profile(self.temporaries(), reuse, elsewhere), default=0)

    def held(self, reuse: Mapping[str, str], elsewhere: Container[str] = ()) -> list[int]:
        """Returns the bytes held at each step: what `peak` counts, and inputs that die in this graph."""
        return self._profile([*self.temporaries(), *self.dying()], reuse, elsewhere)

    def _profile(self, names: Sequence[str], reuse: Mapping[str, str], elsewhere: Container[str]) -> list[int]:
        change = [0] * (len(self.steps) + 1)
        counted, taken = set(names), set(reuse.values())
        for name in names:
            if _first(name, reuse) not in counted:
                continue
            is_input = self.program.buffers[name].kind != "temporary"
            size = 0 if name in elsewhere else self.program.hint(self.program.buffers[name].nbytes)
            if name not in reuse:
                change[0 if is_input else self.first[name]] += size
            if name not in taken and (is_input or name not in self.fixed):
                change[self.last[name] + 1] -= size
        return list(accumulate(change))[:-1]

    def alive(self, number: int, reuse: Mapping[str, str]) -> list[str]:
        """Returns whose memory `held` counts at step `number`. Memory that others take over goes by the last of
        these."""
        first = {**self.first, **dict.fromkeys(self.dying(), 0)}
        over = {old for new, old in reuse.items() if first[new] <= number}
        names = (name for name in (*self.temporaries(), *self.dying()) if first[name] <= number and name not in over)
        kept = (self.fixed - set(self.dying())) | set(reuse.values())
        return [name for name in names if name in kept or self.last[name] >= number]

    def dying(self) -> list[str]:
        """Returns the inputs that a step uses and whose memory is free after their last use."""
        names = self.program.dying_inputs - set(self.program.output_buffers)
        return [name for name in self.program.input_buffers if name in names and name in self.last]


def _first(name: str, reuse: Mapping[str, str]) -> str:
    """Returns the buffer whose memory it was at first."""
    while name in reuse:
        name = reuse[name]
    return name


def held_bytes(program: Program, steps: Sequence[Step]) -> int:
    """Returns the most bytes that temporaries, outputs and dying inputs take at a time in this order."""
    return max(Lifetimes(program, steps).held({}), default=0)

"""How much memory a schedule takes while its order is being made. In: steps. Out: a `Live` that is told each step.

The rules are those of core's memory plan (`litz.schedule.lifetimes`): memory lives from the first step that
touches it to the last, what communication reads and writes until its wait, outputs to the end. Inputs that nobody else
holds (what a forward saved for its backward) live from the beginning to the last step that touches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from litz.ir import Program
from litz.ir.communication import flights
from litz.ir.operation import storage_roots
from litz.schedule.schedule import Step


def counts(name: str, program: Program) -> bool:
    """Returns whether the memory of a buffer comes or goes while the schedule runs."""
    return program.buffers[name].kind == "temporary" or name in program.dying_inputs


class Live:
    """Counts the bytes of temporaries, outputs and dying inputs that are live, step by step."""

    def __init__(self, program: Program, steps: Sequence[Step], sizes: dict[str, int] | None = None) -> None:
        """sizes: bytes of buffers that are known; others are added."""
        sizes = {} if sizes is None else sizes
        roots = storage_roots(steps)
        communication = flights(steps, roots)
        self.touched: list[tuple[str, ...]] = []
        for number, step in enumerate(steps):
            parts = (step, *communication.ended.get(number, ()))
            names = [roots.get(name, name) for part in parts for name in (*part.reads, *part.writes)]
            mine = dict.fromkeys(name for name in names if counts(name, program))
            self.touched.append(tuple(mine))
        everything = {name for names in self.touched for name in names}
        for name in everything - sizes.keys():
            sizes[name] = program.hint(program.buffers[name].nbytes)
        self.size = {name: sizes[name] for name in everything}
        self.left = dict.fromkeys(everything, 0)
        for touched in self.touched:
            for name in touched:
                self.left[name] += 1
        for name in program.output_buffers:
            root = roots.get(name, name)
            if root in self.left:
                self.left[root] += 1
        for started in communication.endless:
            for name in (*started.reads, *started.writes):
                root = roots.get(name, name)
                if root in self.left:
                    self.left[root] += 1
        self.given = frozenset(everything & program.dying_inputs)
        """Those that are there before the first step."""
        self.born: set[str] = set(self.given)
        self.now = self.peak = sum(self.size[name] for name in self.given)

    def profile(self) -> list[int]:
        """Returns the bytes that are live during each step, in the order given. Ask before any step runs."""
        last = {name: number for number, names in enumerate(self.touched) for name in names}
        first = {name: number for number in reversed(range(len(self.touched))) for name in self.touched[number]}
        uses = dict.fromkeys(self.size, 0)
        for names in self.touched:
            for name in names:
                uses[name] += 1
        change = [0] * (len(self.touched) + 1)
        for name, size in self.size.items():
            change[0 if name in self.given else first[name]] += size
            if uses[name] == self.left[name]:  # nobody outside keeps it
                change[last[name] + 1] -= size
        return list(accumulate(change[:-1]))

    def peak_in(self, order: Sequence[int]) -> int:
        """Returns the most bytes that are live at a time in another order of the steps. Ask before any step runs."""
        left = dict(self.left)
        born = set(self.born)
        now = peak = self.now
        for number in order:
            for name in self.touched[number]:
                if name not in born:
                    born.add(name)
                    now += self.size[name]
            peak = max(peak, now)
            for name in self.touched[number]:
                left[name] -= 1
                if not left[name]:
                    now -= self.size[name]
        return peak

    def allocated_by(self, number: int) -> int:
        """Returns the bytes that a step would allocate."""
        return sum(self.size[name] for name in self.touched[number] if name not in self.born)

    def freed_by(self, number: int) -> int:
        """Returns the bytes that nobody needs after a step."""
        return sum(self.size[name] for name in self.touched[number] if self.left[name] == 1)

    def take(self, number: int) -> None:
        """Lets one step run."""
        self.now += self.allocated_by(number)
        self.peak = max(self.peak, self.now)
        self.now -= self.freed_by(number)
        for name in self.touched[number]:
            self.born.add(name)
            self.left[name] -= 1

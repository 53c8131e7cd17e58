"""Fusion: the loops of a program into fewer kernels. In: a Program. Out: kernels and calls, and what was decided.

Greedy: of all pairs of loops that share a buffer, the one that saves most comes first. A pair is fused if the result
is legal (`merge`), makes no cycle, and is expected to take no longer than the two apart. Each pair that was
considered is on record with its reason.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from litz.ir import Extern, Loop, Program, Wait
from litz.logs.units import size_text
from litz.target import Room, figures_of
from litz_plugins import Decision, Gate
from litz_plugins.vetoes import key_of

from .contracted import ContractedGraph
from .dependences import dependences
from .estimate import Cost, CostModel, deciding
from .fusion_size import exceeds, too_large
from .lifetimes import held_bytes
from .merge import merge
from .schedule import Kernel, Step

Note = Callable[[Decision], None]

MAKER = "fuse"
"""The beginning of the keys of fusions (`litz_plugins.vetoes`)."""

NEIGHBOURS = 12
"""How many of the following readers of a buffer each reader is compared with."""


@dataclass(frozen=True)
class FusionFigures(Room):
    """Figures of fusion, which `target/figures/any/fusion.toml` explains."""

    table = "fusion"
    least_gain_share: float


WAITING = 1 / 64
"""Share of the peak of what is held: so much may what a kernel makes take, of loops joined for their launch alone."""

WAITING_BYTES = 1 << 20
"""The bytes of waiting memory that fusion may cost in any case."""


@dataclass
class _Group:
    """A loop, and the operations that went into it. `position` is that of the first."""

    position: int
    loop: Loop
    members: tuple[str, ...]
    cost: Cost
    points: int
    outputs: int
    version: int = 0


def fuse(
    program: Program,
    costs: CostModel,
    note: Note,
    enabled: bool = True,
    most: int | None = None,
    gate: Gate | None = None,
) -> tuple[Step, ...]:
    """Returns the program's operations as steps in a legal order, with loops fused into kernels. most: how many nodes
    of the graph a kernel may compute. gate: what must stay apart."""
    fusion = _Fusion(program, costs, note, most, gate or Gate())
    if enabled:
        fusion.run()
    return fusion.steps()


class _Fusion:
    def __init__(self, program: Program, costs: CostModel, note: Note, most: int | None, gate: Gate) -> None:
        self.program, self.costs, self.note, self.most, self.gate = program, costs, note, most, gate
        self.roots = program.roots
        self.graph = ContractedGraph(dependences(program.operations, program.buffers))
        place = program.positions
        self.readers = {name: {place[each.name] for each in found} for name, found in program.readers.items()}
        self.writers = {name: {place[each.name] for each in found} for name, found in program.writers.items()}
        self.in_order: dict[str, list[int]] = {}
        """The groups among the readers of a buffer, by number: worked out when they are asked for."""
        loops = {place[loop.name]: loop for loop in program.loops}
        self.groups = {position: self._group(position, loop, (loop.name,)) for position, loop in loops.items()}
        self.heap: list[tuple[float, int, int, int, int]] = []
        self.held: int | None = None

    def _group(self, position: int, loop: Loop, members: tuple[str, ...], cost: Cost | None = None) -> _Group:
        outer = self.costs.hint(loop.numel)
        inner = self.costs.hint(loop.reduction_numel)
        return _Group(position, loop, members, cost or self.costs.cost(loop), outer * inner, outer)

    def steps(self) -> tuple[Step, ...]:
        """Returns the present kernels and calls, in the program's order as far as the dependences allow."""
        found: list[Step] = []
        for number in self.graph.order():
            operation = self.program.operations[number]
            if isinstance(operation, Extern):
                found.append(operation)
            else:
                group = self.groups[number]
                found.append(Kernel(group.members[0], group.loop, group.members))
        return tuple(found)

    # ------------------------------------------------------------------------------------------------- candidates

    def run(self) -> None:
        for number in list(self.groups):
            self._propose(number, later_only=True)
        while self.heap:
            _, first, second, version1, version2 = heapq.heappop(self.heap)
            if self._is_current(first, version1) and self._is_current(second, version2):
                if self._try(first, second):
                    self._propose(first)
        self._join_small()

    def _is_current(self, number: int, version: int) -> bool:
        return number in self.groups and self.groups[number].version == version

    def _propose(self, number: int, later_only: bool = False) -> None:
        """Every pair of this group with another that shares a buffer."""
        scores: dict[int, float] = {}
        group = self.groups[number]
        target = self.costs.target(group.loop.device)
        made = [(name, self.readers[name], list[int]()) for name in group.loop.writes]
        used = [(name, self.writers[name], self._nearby(number, name)) for name in group.loop.reads]
        for name, partners, beside in made + used:
            saved = self.costs.nbytes(name) / target.usual_bandwidth
            for other in partners:
                # The reader need not read; where it is the only one, nobody need write either.
                times = 2 if len(self.readers[name]) == 1 else 1
                scores[other] = scores.get(other, target.launch_us) + times * saved
            for other in beside:
                scores[other] = scores.get(other, 0.0) + saved
        for other, score in scores.items():
            partner = self.groups.get(other)
            if partner is None or other == number or (later_only and other < number) or not _comparable(group, partner):
                continue
            first, second = sorted((number, other))
            versions = self.groups[first].version, self.groups[second].version
            heapq.heappush(self.heap, (-score, first, second, *versions))

    def _nearby(self, number: int, name: str) -> list[int]:
        """The groups that read a buffer, this one aside: of many, the nearest on either side with as many points."""
        if name not in self.in_order:
            self.in_order[name] = sorted(n for n in self.readers[name] if n in self.groups)
        readers = self.in_order[name]
        if len(readers) <= 2 * NEIGHBOURS + 1:
            return [n for n in readers if n != number]
        place, points = bisect_left(readers, number), self.groups[number].points
        before = self._alike((readers[n] for n in range(place - 1, -1, -1)), points)
        return before[::-1] + self._alike((readers[n] for n in range(place + 1, len(readers))), points)

    def _alike(self, numbers: Iterable[int], points: int) -> list[int]:
        """The first of some groups that have so many points."""
        return list(islice((n for n in numbers if self.groups[n].points == points), NEIGHBOURS))

    # ---------------------------------------------------------------------------------------------------- fusing

    def _try(self, first: int, second: int, related: bool = True) -> bool:
        """Fuse two groups, or say why not."""
        if self.graph.precedes(second, first):
            first, second = second, first
        a, b = self.groups[first], self.groups[second]
        found = self._merged(first, second, related)
        if isinstance(found, str):
            self._record(a, b, False, found, None)
            return False
        cost = self.costs.cost(found)
        figures = figures_of(self.costs.target(a.loop.device), FusionFigures)
        pays, reason = _weighed(a.cost, b.cost, cost, figures.least_gain_share)
        pays, why = self.gate.weigh(MAKER, _pair(a, b), pays, a.cost.us + b.cost.us, cost.us)
        reason = why or reason
        self._record(a, b, pays, reason, cost)
        if pays:
            self._contract(first, second, found, cost)
        return pays

    def _merged(self, first: int, second: int, related: bool) -> Loop | str:
        """Two groups as one loop, or why there is none."""
        a, b = self.groups[first].loop, self.groups[second].loop
        if exceeds(self.most, a, b):
            return too_large(self.most)
        if not self.graph.is_contractible(first, second):
            return "one kernel of both would create a cycle"
        most, outside = self.costs.target(a.device).most_buffers, {first, second}
        return merge(a, b, lambda name: self._needed(name, outside), self.roots, most, related)

    def _needed(self, name: str, inside: set[int]) -> bool:
        """Returns whether what a group inside writes to this buffer must be in memory."""
        if name in self.program.output_buffers or name in self.roots:
            return True
        if self.program.buffers[name].kind != "temporary":
            return True
        return not (self.readers[name] <= inside and self.writers[name] <= inside)

    def _contract(self, first: int, second: int, loop: Loop, cost: Cost) -> None:
        a, b = self.groups.pop(first), self.groups.pop(second)
        keep, gone = min(first, second), max(first, second)
        self.graph.contract(keep, gone)
        members = (*a.members, *b.members)
        group = self._group(keep, loop, members, cost)
        group.version = max(a.version, b.version) + 1
        self.groups[keep] = group
        for table, touched, now in (
            (self.readers, (*a.loop.reads, *b.loop.reads), set(loop.reads)),
            (self.writers, (*a.loop.writes, *b.loop.writes), set(loop.writes)),
        ):
            for name in touched:
                self.in_order.pop(name, None)
                table[name].discard(first)
                table[name].discard(second)
                if name in now:
                    table[name].add(keep)

    def _record(self, a: _Group, b: _Group, fused: bool, reason: str, together: Cost | None) -> None:
        subject = f"{_label(a)} and {_label(b)}"
        considered = (("apart", a.cost.us + b.cost.us), ("fused", None if together is None else together.us))
        by = "core" if together is None else deciding(a.cost, b.cost, together)
        key = key_of(self.gate.graph, MAKER, _pair(a, b))
        self.note(Decision("schedule", subject, "fused" if fused else "kept apart", reason, considered, by, key))

    # --------------------------------------------------------------------------------------------- small kernels

    def _join_small(self) -> None:
        """Loops over equal ranges that take little more than their launch: one kernel, even if they share nothing.

        Not a loop that can run at once with one that has to wait, for communication above all: what the first feeds, a
        gather of parameters for one, would wait too.
        """
        waits = sum(1 << n for n, operation in enumerate(self.program.operations) if isinstance(operation, Wait))
        alike: dict[tuple[object, ...], list[int]] = {}
        for number in sorted(self.groups):
            loop = self.groups[number].loop
            if self._is_small(number):
                # Rows and columns of one square are the same ranges, but not the same walk through memory.
                columns = loop.is_reduction and self.costs.reduces_columns(loop)
                above = self.graph.ancestors[number]
                held_up = (above & waits, bool(above)) if waits else None
                key = (loop.device, loop.ranges, loop.reduction_ranges, columns, held_up)
                alike.setdefault(key, []).append(number)
        first = {each[:-1]: numbers[0] for each, numbers in reversed(alike.items())}
        for each, (number, *_) in alike.items():
            if (other := self.groups[first[each[:-1]]]) is not self.groups[number]:
                self._record(other, self.groups[number], False, "one would wait for what the other needs not", None)
        for numbers in alike.values():
            current = numbers[0]
            for number in numbers[1:]:
                # What has grown beyond that is no better for one loop more, and has an accumulator more for each.
                joinable = self._is_small(current) and not self._waits_too_long(current, number)
                if joinable and self._try(current, number, related=False):
                    current = min(current, number)
                else:
                    current = number

    def _is_small(self, number: int) -> bool:
        """Returns whether a launch is more than half of what a group takes."""
        group = self.groups[number]
        return group.cost.us < 2 * self.costs.target(group.loop.device).launch_us

    def _waits_too_long(self, first: int, second: int) -> bool:
        """Returns whether a large part of what is held anyway would be in memory for longer: what the two make, most of
        it long before anyone reads it, and what the first of them alone reads, until the second can run."""
        a, b = self.groups[first], self.groups[second]
        both = {first, second}
        made = {name for group in (a, b) for name in group.loop.writes}
        read = {name for name in self.groups[min(both)].loop.reads if self.readers[name] <= both}
        for names, reason in (
            (made, "their results would wait in memory for the readers"),
            (read - made, "what one of them reads would wait in memory for the other"),
        ):
            waiting = sum(self._temporary_bytes(name) for name in names)
            if waiting > WAITING_BYTES and waiting > WAITING * self._held():
                self._record(a, b, False, reason, None)
                return True
        return False

    def _temporary_bytes(self, name: str) -> int:
        buffer = self.program.buffers[name]
        return self.costs.hint(buffer.nbytes) if buffer.kind == "temporary" else 0

    def _held(self) -> int:
        """The peak of what is held with the loops as they are before any of them is joined for its launch alone."""
        if self.held is None:
            self.held = held_bytes(self.program, self.steps())
        return self.held


def _comparable(a: _Group, b: _Group) -> bool:
    """Returns whether the iteration spaces may align, by their number of points: a cheap first look."""
    if a.loop.device != b.loop.device:
        return False
    if a.loop.is_reduction and b.loop.is_reduction:
        return a.points == b.points and a.outputs == b.outputs
    return not {a.points, a.outputs}.isdisjoint((b.points, b.outputs))


def _label(group: _Group) -> str:
    if len(group.members) <= 2:
        return "+".join(group.members)
    return f"{group.members[0]}+...+{group.members[-1]} ({len(group.members)})"


def _pair(a: _Group, b: _Group) -> str:
    """Returns a fusion's name in its key: by the first of each, as the others depend on what was fused before."""
    return f"{a.members[0]}+{b.members[0]}"


def _weighed(a: Cost, b: Cost, together: Cost, least_gain: float) -> tuple[bool, str]:
    """Returns whether one kernel is better than two, and why. least_gain: the smallest that is worth it, as a
    share of the time of the smaller one."""
    gain, saved = a.us + b.us - together.us, a.bytes + b.bytes - together.bytes
    if gain < 0:
        return False, _why_slower(a, b, together)
    if gain < least_gain * min(a.us, b.us):
        # What it holds in memory at the same time may cost more than the launch that it saves.
        return False, "the gain is smaller than the estimate's possible error"
    if saved < 0:
        return True, f"saves a launch, for {size_text(-saved)} more of memory traffic"
    return True, f"saves a launch and {size_text(saved)} of memory traffic"


def _why_slower(a: Cost, b: Cost, together: Cost) -> str:
    if together.bytes > a.bytes + b.bytes:
        return "one kernel would read memory with large strides, or more than once"
    if together.flops > 1.5 * (a.flops + b.flops):
        return "computing values again costs more than the memory traffic that it saves"
    return "too few outputs to keep the device busy"

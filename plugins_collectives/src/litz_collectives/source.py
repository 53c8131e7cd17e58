"""The steps that orders are made of: a schedule's, and these with some collectives in pieces. In: a Schedule, the
number of pieces by collective. Out: a `Source`.

Collectives have numbers, by which ranks tell each other their plans: those of the program's order, each piece next to
the others of its collective, however the steps around them lie on a rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from litz.ir import Collective, Program
from litz.schedule.dependences import dependences, topological
from litz.schedule.schedule import Kernel, Step
from litz_plugins import Estimate, PassContext

from .agree import Cuts
from .pieces import Cut, Piece, Site, cut
from .tasks import estimates_of

UNKNOWN = Estimate(0.0, 0.0, 0.0, "unknown")
At = tuple[float, tuple[int, ...]]
"""Where a step stands in an order: a position, and its turn at this position."""


@dataclass(frozen=True)
class Source:
    """Steps in the program's order. numbers: of the collectives, by name. cuts: number of pieces, by the number of the
    collective in the schedule. at: of steps that are pieces, the step in whose place they stand, and their turn."""

    program: Program
    steps: tuple[Step, ...]
    estimates: Mapping[str, Estimate]
    numbers: Mapping[str, int]
    cuts: Cuts = ()
    at: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)

    @cached_property
    def before(self) -> list[set[int]]:
        """Returns, for each step, the positions of the steps that it must follow."""
        return dependences(self.steps, self.program.buffers, collectives_stay=False)

    @cached_property
    def names(self) -> list[str]:
        """Returns the collectives' names, by their numbers."""
        return list(self.numbers)

    @cached_property
    def by_name(self) -> dict[str, Step]:
        """Returns the steps by their names."""
        return {step.name: step for step in self.steps}

    def is_later_piece(self, step: Step) -> bool:
        """Returns whether a step is a piece of which another one went ahead."""
        _, turn = self.at.get(step.name, ("", (0,)))
        return turn[0] > 0

    def places_in(self, order: Sequence[str], of: Source, members: Mapping[str, tuple[str, ...]]) -> dict[str, At]:
        """Returns where each step would stand in an order of another source's steps. members: by bucket, what is in
        it."""
        place: dict[str, At] = {}
        first: dict[str, float] = {}
        for number, name in enumerate(order):
            for one in members.get(name, (name,)):
                place[one] = (number, ())
                if one in of.at:
                    first.setdefault(of.at[one][0], number)
        found = {}
        for step in self.steps:
            anchor, turn = self.at.get(step.name, (step.name, ()))
            if step.name in place:
                found[step.name] = place[step.name]
            else:
                found[step.name] = (place[anchor][0] if anchor in place else first.get(anchor, len(order)), turn)
        return found


def whole_source(program: Program, steps: Sequence[Step], estimates: Mapping[str, Estimate]) -> Source:
    """Returns a schedule's steps as they are."""
    collectives = [step.name for step in steps if isinstance(step, Collective)]
    return Source(program, tuple(steps), estimates, {name: number for number, name in enumerate(collectives)})


class Cutter:
    """Makes sources of one schedule, each once."""

    def __init__(self, whole: Source, sites: Mapping[str, Site], context: PassContext) -> None:
        self.whole, self.sites, self.context = whole, sites, context
        self._made: dict[Cuts, Source] = {(): whole}
        self._cut: dict[tuple[str, int], tuple[Cut, Mapping[str, Estimate]]] = {}

    def cuts_of(self, counts: Mapping[str, int]) -> Cuts:
        """Returns numbers of pieces by a collective's name as a plan has them; 1 is no cut."""
        return tuple(sorted((self.whole.numbers[name], count) for name, count in counts.items() if count > 1))

    def counts_of(self, cuts: Cuts) -> dict[str, int]:
        """Returns the numbers of pieces by a collective's name."""
        return {self.whole.names[number]: count for number, count in cuts}

    def source(self, cuts: Cuts) -> Source:
        """Returns the steps with these collectives in pieces."""
        if cuts not in self._made:
            self._made[cuts] = self._in_pieces(cuts)
        return self._made[cuts]

    def _in_pieces(self, cuts: Cuts) -> Source:
        whole, counts = self.whole, self.counts_of(cuts)
        buffers, gone, lost = dict(whole.program.buffers), set[str](), set[str]()
        pieces, estimates = list[Piece](), dict(whole.estimates)
        for name, count in counts.items():
            made, known = self._one(name, count)
            pieces += made.pieces
            buffers |= made.buffers
            gone |= made.gone
            lost |= made.lost
            estimates |= known
        buffers = {name: buffer for name, buffer in buffers.items() if name not in lost}
        place: dict[str, At] = {step.name: (number, ()) for number, step in enumerate(whole.steps)}
        keys = place | {piece.step.name: (place[piece.at][0], piece.turn) for piece in pieces}
        kept = [step for step in whole.steps if step.name not in gone]
        steps = sorted((*kept, *(piece.step for piece in pieces)), key=lambda step: keys[step.name])
        at = {piece.step.name: (piece.wanted, piece.turn) for piece in pieces}
        wanted = place | {name: (place[anchor][0], turn) for name, (anchor, turn) in at.items()}
        before = dependences(steps, buffers, collectives_stay=False)
        steps = [steps[n] for n in in_order(steps, before, wanted)]
        program = replace(reordered(whole.program, steps), buffers=buffers)
        return Source(program, tuple(steps), estimates, self._numbers(counts), cuts, at)

    def _numbers(self, counts: Mapping[str, int]) -> dict[str, int]:
        """The numbers of collectives and pieces."""
        numbers = dict[str, int]()
        for name in self.whole.names:
            for one in self.started(name, counts.get(name, 1)):
                numbers[one] = len(numbers)
        return numbers

    def started(self, name: str, count: int) -> list[str]:
        """Returns the names of the collectives in which one is started in so many pieces."""
        if count < 2:
            return [name]
        return [one.step.name for one in self._one(name, count)[0].pieces if isinstance(one.step, Collective)]

    def added_by(self, cuts: Cuts) -> tuple[float, float]:
        """Returns the µs that the steps of some cuts take beyond those in whose place they are: likely, and at most."""
        us = most = 0.0
        for name, count in self.counts_of(cuts).items():
            made, known = self._one(name, count)
            times = [(1, known[piece.step.name]) for piece in made.pieces if piece.step.name in known]
            times += [(-1, self.whole.estimates[one]) for one in made.gone]
            us += sum(sign * one.us for sign, one in times)
            most += sum(sign * min(one.high_us, 10 * one.us) for sign, one in times)
        return us, most

    def _one(self, name: str, count: int) -> tuple[Cut, Mapping[str, Estimate]]:
        """One collective in pieces, and the times of these."""
        if (name, count) not in self._cut:
            made = cut(self.sites[name], count, self.whole.program)
            program = replace(self.whole.program, buffers={**self.whole.program.buffers, **made.buffers})
            steps = [piece.step for piece in made.pieces]
            known = dict.fromkeys((step.name for step in steps), UNKNOWN) | estimates_of(steps, program, self.context)
            self._cut[name, count] = made, known
        return self._cut[name, count]


def in_order(steps: Sequence[Step], before: Sequence[set[int]], places: Mapping[str, At]) -> list[int]:
    """Returns positions in the order that places ask for, as far as the dependences let it."""
    rank = {place: number for number, place in enumerate(sorted({places[step.name] for step in steps}))}
    return topological(before, lambda n: rank[places[steps[n].name]])


def reordered(program: Program, steps: Sequence[Step]) -> Program:
    """Returns the program with its operations in the order of the steps, and buckets and pieces in place of what they
    are of."""
    place_of = {operation.name: number for number, operation in enumerate(program.operations)}
    operations = []
    for step in steps:
        if isinstance(step, Kernel):
            operations += [program.operations[n] for n in sorted(place_of[name] for name in step.fused)]
        else:
            operations.append(step)
    return replace(program, operations=tuple(operations))

"""The orders of one schedule that `overlap` considers. In: a Schedule. Out: `Candidate`s, and the best of them.

steps --bucketed--> fewer, larger collectives --place--> an order --improve--> a better one --judged--> its score
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from litz.ir import Collective
from litz.schedule.dependences import dependences, topological
from litz.schedule.schedule import Schedule, Step
from litz_plugins import Estimate, PassContext

from .agree import Plan, source_plan
from .buckets import Bucketing, bucketed, merged_as
from .improve import improve, judged
from .live import Live
from .memory_limit import memory_limit
from .place import Work, place
from .streams import Task, replay, surely_gains
from .tasks import make_tasks, slowdown_of

CAPS = (0, 4 << 20, 16 << 20, 64 << 20, 256 << 20)
"""Sizes of buckets that are tried, in bytes; 0 merges nothing."""
IMPROVED = 3
"""How many of the fastest orders are worth the search for a better one."""


@dataclass(frozen=True)
class Candidate:
    """An order of the steps that `buckets` made. plan: its communication. us: what it is likely to take. score: what it
    takes by several corners of the estimates together (see `improve.judged`)."""

    name: str
    steps: tuple[Step, ...]
    buckets: Bucketing
    tasks: tuple[Task, ...]
    plan: Plan
    peak: int
    us: float
    score: float


class Planner:
    """Makes and rates orders of one schedule. estimates: of its steps, by name."""

    def __init__(self, schedule: Schedule, estimates: Mapping[str, Estimate], context: PassContext) -> None:
        self.schedule, self.context, self.program = schedule, context, schedule.program
        self.estimates = estimates
        self.place_of = {
            step.name: number
            for number, step in enumerate(step for step in schedule.steps if isinstance(step, Collective))
        }
        self.before = dependences(schedule.steps, self.program.buffers, collectives_stay=False)
        self.sizes: dict[str, int] = {}
        self.source = self._candidate("source order", schedule.steps, Bucketing(schedule.steps, estimates, {}))
        held = sum(
            self.program.hint(self.program.buffers[name].nbytes)
            for name in self.program.input_buffers
            if name not in self.program.dying_inputs
        )
        given = str(context.options.get("collectives.memory_limit") or "10%")
        self.limit = memory_limit(given, self.source.peak, held)
        self.considered: list[tuple[str, float | None]] = [("source order", self.source.us)]

    def best(self) -> Candidate:
        """Returns the fastest order that surely pays, else the order of the source."""
        candidates = self._candidates()
        few = sorted(candidates, key=self._rank)[:2]
        candidates += [self._placed(c.name + ", work held back", c.buckets, hold_back=True) for c in few]
        candidates = sorted(candidates, key=self._rank)
        candidates[:IMPROVED] = [self._improved(c) for c in candidates[:IMPROVED]]
        chosen = None
        for candidate in sorted(candidates, key=lambda one: one.score):
            why_not = ""
            if candidate.peak > self.limit:
                why_not = f", peak {candidate.peak} B"
            elif chosen is None and candidate.us < self.source.us:
                if surely_gains(candidate.tasks, self.source.tasks):
                    chosen = candidate
                else:
                    why_not = ", not surely faster"
            self.considered.append((candidate.name + why_not, candidate.us))
        return chosen or self.source

    def _rank(self, candidate: Candidate) -> tuple[bool, float]:
        return candidate.peak > self.limit, candidate.score

    def by_plan(self, plan: Plan) -> Candidate:
        """Returns the order of this rank's steps under a plan that another rank made."""
        names = list(self.place_of)
        if plan == source_plan(len(names)):
            return self.source
        groups = [[names[n] for n in item] for item in plan]
        buckets = merged_as(groups, self.schedule.steps, self.before, self._estimate)
        estimates = {**self.estimates, **buckets.estimates}
        buckets = replace(buckets, estimates=estimates)
        return self._improved(self._placed("as another rank planned", buckets, plan), plan)

    def _candidates(self) -> list[Candidate]:
        given = self.context.options.get("collectives.bucket_bytes")
        most = float(CAPS[-1] if given is None else given)
        found: dict[tuple[tuple[str, ...], ...], Candidate] = {}
        for cap in sorted({min(float(cap), most) for cap in CAPS}):
            for ramp in (False, True):
                given = self.schedule.steps, self.before, self.program, self.estimates, self._estimate
                buckets = bucketed(*given, cap, ramp=ramp)
                shape = tuple(sorted(buckets.members.values()))
                if shape not in found:
                    name = f"buckets of {cap / 2**20:.4g} MiB{', growing' if ramp else ''}" if shape else "moved"
                    found[shape] = self._placed(name, buckets)
        return list(found.values())

    def _placed(self, name: str, buckets: Bucketing, plan: Plan | None = None, *, hold_back: bool = False) -> Candidate:
        """The steps with buckets in their best order. plan: the order of the collectives; None for any."""
        steps = buckets.steps
        before = dependences(steps, self.program.buffers, collectives_stay=False)
        if plan is not None:
            steps, before = self._chained(steps, before, plan, buckets.members)
        tasks = self._tasks(steps, buckets.estimates)
        live = Live(self.program, steps, self.sizes)
        order = place(Work(tasks, before), live, self.limit, hold_back=hold_back)
        return self._candidate(name, [steps[n] for n in order], buckets)

    def _improved(self, found: Candidate, plan: Plan | None = None) -> Candidate:
        """A candidate after `improve`. plan: as in `_placed`."""
        steps, members = found.steps, found.buckets.members
        before = dependences(steps, self.program.buffers, collectives_stay=False)
        if plan is not None:
            steps, before = self._chained(steps, before, plan, members)
        work = Work(self._tasks(steps, found.buckets.estimates), before)
        order = improve(work, range(len(steps)), Live(self.program, steps, self.sizes), self.limit)
        return self._candidate(found.name, [steps[n] for n in order], found.buckets)

    def _chained(
        self, steps: Sequence[Step], before: list[set[int]], plan: Plan, members: Mapping[str, tuple[str, ...]]
    ) -> tuple[tuple[Step, ...], list[set[int]]]:
        """Steps and dependences with the collectives in the order of a plan."""
        rank = {item: position for position, item in enumerate(plan)}
        starts = [number for number, step in enumerate(steps) if isinstance(step, Collective)]
        starts.sort(key=lambda number: rank[self._item(steps[number].name, members)])
        for first, second in pairwise(starts):
            before[second].add(first)
        order = topological(before)
        place_of = {number: position for position, number in enumerate(order)}
        return tuple(steps[n] for n in order), [{place_of[other] for other in before[n]} for n in order]

    def _item(self, name: str, members: Mapping[str, tuple[str, ...]]) -> tuple[int, ...]:
        """A collective or bucket, as a plan names it."""
        return tuple(sorted(self.place_of[one] for one in members.get(name, (name,))))

    def _candidate(self, name: str, steps: Sequence[Step], buckets: Bucketing) -> Candidate:
        plan = tuple(self._item(step.name, buckets.members) for step in steps if isinstance(step, Collective))
        tasks = tuple(self._tasks(steps, buckets.estimates))
        peak = max(Live(self.program, steps, self.sizes).profile())
        score = sum(one.us for one in judged(tasks))
        return Candidate(name, tuple(steps), buckets, tasks, plan, peak, replay(tasks).us, score)

    def _tasks(self, steps: Sequence[Step], estimates: Mapping[str, Estimate]) -> list[Task]:
        return make_tasks(steps, estimates, lambda step: slowdown_of(step, self.program, self.context))

    def _estimate(self, step: Collective) -> Estimate | None:
        return self.context.estimate(step, self.context.target_of(step.device), self.program)

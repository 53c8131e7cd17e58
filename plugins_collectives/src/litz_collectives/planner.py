"""The orders of one schedule that `overlap` considers. In: a Schedule. Out: `Candidate`s, and the best of them.

steps --bucketed--> fewer, larger collectives --place--> an order --improve--> a better one --judged--> its score

The best ones go on: --regroup--> other buckets --improve--> their order, in turns, for as long as the score falls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from litz.ir import Collective
from litz.schedule.dependences import dependences, topological
from litz.schedule.schedule import Schedule, Step
from litz_plugins import Estimate, PassContext

from .agree import Plan, source_plan
from .buckets import Bucketing, bucket_key, bucketed, merged_as, sent_bytes
from .improve import improve, judged, score_of
from .live import Live
from .memory_limit import memory_limit
from .place import Work, place
from .regroup import Groups, regroup
from .reorder import rules
from .streams import Slowdown, Task, surely_gains
from .tasks import link_of, make_tasks, slowdown_of

CAPS = (0, 4 << 20, 16 << 20, 64 << 20, 256 << 20)
"""Sizes of buckets that are tried, in bytes; 0 merges nothing."""
IMPROVED = 3
"""How many of the fastest orders are worth the search for a better one."""
PREFETCHED = (1, 2, 4)
"""How many gathers of a stream may be under way before the first of them is used, besides as many as their times ask
for."""
TURNS = 2
"""How often buckets and their order are searched in turns."""
CLOSE = 1.05
"""How many times the best score an order may have for that search."""
RULES = (("sink_waits",), ("raise_comms",), ("raise_comms", "sink_waits"), ("reorder_compute_for_overlap",))
"""Passes whose orders are candidates as well."""
REGROUPED = ", regrouped"


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
        most = context.options.get("collectives.bucket_bytes")
        self.most = float(CAPS[-1] if most is None else most)
        """The most bytes of a bucket."""
        self._by_name = {step.name: step for step in schedule.steps}
        self._kinds: dict[str, tuple[Any, ...] | None] = {}
        self._slowdowns: dict[tuple[str, tuple[str | None, ...]], Slowdown] = {}
        self._known: dict[tuple[str | None, ...], Estimate | None] = {}
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
        candidates = self._candidates() + self._by_rules()
        few = sorted(candidates, key=self._rank)[:2]
        candidates += [self._placed(c.name + ", work held back", c.buckets, hold_back=True) for c in few]
        candidates += [
            self._placed(f"{c.name}, {ahead} ahead", c.buckets, ahead=ahead) for c in few for ahead in PREFETCHED
        ]
        candidates = self._different(candidates)
        candidates[:IMPROVED] = [self._improved(c) for c in candidates[:IMPROVED]]
        near = CLOSE * min(candidate.score for candidate in candidates[:IMPROVED])
        few = [c for c in candidates[:IMPROVED] if c.peak <= self.limit and c.score <= near]
        searched = [self._searched(c) for c in few]
        candidates += [one for one in searched if all(one is not other for other in candidates)]
        chosen = None
        for candidate in sorted(candidates, key=lambda one: self._rank(one)[1:]):
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

    def _different(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Each order once: first the best one for each way to merge collectives, the better ones first, then the
        others."""
        first: dict[frozenset[tuple[int, ...]], Candidate] = {}
        orders: dict[tuple[str, ...], Candidate] = {}
        for candidate in sorted(candidates, key=self._rank):
            order = tuple(step.name for step in candidate.steps)
            if (*order, *map(str, candidate.plan)) not in orders:
                orders[*order, *map(str, candidate.plan)] = candidate
                first.setdefault(frozenset(candidate.plan), candidate)
        best = list(first.values())
        return best + [one for one in orders.values() if all(one is not other for other in best)]

    def _searched(self, found: Candidate) -> Candidate:
        """A candidate after searches for better buckets and for their order, in turns."""
        for _ in range(TURNS):
            other = regroup(found, self)
            if other is found:
                break
            found = self._improved(other)
        return found

    def groups_of(self, found: Candidate) -> Groups:
        """Returns what a candidate starts as one, each by its members' names in the source's order."""
        names = list(self.place_of)
        return tuple(tuple(names[n] for n in item) for item in found.plan)

    def in_source_order(self, names: Sequence[str]) -> tuple[str, ...]:
        """Returns collectives in the order that the source has them in."""
        return tuple(sorted(names, key=self.place_of.__getitem__))

    def kind_of(self, name: str) -> tuple[Any, ...] | None:
        """Returns what a collective has in common with those that it can be merged with; None if it is merged with
        none, as the options ask for."""
        if self.most <= 0:
            return None
        if name not in self._kinds:
            self._kinds[name] = bucket_key(self._by_name[name], self.program)
        return self._kinds[name]

    def grouped(self, found: Candidate, groups: Groups, at: Mapping[str, int], most: float) -> Candidate | None:
        """Returns a candidate's steps with other buckets. at: positions in the candidate's order, by first member, of
        those that changed; all else stays, as far as it may. None where no order allows these buckets, where one takes
        more than collectives.bucket_bytes, or where the score is not below `most`."""
        buckets = merged_as(groups, self.schedule.steps, self.before, self._estimate_of_bucket, self._fits)
        if buckets is None:
            return None
        buckets = replace(buckets, estimates={**self.estimates, **buckets.estimates})
        place = {step.name: number for number, step in enumerate(found.steps)} | dict(at)
        before = dependences(buckets.steps, self.program.buffers, collectives_stay=False)
        order = topological(before, lambda n: place[buckets.steps[n].name])
        name, steps = found.name.removesuffix(REGROUPED) + REGROUPED, [buckets.steps[n] for n in order]
        tasks = self._tasks(steps, buckets.estimates)
        if score_of([one.us for one in judged(tasks)]) >= most:
            return None
        return self._candidate(name, steps, buckets)

    def _fits(self, bucket: Collective) -> bool:
        return sent_bytes(bucket, self.program) <= self.most

    def _estimate_of_bucket(self, step: Collective) -> Estimate | None:
        """The time of a bucket, which is asked for once."""
        key = step.outputs
        if key not in self._known:
            self._known[key] = self._estimate(step)
        return self._known[key]

    def _rank(self, candidate: Candidate) -> tuple[bool, float, int]:
        """By what candidates are compared: of those that take as long, the one that takes least memory is better."""
        return candidate.peak > self.limit, round(candidate.score, 3), candidate.peak

    def by_plan(self, plan: Plan) -> Candidate:
        """Returns the order of this rank's steps under a plan that another rank made."""
        names = list(self.place_of)
        if plan == source_plan(len(names)):
            return self.source
        groups = [[names[n] for n in item] for item in plan]
        buckets = merged_as(groups, self.schedule.steps, self.before, self._estimate)
        assert buckets is not None
        estimates = {**self.estimates, **buckets.estimates}
        buckets = replace(buckets, estimates=estimates)
        return self._improved(self._placed("as another rank planned", buckets, plan), plan)

    def _candidates(self) -> list[Candidate]:
        found: dict[tuple[tuple[str, ...], ...], Candidate] = {}
        for cap in sorted({min(float(cap), self.most) for cap in CAPS}):
            for ramp in (False, True):
                given = self.schedule.steps, self.before, self.program, self.estimates, self._estimate
                buckets = bucketed(*given, cap, ramp=ramp)
                shape = tuple(sorted(buckets.members.values()))
                if shape not in found:
                    name = f"buckets of {cap / 2**20:.4g} MiB{', growing' if ramp else ''}" if shape else "moved"
                    found[shape] = self._placed(name, buckets)
        return list(found.values())

    def _by_rules(self) -> list[Candidate]:
        """The orders that the plugin's other passes make, as the option names them."""
        times, found = {name: estimate.us for name, estimate in self.estimates.items()}, []
        for names in RULES:
            steps = list(self.schedule.steps)
            for name in names:
                before = dependences(steps, self.program.buffers, waits_stay=False)
                rule, _ = rules(names)[name]
                steps = [steps[n] for n in rule(steps, before, times)]
            found.append(self._candidate(" and ".join(names), steps, Bucketing(tuple(steps), self.estimates, {})))
        return found

    def _placed(
        self,
        name: str,
        buckets: Bucketing,
        plan: Plan | None = None,
        *,
        hold_back: bool = False,
        ahead: int | None = None,
    ) -> Candidate:
        """The steps with buckets in their best order. plan: the order of the collectives; None for any."""
        steps = buckets.steps
        before = dependences(steps, self.program.buffers, collectives_stay=False)
        if plan is not None:
            steps, before = self._chained(steps, before, plan, buckets.members)
        tasks = self._tasks(steps, buckets.estimates)
        live = Live(self.program, steps, self.sizes)
        order = place(Work(tasks, before), live, self.limit, hold_back=hold_back, ahead=ahead)
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
        times = [one.us for one in judged(tasks)]  # the first of them is the likely one
        return Candidate(name, tuple(steps), buckets, tasks, plan, peak, times[0], score_of(times))

    def _tasks(self, steps: Sequence[Step], estimates: Mapping[str, Estimate]) -> list[Task]:
        def slowdown(step: Collective) -> Slowdown:
            key = step.name, step.outputs
            if key not in self._slowdowns:
                self._slowdowns[key] = slowdown_of(step, self.program, self.context)
            return self._slowdowns[key]

        return make_tasks(steps, estimates, slowdown, lambda step: link_of(step, self.context))

    def _estimate(self, step: Collective) -> Estimate | None:
        return self.context.estimate(step, self.context.target_of(step.device), self.program)

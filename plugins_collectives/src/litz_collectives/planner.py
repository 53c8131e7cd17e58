"""The orders of one schedule that `overlap` considers. In: a Schedule. Out: `Candidate`s, and the best of them.

steps --bucketed--> fewer, larger collectives --place--> an order --improve--> a better one --judged--> its score

The best ones go on: --regroup--> other buckets --improve--> their order, in turns, for as long as the score falls;
then --recut--> collectives in pieces, each behind a product of another piece, and in turns again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from litz.ir import Collective
from litz.schedule.dependences import dependences, topological
from litz.schedule.schedule import Schedule, Step
from litz_plugins import Estimate, PassContext

from .agree import Plan
from .buckets import Bucketing, bucket_key, bucketed, merged_as, sent_bytes
from .improve import improve, judged, score_of
from .live import Live
from .memory_limit import memory_limit
from .pieces import sites_of
from .place import Work, place
from .recut import recut
from .regroup import Groups, regroup
from .reorder import rules
from .source import At, Cutter, Source, in_order, whole_source
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
REGROUPED, IN_PIECES = ", regrouped", ", in pieces"


@dataclass(frozen=True)
class Candidate:
    """An order of the steps that `buckets` made of a source's. plan: its communication. us: what it is likely to take.
    score: what it takes by several corners of the estimates together (see `improve.judged`)."""

    name: str
    source: Source
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
        self.schedule, self.context = schedule, context
        self.whole = whole_source(schedule.program, schedule.steps, estimates)
        self.sites = sites_of(schedule.steps, schedule.program)
        self.cutter = Cutter(self.whole, self.sites, context)
        asked = int(context.options.get("collectives.pieces", 1))
        self.searches_pieces = asked == 0
        """Whether the number of pieces is the search's to find."""
        counts = {name: asked or 1 for name, site in self.sites.items() if site.products}
        self.base = self.cutter.source(self.cutter.cuts_of(counts))
        """What the search begins with: the schedule, cut as the options ask for."""
        self.sizes: dict[str, int] = {}
        most = context.options.get("collectives.bucket_bytes")
        self.most = float(CAPS[-1] if most is None else most)
        """The most bytes of a bucket."""
        self._kinds: dict[str, tuple[Any, ...] | None] = {}
        self._slowdowns: dict[tuple[str, tuple[str | None, ...]], Slowdown] = {}
        self._known: dict[tuple[str | None, ...], Estimate | None] = {}
        self.tried: dict[str, tuple[int, float]] = {}
        """By collective: into how many pieces it was cut best, and by how much that changed the score in µs."""
        self.source = self._source_order(self.base)
        self.whole_order = self.source if self.base is self.whole else self._source_order(self.whole)
        program = schedule.program
        held = sum(
            program.hint(program.buffers[name].nbytes)
            for name in program.input_buffers
            if name not in program.dying_inputs
        )
        given = str(context.options.get("collectives.memory_limit") or "10%")
        self.limit = memory_limit(given, self.source.peak, held)
        self.considered: list[tuple[str, float | None]] = [("source order", self.source.us)]

    def best(self) -> Candidate:
        """Returns the fastest order that surely pays, else the order of the source."""
        candidates = self._candidates() + self._by_rules()
        few = sorted(candidates, key=self._rank)[:2]
        candidates += [self._placed(c.name + ", work held back", c.buckets, c.source, hold_back=True) for c in few]
        candidates += [
            self._placed(f"{c.name}, {ahead} ahead", c.buckets, c.source, ahead=ahead)
            for c in few
            for ahead in PREFETCHED
        ]
        candidates = self._different(candidates)
        candidates[:IMPROVED] = [self.improved(c) for c in candidates[:IMPROVED]]
        near = CLOSE * min(candidate.score for candidate in candidates[:IMPROVED])
        few = [c for c in candidates[:IMPROVED] if c.peak <= self.limit and c.score <= near]
        searched = [self._searched(c) for c in few]
        candidates += [one for one in searched if all(one is not other for other in candidates)]
        chosen = self._chosen(candidates)
        if not self.searches_pieces:
            return chosen or self.source
        best = min((c for c in candidates if c.peak <= self.limit), key=self._rank, default=self.source)
        return self._chosen(self._in_pieces(best), chosen or self.source) or chosen or self.source

    def _chosen(self, candidates: Sequence[Candidate], whole: Candidate | None = None) -> Candidate | None:
        """The fastest of some orders that is surely faster than the source's; each is noted, with why not. whole: the
        order that those in pieces have to beat as surely."""
        chosen = None
        for candidate in sorted(candidates, key=lambda one: self._rank(one)[1:]):
            why_not = ""
            if candidate.peak > self.limit:
                why_not = f", peak {candidate.peak} B"
            elif chosen is None and candidate.us < self.source.us:
                sure = surely_gains(candidate.tasks, self.source.tasks)
                if sure and (whole is None or self.surely_beats(candidate, whole)):
                    chosen = candidate
                else:
                    why_not = ", not surely faster" if not sure else ", not surely faster than whole"
            self.considered.append((candidate.name + why_not, candidate.us))
        return chosen

    def surely_beats(self, candidate: Candidate, other: Candidate) -> bool:
        """Returns whether an order with more pieces is faster than another, also in its worse cases, and by what is
        likely by more than what the pieces add may cost beyond what is thought (latencies, launches, smaller products,
        copies), and slower than the source's order in no corner. An estimate that is too low is so for the whole as for
        its pieces: only the difference counts."""
        us, most = (mine - its for mine, its in zip(*map(self._added, (candidate, other)), strict=True))
        if not candidate.us < other.us - max(0.0, most - us):
            return False
        return candidate.score < other.score and surely_gains(candidate.tasks, self.source.tasks)

    def _added(self, candidate: Candidate) -> tuple[float, float]:
        return self.cutter.added_by(candidate.plan.cuts)

    def _different(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Each order once: first the best one for each way to merge collectives, the better ones first, then the
        others."""
        first: dict[frozenset[tuple[int, ...]], Candidate] = {}
        orders: dict[tuple[str, ...], Candidate] = {}
        for candidate in sorted(candidates, key=self._rank):
            order = tuple(step.name for step in candidate.steps)
            if (*order, *map(str, candidate.plan.items)) not in orders:
                orders[*order, *map(str, candidate.plan.items)] = candidate
                first.setdefault(frozenset(candidate.plan.items), candidate)
        best = list(first.values())
        return best + [one for one in orders.values() if all(one is not other for other in best)]

    def _searched(self, found: Candidate) -> Candidate:
        """A candidate after searches for better buckets and for their order, in turns."""
        for _ in range(TURNS):
            other = regroup(found, self)
            if other is found:
                break
            found = self.improved(other)
        return found

    def _in_pieces(self, found: Candidate) -> list[Candidate]:
        """Returns what a candidate becomes by searches for cuts of collectives, for buckets and for order, in turns."""
        made = list[Candidate]()
        for _ in range(TURNS):
            other = recut(found, self)
            if other is found:
                break
            found = self._searched(other)
            made += [other] if found is other else [other, found]
        return made

    def groups_of(self, found: Candidate) -> Groups:
        """Returns what a candidate starts as one, each by its members' names in the source's order."""
        names = found.source.names
        return tuple(tuple(names[n] for n in item) for item in found.plan.items)

    def in_source_order(self, names: Sequence[str], source: Source) -> tuple[str, ...]:
        """Returns collectives in the order that the source has them in."""
        return tuple(sorted(names, key=source.numbers.__getitem__))

    def kind_of(self, name: str, source: Source) -> tuple[Any, ...] | None:
        """Returns what a collective has in common with those that it can be merged with; None if it is merged with
        none, as the options ask for, or as it is a piece: there may be fewer pieces instead."""
        if self.most <= 0 or name in source.at:
            return None
        if name not in self._kinds:
            self._kinds[name] = bucket_key(source.by_name[name], source.program)
        return self._kinds[name]

    def grouped(self, found: Candidate, groups: Groups, at: Mapping[str, int], most: float) -> Candidate | None:
        """Returns a candidate's steps with other buckets. at: positions in the candidate's order, by first member, of
        those that changed; all else stays, as far as it may. None where no order allows these buckets, where one takes
        more than collectives.bucket_bytes, or where the score is not below `most`."""
        places: dict[str, At] = {step.name: (number, ()) for number, step in enumerate(found.steps)}
        places |= {name: (number, ()) for name, number in at.items()}
        name = found.name.removesuffix(REGROUPED) + REGROUPED
        return self._replayed(name, found.source, groups, places, most)

    def cut(self, found: Candidate, counts: Mapping[str, int], most: float) -> Candidate | None:
        """Returns a candidate's steps with other collectives in pieces. counts: number of pieces by the collective's
        name, of all that are cut. All else stays where it was, as far as it may; a bucket loses those of its members
        that are cut. None where the score is not below `most`."""
        source = self.cutter.source(self.cutter.cuts_of(counts))
        members = found.buckets.members
        places = source.places_in([step.name for step in found.steps], found.source, members)
        groups = [tuple(name for name in members.get(group[0], group) if name in source.numbers)
                  for group in self.groups_of(found)]  # fmt: skip
        name = found.name.removesuffix(IN_PIECES) + IN_PIECES
        return self._replayed(name, source, tuple(group for group in groups if group), places, most)

    def steps_of(self, name: str, found: Candidate) -> list[str]:
        """Returns the names of the collectives that a candidate has for one of the schedule's."""
        return self.cutter.started(name, dict(found.plan.cuts).get(self.whole.numbers[name], 1))

    def note_cut(self, name: str, count: int, change: float) -> None:
        """Keeps the best number of pieces that was tried for a collective, for the record. change: of the score."""
        if count > 1 and (name not in self.tried or change < self.tried[name][1]):
            self.tried[name] = count, change

    def _replayed(
        self, name: str, source: Source, groups: Groups, places: Mapping[str, At], most: float
    ) -> Candidate | None:
        """A source's steps with buckets and at places; None where that cannot be or its score is not below `most`."""
        estimate = partial(self._estimate_of_bucket, source)
        buckets = merged_as(groups, source.steps, source.before, estimate, partial(self._fits, source))
        if buckets is None:
            return None
        buckets = replace(buckets, estimates={**source.estimates, **buckets.estimates})
        before = dependences(buckets.steps, source.program.buffers, collectives_stay=False)
        steps = [buckets.steps[n] for n in in_order(buckets.steps, before, places)]
        tasks = self._tasks(steps, buckets.estimates, source)
        if score_of([one.us for one in judged(tasks)]) >= most:
            return None
        return self._candidate(name, steps, buckets, source)

    def _fits(self, source: Source, bucket: Collective) -> bool:
        return sent_bytes(bucket, source.program) <= self.most

    def _estimate_of_bucket(self, source: Source, step: Collective) -> Estimate | None:
        """The time of a bucket, which is asked for once."""
        key = step.outputs
        if key not in self._known:
            self._known[key] = self._estimate(source, step)
        return self._known[key]

    def _rank(self, candidate: Candidate) -> tuple[bool, float, int]:
        """By what candidates are compared: of those that take as long, the one that takes least memory is better."""
        return candidate.peak > self.limit, round(candidate.score, 3), candidate.peak

    def by_plan(self, plan: Plan) -> Candidate:
        """Returns the order of this rank's steps under a plan that another rank made."""
        source = self.cutter.source(plan.cuts)
        in_order = self._source_order(source)
        if plan == in_order.plan:
            return self.source if source is self.base else in_order
        groups = [[source.names[n] for n in item] for item in plan.items]
        buckets = merged_as(groups, source.steps, source.before, partial(self._estimate, source))
        assert buckets is not None
        estimates = {**source.estimates, **buckets.estimates}
        buckets = replace(buckets, estimates=estimates)
        return self.improved(self._placed("as another rank planned", buckets, source, plan), plan)

    def _candidates(self) -> list[Candidate]:
        found: dict[tuple[tuple[str, ...], ...], Candidate] = {}
        for cap in sorted({min(float(cap), self.most) for cap in CAPS}):
            for ramp in (False, True):
                source = self.base
                whole = {name: known for name, known in source.estimates.items() if name not in source.at}
                given = source.steps, source.before, source.program, whole, partial(self._estimate, source)
                buckets = bucketed(*given, cap, ramp=ramp)
                buckets = replace(buckets, estimates={**source.estimates, **buckets.estimates})
                shape = tuple(sorted(buckets.members.values()))
                if shape not in found:
                    name = f"buckets of {cap / 2**20:.4g} MiB{', growing' if ramp else ''}" if shape else "moved"
                    found[shape] = self._placed(name, buckets, source)
        return list(found.values())

    def _by_rules(self) -> list[Candidate]:
        """The orders that the plugin's other passes make, as the option names them."""
        source = self.base
        times, found = {name: estimate.us for name, estimate in source.estimates.items()}, []
        for names in RULES:
            steps = list(source.steps)
            for name in names:
                before = dependences(steps, source.program.buffers, waits_stay=False)
                rule, _ = rules(names)[name]
                steps = [steps[n] for n in rule(steps, before, times)]
            buckets = Bucketing(tuple(steps), source.estimates, {})
            found.append(self._candidate(" and ".join(names), steps, buckets, source))
        return found

    def _placed(
        self,
        name: str,
        buckets: Bucketing,
        source: Source,
        plan: Plan | None = None,
        *,
        hold_back: bool = False,
        ahead: int | None = None,
    ) -> Candidate:
        """The steps with buckets in their best order. plan: the order of the collectives; None for any."""
        steps = buckets.steps
        before = dependences(steps, source.program.buffers, collectives_stay=False)
        if plan is not None:
            steps, before = _chained(steps, before, plan, buckets.members, source)
        tasks = self._tasks(steps, buckets.estimates, source)
        live = Live(source.program, steps, self.sizes)
        order = place(Work(tasks, before), live, self.limit, hold_back=hold_back, ahead=ahead)
        return self._candidate(name, [steps[n] for n in order], buckets, source)

    def improved(self, found: Candidate, plan: Plan | None = None, replayed: int | None = None) -> Candidate:
        """Returns a candidate after `improve`. plan: as in `_placed`. replayed: as in `improve`."""
        steps, members, source = found.steps, found.buckets.members, found.source
        before = dependences(steps, source.program.buffers, collectives_stay=False)
        if plan is not None:
            steps, before = _chained(steps, before, plan, members, source)
        work = Work(self._tasks(steps, found.buckets.estimates, source), before)
        order = improve(work, range(len(steps)), Live(source.program, steps, self.sizes), self.limit, replayed)
        return self._candidate(found.name, [steps[n] for n in order], found.buckets, source)

    def _source_order(self, source: Source) -> Candidate:
        return self._candidate("source order", source.steps, Bucketing(source.steps, source.estimates, {}), source)

    def _candidate(self, name: str, steps: Sequence[Step], buckets: Bucketing, source: Source) -> Candidate:
        items = tuple(_item(step.name, buckets.members, source) for step in steps if isinstance(step, Collective))
        tasks, plan = tuple(self._tasks(steps, buckets.estimates, source)), Plan(source.cuts, items)
        peak = max(Live(source.program, steps, self.sizes).profile())
        times = [one.us for one in judged(tasks)]  # the first of them is the likely one
        return Candidate(name, source, tuple(steps), buckets, tasks, plan, peak, times[0], score_of(times))

    def _tasks(self, steps: Sequence[Step], estimates: Mapping[str, Estimate], source: Source) -> list[Task]:
        def slowdown(step: Collective) -> Slowdown:
            key = step.name, step.outputs
            if key not in self._slowdowns:
                self._slowdowns[key] = slowdown_of(step, source.program, self.context)
            return self._slowdowns[key]

        return make_tasks(steps, estimates, slowdown, lambda step: link_of(step, self.context), source.is_later_piece)

    def _estimate(self, source: Source, step: Collective) -> Estimate | None:
        return self.context.estimate(step, self.context.target_of(step.device), source.program)


def _chained(
    steps: Sequence[Step], before: list[set[int]], plan: Plan, members: Mapping[str, tuple[str, ...]], source: Source
) -> tuple[tuple[Step, ...], list[set[int]]]:
    """Steps and dependences with the collectives in the order of a plan."""
    rank = {item: position for position, item in enumerate(plan.items)}
    starts = [number for number, step in enumerate(steps) if isinstance(step, Collective)]
    starts.sort(key=lambda number: rank[_item(steps[number].name, members, source)])
    for first, second in pairwise(starts):
        before[second].add(first)
    order = topological(before)
    place_of = {number: position for position, number in enumerate(order)}
    return tuple(steps[n] for n in order), [{place_of[other] for other in before[n]} for n in order]


def _item(name: str, members: Mapping[str, tuple[str, ...]], source: Source) -> tuple[int, ...]:
    """A collective or bucket, as a plan names it."""
    return tuple(sorted(source.numbers[one] for one in members.get(name, (name,))))

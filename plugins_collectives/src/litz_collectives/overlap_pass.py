"""The pass `overlap`: communication where computation hides it. In: a Schedule. Out: the same work, in an order that is
predicted to be faster, or the Schedule as it was.

    the source's order  --bucketed-->  fewer, larger collectives  --place-->  an order  --replay-->  its time

That is done for several sizes of buckets. An order is kept only if it is faster by what is likely, in no corner of the
estimates slower than the source's order, and within the memory limit; of those the fastest. Then the ranks agree on
one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from litz.cost import device_info
from litz.ir import Collective, Program, Wait
from litz.schedule.dependences import dependences, topological
from litz.schedule.memory import simple_plan
from litz.schedule.schedule import Kernel, Schedule, Step
from litz_plugins import Estimate, LitzError, OptionsView, PassContext

from .agree import Plan, agreed, signature, source_plan
from .buckets import Bucketing, bucketed, merged_as
from .contention import Contention
from .improve import improve, judged
from .live import Live
from .model import collective_cost
from .nccl import Message
from .place import Work, place
from .plugin import chosen_profile
from .profile import Profile, builtin_profile
from .streams import NOTHING, Interval, Replay, Slowdown, Task, replay, surely_gains
from .traffic import message_of

CAPS = (0, 4 << 20, 16 << 20, 64 << 20, 256 << 20)
"""Sizes of buckets that are tried, in bytes; 0 merges nothing."""

SLOWDOWN = Slowdown(Interval(1.0, 1.25, 1.42), Interval(1.0, 1.1, 1.2))
"""Where nothing was measured: what four H200s showed. A matrix product ran 1.1 to 1.42 times as long beside collectives
of 1 to 128 MiB, a copy up to 1.16 times; the collectives, beyond waiting to get in, 1.1 to 1.2 times."""
MEASURED = 0.3
"""What was measured with a large matrix product and a large copy goes for other kernels within this share."""

IMPROVED = 3
"""So many of the orders, the fastest, are worth the search for a better one."""

UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
OPTIONS = ("collectives.bucket_bytes", "collectives.memory_limit")
"""What the plan hangs on beside the program and the estimates."""


class MemoryLimitError(LitzError):
    """The option collectives.memory_limit is no amount of memory."""


def memory_limit(text: str, peak: int, held: int = 0) -> float:
    """Bytes that temporaries, outputs and dying inputs (see `Live`) may take: of an option like "10%" (that much more
    than the graph takes in the source's order, its inputs included), "8GiB" or "8589934592".

    peak: of those in the source's order, which is always allowed. held: bytes of the other inputs. Errors:
    MemoryLimitError.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*|%)\s*", text.lower())
    if found is None or (found[2] != "%" and found[2] not in UNITS):
        raise MemoryLimitError(
            f"the option collectives.memory_limit is {text!r}, which is no amount of memory",
            todo='give bytes ("8GiB", "512MiB", "1000000") or a share of the memory without the pass ("10%")',
        )
    amount = float(found[1])
    return max(peak, peak + amount / 100 * (peak + held) if found[2] == "%" else amount * UNITS[found[2]])


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


UNKNOWN = Estimate(0.0, 0.0, 0.0, "unknown")


def overlap(schedule: Schedule, context: PassContext) -> Schedule:
    """The pass. A rank that knows too little to plan follows another's plan, else it leaves the source's order. Errors:
    MemoryLimitError."""
    steps, program = schedule.steps, schedule.program
    if not any(isinstance(step, Collective) for step in steps):
        return schedule
    times = {step.name: schedule.estimates.get(step.name, UNKNOWN) for step in steps}
    planner = _Planner(replace(schedule, estimates=times), context)
    blind = _why_blind(steps, times)
    own = planner.source if blind else planner.best()
    key = signature(steps, planner.before, program, {name: context.options.get(name) for name in OPTIONS})
    plan = agreed(own.plan, key)
    chosen = own if plan == own.plan else planner.by_plan(plan)
    planner.record(chosen, own, blind)
    if chosen is planner.source:
        return schedule
    found = {step.name: chosen.buckets.estimates[step.name] for step in chosen.steps}
    return replace(
        schedule,
        program=reordered(program, chosen.steps),
        steps=chosen.steps,
        estimates={name: estimate for name, estimate in found.items() if estimate is not UNKNOWN},
        memory=simple_plan(program, chosen.steps),
    )


def _why_blind(steps: Sequence[Step], times: Mapping[str, Estimate]) -> str:
    """Why no order can be judged; nothing if it can."""
    unknown = [step.name for step in steps if times[step.name] is UNKNOWN]
    if unknown:
        return f"nobody knows the time of {', '.join(unknown[:5])}"
    if not any(times[step.name].us for step in steps if not isinstance(step, (Collective, Wait))):
        return "computation has no times here, so nothing is known to hide anything"
    return ""


class _Planner:
    """The orders of one schedule."""

    def __init__(self, schedule: Schedule, context: PassContext) -> None:
        self.schedule, self.context, self.program = schedule, context, schedule.program
        self.place_of = {
            step.name: number
            for number, step in enumerate(step for step in schedule.steps if isinstance(step, Collective))
        }
        self.before = dependences(schedule.steps, self.program.buffers, collectives_stay=False)
        self.sizes: dict[str, int] = {}
        self.source = self._candidate("source order", schedule.steps, Bucketing(schedule.steps, schedule.estimates, {}))
        held = sum(
            self.program.hint(self.program.buffers[name].nbytes)
            for name in self.program.input_buffers
            if name not in self.program.dying_inputs
        )
        given = str(context.options.get("collectives.memory_limit") or "10%")
        self.limit = memory_limit(given, self.source.peak, held)
        self.considered: list[tuple[str, float | None]] = [("source order", self.source.us)]

    def best(self) -> Candidate:
        """The fastest order that is surely worth it, else the source's."""
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
        """This rank's order for a plan that another rank made."""
        names = list(self.place_of)
        if plan == source_plan(len(names)):
            return self.source
        groups = [[names[n] for n in item] for item in plan]
        buckets = merged_as(groups, self.schedule.steps, self.before, self._estimate)
        estimates = {**self.schedule.estimates, **buckets.estimates}
        buckets = replace(buckets, estimates=estimates)
        return self._improved(self._placed("as another rank planned", buckets, plan), plan)

    def _candidates(self) -> list[Candidate]:
        given = self.context.options.get("collectives.bucket_bytes")
        most = float(CAPS[-1] if given is None else given)
        found: dict[tuple[tuple[str, ...], ...], Candidate] = {}
        for cap in sorted({min(float(cap), most) for cap in CAPS}):
            for ramp in (False, True):
                given = self.schedule.steps, self.before, self.program, self.schedule.estimates, self._estimate
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
        return make_tasks(steps, estimates, lambda step: slowdown_of(step, self.program, self.context.options))

    def _estimate(self, step: Collective) -> Estimate | None:
        return self.context.estimate(step, device_info(step.device, self.context.options), self.program)

    def record(self, chosen: Candidate, own: Candidate, blind: str) -> None:
        """Why the order is as it is: for all, for each bucket, and for each collective that moved."""
        if chosen is self.source and blind:
            self.context.record("overlap", "source order", blind)
            return
        old, new = replay(self.source.tasks), replay(chosen.tasks)
        memory = f"peak {self.source.peak} B before, {chosen.peak} B after, limit {self.limit:.0f} B"
        if chosen is self.source:
            reason = "no other order is surely faster" if own is self.source else "another rank planned so"
            reason = f"{reason}: {_exposed(old)}; {memory}"
            self.context.record("overlap", "source order", reason, self.considered)
            return
        reason = f"{_exposed(old)} before, {_exposed(new)} after; {memory}"
        self.context.record("overlap", chosen.name, reason, self.considered)
        for name, members in chosen.buckets.members.items():
            apart = sum(self.schedule.estimates[one].us for one in members)
            reason = (
                f"{', '.join(members)}: {apart:.4g} µs one by one, {chosen.buckets.estimates[name].us:.4g} µs as one"
            )
            self.context.record(name, f"bucket of {len(members)}", reason)
        was = {step.name: number for number, step in enumerate(self.schedule.steps)}
        ran_before = _before_starts(self.source.tasks)
        for name, done in _before_starts(chosen.tasks).items():
            members = chosen.buckets.members.get(name, (name,))
            first = min(members, key=lambda one: was[one])
            moved = ran_before[first] - done
            then = sum(old.exposed.get(one, 0.0) for one in members)
            now = new.exposed.get(name, 0.0)
            if moved or then != now:
                side = "earlier" if moved > 0 else "later"
                where = f"starts {abs(moved):.4g} µs of computation {side}" if moved else "starts where it did"
                self.context.record(name, where, f"exposed {then:.4g} µs before, {now:.4g} µs after")


def _exposed(found: Replay) -> str:
    return f"{found.us:.5g} µs, {found.exposed_us:.4g} of {found.communication_us:.4g} µs of communication exposed"


def _before_starts(tasks: Sequence[Task]) -> dict[str, float]:
    """Collective -> µs of computation that stand before it."""
    total, found = 0.0, {}
    for task in tasks:
        if task.kind == "start":
            found[task.name] = total
        total += task.time.us if task.kind == "compute" else 0.0
    return found


SlowdownOf = Callable[[Collective], Slowdown]


def slowdown_of(step: Collective, program: Program, options: OptionsView) -> Slowdown:
    """What a collective and kernels at a time cost each other: as the profile says, which measured both with matrix
    products and with copies; where it says nothing, `SLOWDOWN`."""
    message = message_of(step, program)
    profile = chosen_profile(device_info(step.device, options), options)
    table = profile.contention or builtin_profile().contention
    if message is None or not table:
        return SLOWDOWN
    found = profile.slowdown(message.kind, max(1, message.bytes))
    low, high = sorted((found.gemm, found.copy))
    # A profile with delays has the factor apart from them. The delay itself is what `Streams` lets pass: a kernel.
    own = found.collective if found.delay_us else _growth(message, table.get(message.kind, ()), profile)
    return Slowdown(_around(low, (low + high) / 2, high), _around(own, own, own))


def _growth(message: Message, rows: Sequence[Contention], profile: Profile) -> float:
    """How many times longer a collective runs beside kernels, of a profile without delays. What was measured has the
    time in it that each waited for a kernel to end, however large it is; so this is how much longer the largest took
    than the next, beside kernels and alone."""
    if len(rows) < 2:
        return rows[0].collective if rows else SLOWDOWN.collective.us
    less, more = (collective_cost(replace(message, bytes=int(row.bytes)), profile).us for row in rows[-2:])
    beside = more * rows[-1].collective - less * rows[-2].collective
    return min(max(1.0, beside / max(more - less, 1e-9)), rows[-1].collective)


def _around(low: float, us: float, high: float) -> Interval:
    """Factors with the error bar of `MEASURED`."""
    return Interval(1 + (low - 1) * (1 - MEASURED), us, 1 + (high - 1) * (1 + MEASURED))


def make_tasks(
    steps: Sequence[Step], estimates: Mapping[str, Estimate], slowdown: SlowdownOf = lambda step: SLOWDOWN
) -> list[Task]:
    """Steps as what the two streams do. A wait for communication that started elsewhere counts as computation that
    takes no time, so that it stays where it is."""
    writer: dict[str, str] = {}
    tasks = []
    for step in steps:
        found = estimates[step.name]
        time = Interval(found.low_us, found.us, min(found.high_us, 10 * found.us))
        if isinstance(step, Collective):
            writer.update(dict.fromkeys(step.writes, step.name))
            tasks.append(Task(step.name, "start", time, slowdown=slowdown(step)))
        elif isinstance(step, Wait) and any(name in writer for name in step.reads):
            of = next(writer[name] for name in step.reads if name in writer)
            tasks.append(Task(step.name, "wait", NOTHING, of))
        else:
            tasks.append(Task(step.name, "compute", time))
    return tasks


def reordered(program: Program, steps: Sequence[Step]) -> Program:
    """The program with its operations in the order of the steps, buckets in place of their members."""
    place_of = {operation.name: number for number, operation in enumerate(program.operations)}
    operations = []
    for step in steps:
        if isinstance(step, Kernel):
            operations += [program.operations[n] for n in sorted(place_of[name] for name in step.fused)]
        else:
            operations.append(step)
    return replace(program, operations=tuple(operations))


__all__ = ["MemoryLimitError", "make_tasks", "memory_limit", "overlap", "reordered"]

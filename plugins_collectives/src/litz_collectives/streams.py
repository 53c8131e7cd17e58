"""A GPU's compute stream and its communication streams, simulated. In: tasks in an order. Out: a `Replay`.

The compute stream runs its tasks one after the other. A collective is put behind those of its own group that were
started before it: torch has a stream for each process group, so that a small message between the GPUs of a host passes
a long one between hosts. A collective needs streaming multiprocessors, and a kernel that runs has them all until it
ends: so the collective gets in where one kernel ends and the next begins, and not where it was started, as the next
kernel is quicker. (Measured on H200s: of collectives beside matrix products that take 174 µs each, one gets in a
product, whether it takes 15 µs or 60.) A wait holds up the compute stream until its collective has finished; an idle
GPU lets it in at once. While both run each side takes longer, by the collective's `Slowdown`; a kernel beside
collectives of several groups by that of each. Collectives that run at the same time share the link that they go over.
Those over different links do not slow each other by what is likely, and share the whole of the time where slowdowns are
believed to be high. The host is taken to be ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal, NamedTuple

Kind = Literal["compute", "start", "wait"]
Figure = Literal["low", "us", "high"]
FIGURES: tuple[Figure, ...] = ("low", "us", "high")


@dataclass(frozen=True)
class Interval:
    """A figure that is likely `us`, surely between `low` and `high`."""

    low: float
    us: float
    high: float

    def at(self, figure: Figure) -> float:
        """Returns one figure of the interval: "us", "low" or "high"."""
        return float(getattr(self, figure))


NOTHING, NO_FACTOR = Interval(0.0, 0.0, 0.0), Interval(1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Slowdown:
    """Factors of time while a collective and other work run together: of the other work, of the collective.

    copy, beside_copy: the same where the other work is bound by memory; None for as above.
    """

    compute: Interval = NO_FACTOR
    collective: Interval = NO_FACTOR
    copy: Interval | None = None
    beside_copy: Interval | None = None

    def at(self, figure: Figure) -> tuple[tuple[float, float], tuple[float, float]]:
        """Returns (factor of other work, of the collective), without and then with other work bound by memory."""
        first = self.compute, self.collective
        second = self.copy or self.compute, self.beside_copy or self.collective
        return (first[0].at(figure), first[1].at(figure)), (second[0].at(figure), second[1].at(figure))


@dataclass(frozen=True)
class Task:
    """One step of a schedule, with its time. time: µs on its own. of: for a wait, the name of what it waits for.
    slowdown: of a collective and what runs beside it. memory_bound: of other work. stream, link: of a collective, which
    stream it runs on, and what it sends over. met: the ranks have just met, as this is a later piece of what they sent
    each other."""

    name: str
    kind: Kind
    time: Interval = NOTHING
    of: str = ""
    slowdown: Slowdown = field(default_factory=Slowdown)
    memory_bound: bool = False
    stream: str = ""
    link: str = ""
    met: bool = False


@dataclass(frozen=True)
class Corner:
    """The end of each interval to believe. slowdown "low" also lets collectives in at once, as on a stream of high
    priority between small kernels. late_us: how much later than this rank the last one comes to each collective."""

    collective: Figure = "us"
    compute: Figure = "us"
    slowdown: Figure = "us"
    late_us: float = 0.0


LIKELY = Corner()
ENDS: tuple[Figure, ...] = ("low", "high")
CORNERS = tuple(Corner(*figures) for figures in product(ENDS, FIGURES, ENDS))
"""The ends of what may be true. Errors of one model go together: if one collective is slower than thought, all are."""


@dataclass(frozen=True)
class Replay:
    """us: until all streams are done. communication_us: in which collectives ran, those of all streams added up.
    exposed: µs for which the compute stream had nothing to do but wait, by collective."""

    us: float
    communication_us: float
    exposed: Mapping[str, float]

    @property
    def exposed_us(self) -> float:
        """Returns the µs for which the compute stream waited for collectives."""
        return sum(self.exposed.values())

    @property
    def hidden(self) -> float:
        """Returns the share of communication that ran under other work; 1 without communication."""
        return 1.0 - self.exposed_us / self.communication_us if self.communication_us else 1.0


Factors = tuple[tuple[float, float], tuple[float, float]]
"""The type of what `Slowdown.at` returns."""


class Known(NamedTuple):
    """A task in one corner. name: of the collective that starts or is waited for. us: its time."""

    kind: Kind
    name: str
    us: float
    factors: Factors | None
    memory_bound: bool
    stream: str = ""
    link: str = ""


def known(task: Task, corner: Corner) -> Known:
    """Returns a task with the figures that a corner believes."""
    if task.kind == "start":
        us = task.time.at(corner.collective) + (corner.late_us if task.time.high and not task.met else 0.0)
        return Known("start", task.name, us, task.slowdown.at(corner.slowdown), False, task.stream, task.link)
    us = 0.0 if task.kind == "wait" else task.time.at(corner.compute)
    return Known(task.kind, task.of, us, None, task.memory_bound)


@dataclass(slots=True)
class _Collective:
    """left: µs on its own. may_run: a kernel has ended since it could start. stream, link: as in `Task`."""

    name: str
    left: float
    factors: Factors
    may_run: bool
    stream: str
    link: str

    def copy(self) -> _Collective:
        return _Collective(self.name, self.left, self.factors, self.may_run, self.stream, self.link)


State = tuple[_Collective, ...]
ROUNDING = 1e-6
"""µs."""


class Streams:
    """The stream of computation and those of communication, as time goes on.

    moved: what is told each span of time, as (collective, from, until) in µs.
    """

    def __init__(self, corner: Corner = LIKELY, moved: Callable[[str, float, float], None] | None = None) -> None:
        self.corner = corner
        self.now = 0.0
        self.communication_us = 0.0
        self.exposed: dict[str, float] = {}
        self._moved = moved
        self._queues: dict[str, deque[_Collective]] = {}
        """By stream; none is empty."""
        self._stream_of: dict[str, str] = {}
        """Of what is in the queues."""

    def state(self) -> State:
        """Returns what decides how the streams go on, the time aside."""
        return tuple(item.copy() for stream in sorted(self._queues) for item in self._queues[stream])

    def go_on_from(self, state: State) -> None:
        """Sets the streams to a state."""
        self._queues, self._stream_of = {}, {}
        for item in state:
            self._append(item.copy())

    def is_in(self, state: State) -> bool:
        """Returns whether the streams would go on as from `state`, but for rounding."""
        queues = self._queues
        if len(state) != len(self._stream_of):
            return False
        mine = (item for stream in sorted(queues) for item in queues[stream])
        for one, other in zip(mine, state, strict=True):
            if one.name != other.name or one.may_run != other.may_run or abs(one.left - other.left) > ROUNDING:
                return False
        return True

    def backlog(self, stream: str) -> float:
        """Returns the µs of communication that were started on a stream and have not run, if left alone."""
        return sum(item.left for item in self._queues.get(stream, ()))

    @property
    def knocking(self) -> str | None:
        """Returns the collective that has to let a kernel pass before it gets in; None if there is none."""
        return next((queue[0].name for queue in self._queues.values() if not queue[0].may_run), None)

    def left_of(self, name: str) -> float:
        """Returns the µs until a collective that was started has finished, if left alone; 0 if it has."""
        total = 0.0
        for item in self._queues[self._stream_of[name]] if name in self._stream_of else ():
            total += item.left
            if item.name == name:
                break
        return total

    def take(self, task: Task) -> None:
        """Puts a task on its stream, with the figures of this corner."""
        self.do(known(task, self.corner))

    def do(self, task: Known) -> None:
        """Does a task, with the time that this corner believes."""
        if task.kind == "compute":
            self._compute(task.us, task.memory_bound)
        elif task.factors is None:
            self._finish(task.name)
        elif task.us > 0.0:  # in a group of one nothing is sent, so that nothing has to get in
            at_once = self.corner.slowdown == "low"
            self._append(_Collective(task.name, task.us, task.factors, at_once, task.stream, task.link))

    def finish(self) -> None:
        """Moves the time on until all that was started is done."""
        while self._queues:
            self._finish(next(iter(self._queues.values()))[-1].name)

    def _append(self, item: _Collective) -> None:
        self._stream_of[item.name] = item.stream
        if item.stream in self._queues:
            self._queues[item.stream].append(item)
        else:
            self._queues[item.stream] = deque((item,))

    def _compute(self, left: float, memory_bound: bool) -> None:
        if left <= 0.0:
            return
        while left > 0.0:
            running = [queue[0] for queue in self._queues.values() if queue[0].may_run]
            if not running:
                break
            compute, times = 1.0, []
            for item, share in zip(running, self._shares(running), strict=True):
                beside, own = item.factors[memory_bound]
                compute *= beside
                times.append(item.left * own * share)
            span = min(left * compute, *times)
            # What ends the span is done exactly, whatever rounding says.
            left = 0.0 if span == left * compute else left - span / compute
            self._run(running, times, span)
        self.now += left
        for queue in self._queues.values():
            queue[0].may_run = True

    def _finish(self, name: str) -> None:
        if name not in self._stream_of:
            return
        begun = self.now
        while name in self._stream_of:
            running = [queue[0] for queue in self._queues.values()]
            times = [item.left * share for item, share in zip(running, self._shares(running), strict=True)]
            for item in running:
                item.may_run = True
            self._run(running, times, min(times))
        self.exposed[name] = self.exposed.get(name, 0.0) + self.now - begun

    def _shares(self, running: Sequence[_Collective]) -> list[float]:
        """By how many times each collective takes longer beside the others."""
        if len(running) == 1:
            return [1.0]
        if self.corner.slowdown == "high":
            return [float(len(running))] * len(running)
        return [float(sum(other.link == item.link for other in running)) for item in running]

    def _run(self, running: Sequence[_Collective], times: Sequence[float], span: float) -> None:
        """Lets the time go on. times: the µs that each collective would take from here."""
        for item, time in zip(running, times, strict=True):
            if self._moved is not None:
                self._moved(item.name, self.now, self.now + span)
            item.left = 0.0 if span == time else item.left * (1 - span / time)
            if item.left <= 0.0:
                del self._stream_of[item.name]
                queue = self._queues[item.stream]
                queue.popleft()
                if not queue:
                    del self._queues[item.stream]
        self.now += span
        self.communication_us += span * len(running)


def replay(tasks: Sequence[Task], corner: Corner = LIKELY) -> Replay:
    """Replays the tasks in their order, and returns the times."""
    streams = Streams(corner)
    for task in tasks:
        streams.take(task)
    streams.finish()
    return Replay(streams.now, streams.communication_us, streams.exposed)


def surely_gains(new: Sequence[Task], old: Sequence[Task]) -> bool:
    """Returns whether the new order is faster by what is likely, and slower in no corner of the estimates."""
    if not replay(new).us < replay(old).us:
        return False
    return all(replay(new, corner).us <= replay(old, corner).us * (1 + 1e-9) for corner in CORNERS)

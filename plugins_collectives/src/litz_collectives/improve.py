"""A placed order, made better step by step. In: tasks, their dependences, memory, an order. Out: an order.

`place` goes through the steps once and looks ahead by rules. This looks back: the collective that is exposed longest is
helped by whatever single move shortens the replay most, and so on, until none helps or enough were tried. Moves are

- *start* it earlier, together with what it sends and does not exist yet;
- *wait* for it later, and what needs it later too;
- *fill*: work that does not need it goes in between its start and its wait, with what that work needs;
- *yield*: a collective that is ahead of it in the queue starts after it.

What counts is the time by several corners of the estimates together (`JUDGES`), as what is only just hidden is not
surely hidden. No move goes beyond the memory limit. Every rank does the same: it follows from the program and the
estimates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .live import Live
from .place import Work
from .streams import LIKELY, Corner, Known, Replay, State, Streams, Task, known, replay

REACH = 48
"""Steps before and after a collective that are looked at."""
REPLAYED = 120_000
"""Tasks that may be replayed in all: about 0.5 s."""
LATE_US = 50.0
"""How much later than this rank the last one may come to a collective, in µs. Of 131 in training steps on four H200s 1
of 10 took 34 µs longer than the model of `streams` explains, 1 of 20 took 49 µs longer."""
JUDGES = (LIKELY, Corner("high", "us", "high", LATE_US), Corner("high", "low", "us", LATE_US))
"""What an order is judged by, besides what is likely: communication that is slow, beside kernels that slow it down, and
beside kernels that are done soon. (Matrix products on H200s took 0.83 of what was likely.)"""
LEAST = 1.0
"""µs of the score that a move has to save."""


def judged(tasks: Sequence[Task]) -> list[Replay]:
    """Returns the tasks in their order, replayed by each of `JUDGES`."""
    return [replay(tasks, corner) for corner in JUDGES]


def score_of(times: Sequence[float]) -> float:
    """Returns what an order is compared by, of its times by each of `JUDGES`: what is likely counts as much as all that
    is worse together."""
    likely, *worse = times
    return len(worse) * likely + sum(worse)


def improve(work: Work, order: Sequence[int], live: Live, limit: float, replayed: int | None = None) -> list[int]:
    """Positions in a new order that is legal and whose replay is no longer. limit: bytes, as in `place`; an order that
    is beyond it comes back as it is. replayed: the most tasks that may be, `REPLAYED` if not said."""
    if live.peak_in(order) > limit:
        return list(order)
    return _Search(work, list(order), live, limit, REPLAYED if replayed is None else replayed).run()


class _Reel:
    """A replay of an order by one judge, with the state before each step: a changed part is replayed from there.

    tasks: as the judge knows them.
    """

    def __init__(self, tasks: Sequence[Known], order: Sequence[int], judge: Corner) -> None:
        self.tasks, self.judge, self.order = tasks, judge, order
        streams = Streams(judge)
        self.states: list[State] = []
        self.times: list[float] = []
        for number in order:
            self.states.append(streams.state())
            self.times.append(streams.now)
            streams.do(tasks[number])
        streams.finish()
        self.us, self.exposed = streams.now, streams.exposed

    def with_part(self, first: int, part: Sequence[int]) -> tuple[float, int]:
        """(µs if the steps from a position on are these, the tasks that this took to find out). Once the streams are as
        they were at the same step, all goes on as it did."""
        streams = Streams(self.judge)
        streams.go_on_from(self.states[first])
        for number in part:
            streams.do(self.tasks[number])
        at = first + len(part)
        while at < len(self.order):
            if streams.is_in(self.states[at]):
                return self.us + self.times[first] + streams.now - self.times[at], at - first
            streams.do(self.tasks[self.order[at]])
            at += 1
        streams.finish()
        return self.times[first] + streams.now, at - first


Move = tuple[int, list[int]]
"""A position, and the steps that are to stand from there on in place of as many."""


class _Search:
    def __init__(self, work: Work, order: list[int], live: Live, limit: float, replayed: int) -> None:
        self.tasks, self.before, self.live, self.limit = work.tasks, work.before, live, limit
        self.after: list[set[int]] = [set() for _ in work.tasks]
        for number, names in enumerate(work.before):
            for other in names:
                self.after[other].add(number)
        self.starts = work.starts
        self.waits: dict[int, int] = {}
        for number, task in enumerate(work.tasks):
            if task.kind == "wait":
                self.waits.setdefault(self.starts[task.of], number)
        self.known = [(judge, [known(task, judge) for task in work.tasks]) for judge in JUDGES]
        self.left = replayed
        self._take(order)

    def run(self) -> list[int]:
        tried: dict[int, float] = {}
        """Of those that no move helped: how long they were exposed."""
        while self.left > 0:
            open_ = [n for n, us in self.exposed.items() if us > LEAST and abs(us - tried.get(n, 0.0)) > LEAST]
            if not open_:
                break
            start = max(open_, key=lambda n: (self.exposed[n], -n))
            if not self._help(start):
                tried[start] = self.exposed[start]
        return self.order

    def _take(self, order: list[int]) -> None:
        """Go on from an order."""
        self.order = order
        self.at = {number: place for place, number in enumerate(order)}
        self.reels = [_Reel(tasks, order, judge) for judge, tasks in self.known]
        self.left -= len(JUDGES) * len(order)
        self.exposed: dict[int, float] = {}
        for reel in self.reels:
            for name, us in reel.exposed.items():
                self.exposed[self.starts[name]] = self.exposed.get(self.starts[name], 0.0) + us

    def _help(self, start: int) -> bool:
        """Make the best of the moves for a collective; False if none helps."""
        least = score_of([reel.us for reel in self.reels]) - LEAST
        best: list[int] | None = None
        seen: set[tuple[int, tuple[int, ...]]] = set()
        for first, part in self._moves(start):
            if self.left <= 0:
                break
            key = first, tuple(part)
            if key in seen or self.order[first : first + len(part)] == part:
                continue
            seen.add(key)
            us = self._judge(first, part)
            if us < least:
                order = [*self.order[:first], *part, *self.order[first + len(part) :]]
                if self.live.peak_in(order) <= self.limit:
                    least, best = us, order
        if best is None:
            return False
        self._take(best)
        return True

    def _judge(self, first: int, part: Sequence[int]) -> float:
        """The score of an order with this part."""
        times = []
        for reel in self.reels:
            us, took = reel.with_part(first, part)
            self.left -= took
            times.append(us)
        return score_of(times)

    def _moves(self, start: int) -> Iterator[Move]:
        order, at = self.order, self.at[start]
        for target in reversed(range(max(0, at - REACH), at)):
            yield self._earlier(start, target)
        wait = self.waits.get(start)
        until = len(order) - 1 if wait is None else self.at[wait]
        if wait is not None:
            for target in range(until + 1, min(len(order), until + 1 + REACH)):
                if self.tasks[order[target]].kind == "compute":
                    yield self._later(wait, target)
        for number in order[until + 1 : until + 1 + REACH]:
            if self.tasks[number].kind == "compute" and self.tasks[number].time.us > 0:
                yield from (self._earlier(number, target) for target in (until, at + 1))
        for number in order[at + 1 : until]:
            if self.tasks[number].kind == "compute":
                yield self._earlier(number, at + 1)
        for place in range(max(0, at - REACH), at):
            if self.tasks[order[place]].kind == "start":
                yield self._later(order[place], at)

    def _earlier(self, number: int, target: int) -> Move:
        """A step at `target`, and before it what it needs."""
        part = self.order[target : self.at[number] + 1]
        moved = {number}
        for other in reversed(part):
            if not self.after[other].isdisjoint(moved):
                moved.add(other)
        return target, [*(n for n in part if n in moved), *(n for n in part if n not in moved)]

    def _later(self, number: int, target: int) -> Move:
        """A step behind the one that stands at `target`, and behind it what needs it."""
        first = self.at[number]
        part = self.order[first : target + 1]
        moved = {number}
        for other in part:
            if not self.before[other].isdisjoint(moved):
                moved.add(other)
        return first, [*(n for n in part if n not in moved), *(n for n in part if n in moved)]

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
from .place import PESSIMIST, Work
from .streams import LIKELY, Corner, Replay, Task, replay

REACH = 48
"""Steps before and after a collective that are looked at."""
REPLAYS = 300_000
"""Tasks that may be replayed in all: about 0.6 s."""
JUDGES = (LIKELY, PESSIMIST, Corner("high", "low", "us"))
"""What an order is judged by, besides what is likely: communication that is slow, beside kernels that slow it down, and
beside kernels that are done soon. (Matrix products on H200s took 0.83 of what was likely.)"""
LEAST = 1.0
"""µs, of all replays together, that a move has to save."""


def judged(tasks: Sequence[Task]) -> list[Replay]:
    """The tasks in their order, replayed by each of `JUDGES`."""
    return [replay(tasks, corner) for corner in JUDGES]


def improve(work: Work, order: Sequence[int], live: Live, limit: float) -> list[int]:
    """Positions in a new order that is legal and whose replay is no longer. limit: bytes, as in `place`; an order that
    is beyond it comes back as it is."""
    if live.peak_in(order) > limit:
        return list(order)
    return _Search(work, list(order), live, limit).run()


class _Search:
    def __init__(self, work: Work, order: list[int], live: Live, limit: float) -> None:
        self.tasks, self.before, self.order, self.live, self.limit = work.tasks, work.before, order, live, limit
        self.after: list[set[int]] = [set() for _ in work.tasks]
        for number, names in enumerate(work.before):
            for other in names:
                self.after[other].add(number)
        self.starts = work.starts
        self.waits: dict[int, int] = {}
        for number, task in enumerate(work.tasks):
            if task.kind == "wait":
                self.waits.setdefault(self.starts[task.of], number)
        self.left = REPLAYS // max(1, len(JUDGES) * len(order))
        self.us, self.exposed = self._judge(order)

    def run(self) -> list[int]:
        stuck: set[int] = set()
        while self.left > 0:
            start = max(
                (n for n, us in self.exposed.items() if us > LEAST and n not in stuck),
                key=lambda n: (self.exposed[n], -n),
                default=None,
            )
            if start is None:
                break
            stuck = set() if self._help(start) else {*stuck, start}
        return self.order

    def _help(self, start: int) -> bool:
        """Make the best of the moves for a collective; False if none helps."""
        best: tuple[float, list[int], dict[int, float]] | None = None
        seen: set[tuple[int, ...]] = {tuple(self.order)}
        for order in self._moves(start):
            if self.left <= 0:
                break
            key = tuple(order)
            if key in seen:
                continue
            seen.add(key)
            us, exposed = self._judge(order)
            if us < (self.us - LEAST if best is None else best[0]) and self.live.peak_in(order) <= self.limit:
                best = us, order, exposed
        if best is None:
            return False
        self.us, self.order, self.exposed = best
        return True

    def _judge(self, order: Sequence[int]) -> tuple[float, dict[int, float]]:
        """(µs, exposed µs by collective), those of all judges together."""
        self.left -= 1
        tasks = [self.tasks[n] for n in order]
        found = judged(tasks)
        exposed: dict[int, float] = {}
        for one in found:
            for name, us in one.exposed.items():
                exposed[self.starts[name]] = exposed.get(self.starts[name], 0.0) + us
        return sum(one.us for one in found), exposed

    def _moves(self, start: int) -> Iterator[list[int]]:
        order = self.order
        at = order.index(start)
        for target in reversed(range(max(0, at - REACH), at)):
            yield self._earlier(start, target)
        wait = self.waits.get(start)
        until = len(order) - 1 if wait is None else order.index(wait)
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

    def _earlier(self, number: int, target: int) -> list[int]:
        """The order with a step at `target`, or where it was if that is earlier, and before it what it needs."""
        moved = {number}
        at = self.order.index(number)
        for place in range(at - 1, target - 1, -1):
            other = self.order[place]
            if not self.after[other].isdisjoint(moved):
                moved.add(other)
        part = self.order[target : at + 1]
        return [
            *self.order[:target],
            *(n for n in part if n in moved),
            *(n for n in part if n not in moved),
            *self.order[at + 1 :],
        ]

    def _later(self, number: int, target: int) -> list[int]:
        """The order with a step behind the one that stands at `target`, and behind it what needs it."""
        moved = {number}
        at = self.order.index(number)
        for place in range(at + 1, target + 1):
            other = self.order[place]
            if not self.before[other].isdisjoint(moved):
                moved.add(other)
        part = self.order[at : target + 1]
        return [
            *self.order[:at],
            *(n for n in part if n not in moved),
            *(n for n in part if n in moved),
            *self.order[target + 1 :],
        ]

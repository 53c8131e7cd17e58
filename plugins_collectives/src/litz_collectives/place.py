"""The order of a schedule's steps around its communication. In: tasks, their dependences and memory. Out: positions.

Steps run in the order they came in, with these exceptions, made while the streams are simulated:

- *Start.* A collective that frees as much as it allocates (a reduction) starts as soon as what it sends is there. One
  that takes memory (a gather of parameters) starts when the work that can run under it, by its least time and without
  the kernel that it has to let pass first, is only just as long as the communication, by its longest: early enough to
  be hidden, and no earlier.
- *Feed.* When a collective should start and what it sends is not computed yet, the steps that compute it go first. The
  others are left to run under it.
- *Wait.* A wait stands where its collective has finished by its longest time, or where nothing else can run.
- *Memory.* None of these goes where it would take live memory beyond a limit. What is gathered early stays till it is
  used, so there has to be room beside all that the order given has live meanwhile.

Every rank places alike: all of it follows from the program and the estimates.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

from .live import Live
from .streams import Corner, Streams, Task

AHEAD = 8
"""Collectives that are looked at for whether they should start."""
SMALL = 0.05
"""A step of less than this share of a collective's time hides too little of it to be kept back."""
WORTH = 0.25
"""The share of a step's time that a wait must still take before the step goes ahead of what waits."""

PESSIMIST = Corner("high", "us", "high")


@dataclass(frozen=True)
class Work:
    """Tasks in the order that they came in. before: for each task, the positions that it must follow."""

    tasks: Sequence[Task]
    before: Sequence[set[int]]

    @property
    def starts(self) -> dict[str, int]:
        """Returns collective -> the number of the task that starts it."""
        return {task.name: number for number, task in enumerate(self.tasks) if task.kind == "start"}


def place(work: Work, live: Live, limit: float, *, hold_back: bool = False, ahead: int | None = None) -> list[int]:
    """Returns positions in the new order. limit: bytes that `live` may reach, unless the order given goes beyond it.

    hold_back: a step that feeds one collective may be left to run under another, later one. So there is work left for a
    collective at the end (the last gradient's), at the price of its own being late. ahead: a gather starts as soon as
    fewer than so many of its stream are under way or not used yet, in place of when its time asks for it.
    """
    return _Placer(work, live, limit, hold_back, ahead).run()


class _Placer:
    def __init__(self, work: Work, live: Live, limit: float, hold_back: bool, ahead: int | None) -> None:
        self.hold_back, self.ahead = hold_back, ahead
        self.unused: dict[str, set[int]] = {}
        """By stream, the collectives that have started and whose results nothing has used."""
        self.tasks, self.before, self.live, self.limit = work.tasks, work.before, live, limit
        count = len(work.tasks)
        self.after: list[list[int]] = [[] for _ in range(count)]
        for number, names in enumerate(work.before):
            for other in names:
                self.after[other].append(number)
        self.missing = [len(names) for names in work.before]
        self.streams = Streams(PESSIMIST)
        self.needed = live.profile()
        self.early: dict[int, int] = {}
        """Collectives that have started and that the order given has later, and their bytes."""
        self.frontier = 0
        """The first position whose step has not run."""
        self.order: list[int] = []
        self.gone = [False] * count
        self.ready: dict[str, list[int]] = {"compute": [], "start": [], "wait": []}
        """By kind, in the order given."""
        self.eager: list[int] = []
        """Of the collectives that can start, those that take no memory."""
        self.starts = work.starts
        self._look(count)
        for number in range(count):
            if self.missing[number] == 0:
                self._offer(number)

    def _look(self, count: int) -> None:
        """Finds what each step needs, how much hangs on it, and when the result of each collective is wanted."""
        self.above = [0] * count
        """Bits of all that must come before a step."""
        for number, names in enumerate(self.before):
            for other in names:
                self.above[number] |= self.above[other] | 1 << other
        self.tail = [0.0] * count
        for number in reversed(range(count)):
            longest = max((self.tail[other] for other in self.after[number]), default=0.0)
            self.tail[number] = longest + self.tasks[number].time.us
        self.wanted = dict.fromkeys(self.starts.values(), count)
        for number, task in enumerate(self.tasks):
            if task.kind == "wait" and task.of in self.starts:
                users = [user for user in self.after[number] if self.tasks[user].kind != "wait"]
                start = self.starts[task.of]
                self.wanted[start] = min([self.wanted[start], *users])
        self.used_by: dict[int, list[int]] = {}
        """Step -> the collectives whose results it is the first to use."""
        for start, user in self.wanted.items():
            self.used_by.setdefault(user, []).append(start)
        self.coming = sorted(self.wanted, key=lambda start: (self.wanted[start], start))
        self.feeds: dict[int, dict[int, None]] = {}
        """Of the collectives that come next: what has to run before it can start, as far as it has not."""
        self.unfed: dict[int, float] = {}
        """µs of that."""
        self.under: dict[int, float] = {}
        """Least µs of what is still to run before the result is wanted, and may run under it."""
        self.longest_under: dict[int, float] = {}
        """Of that, the longest step."""
        self.fed_by: list[list[int]] = [[] for _ in range(count)]
        self.hides: list[list[int]] = [[] for _ in range(count)]
        """By step, the collectives that it feeds, and that it could hide."""

    def _approach(self, start: int) -> None:
        """A collective comes into view."""
        above = self.above[start]
        left = [n for n in range(self.frontier, start) if not self.gone[n] and above >> n & 1]
        self.feeds[start] = dict.fromkeys(left)
        self.unfed[start] = sum(self.tasks[n].time.us for n in left)
        for number in left:
            self.fed_by[number].append(start)
        self.under[start] = self.longest_under[start] = 0.0
        for number in range(self.frontier, self.wanted[start]):
            if self.gone[number] or self.tasks[number].kind != "compute":
                continue
            if not above >> number & 1 and not self.above[number] >> start & 1:
                least = self.tasks[number].time.low
                self.under[start] += least
                self.longest_under[start] = max(least, self.longest_under[start])
                self.hides[number].append(start)

    def run(self) -> list[int]:
        while len(self.order) < len(self.tasks):
            self._take(self._next())
        return self.order

    def _offer(self, number: int) -> None:
        kind = self.tasks[number].kind
        insort(self.ready[kind], number)
        if kind == "start" and self._frees(number):
            insort(self.eager, number)

    def _take(self, number: int) -> None:
        task = self.tasks[number]
        self.ready[task.kind].remove(number)
        self.order.append(number)
        self.gone[number] = True
        if task.kind == "start":
            self.coming.remove(number)
            if number in self.eager:
                self.eager.remove(number)
            self.early[number] = self.live.allocated_by(number)
            self.unused.setdefault(task.stream, set()).add(number)
        for started in self.unused.values():
            started.difference_update(self.used_by.get(number, ()))
        self.live.take(number)
        self.streams.take(task)
        while self.frontier < len(self.gone) and self.gone[self.frontier]:
            self.early.pop(self.frontier, None)
            self.frontier += 1
        for start in self.hides[number]:
            self.under[start] -= task.time.low
        for start in self.fed_by[number]:
            self.unfed[start] -= task.time.us
        for other in self.after[number]:
            self.missing[other] -= 1
            if self.missing[other] == 0:
                self._offer(other)

    def _next(self) -> int:
        for start in self.coming[:AHEAD]:
            if start not in self.feeds:
                self._approach(start)
        for wait in self.ready["wait"]:
            if self.streams.left_of(self.tasks[wait].of) <= 0.0:
                return wait
        first = self._first()
        for start in self.eager:
            if self._fits(start):
                return start
        for start in self.coming[:AHEAD]:
            if self.missing[start] == 0 and self._is_due(start, first) and self._has_room(start):
                return start
        if first is not None:
            feeding = self._feeding(first)
            if feeding is not None:
                return feeding
            if not self._should_wait(first):
                return first
        if self.ready["wait"]:
            return min(self.ready["wait"], key=lambda n: (self.streams.left_of(self.tasks[n].of), n))
        return min(self.ready["compute"] + self.ready["start"])

    def _first(self) -> int | None:
        """The step that is next in the order given, of those that can run; where a collective has to let a kernel pass,
        the shortest of those that stand before its result is wanted."""
        fitting = [n for n in self.ready["compute"] if self._fits(n)]
        knocking = self.streams.knocking
        if not fitting or knocking is None:
            return fitting[0] if fitting else None
        wanted = self.wanted[self.starts[knocking]]
        near = [n for n in fitting if n < wanted and self.tasks[n].time.us > 0]
        return min(near or fitting[:1], key=lambda n: (self.tasks[n].time.us, n))

    def _fits(self, number: int) -> bool:
        return self.live.now + self.live.allocated_by(number) <= self.limit

    def _has_room(self, start: int) -> bool:
        """Returns whether there is room for the result from now until the order given would have it."""
        most = max(self.needed[self.frontier : start], default=0)
        early = sum(self.early.values()) + self.live.allocated_by(start)
        return self._fits(start) and (start <= self.frontier or most + early <= self.limit)

    def _frees(self, start: int) -> bool:
        """Returns whether communication leaves no more than it found. What it sends counts while it is in flight."""
        sent = sum(self.live.size[n] for n in self.live.touched[start] if n in self.live.born)
        return self.live.allocated_by(start) <= sent

    def _is_due(self, start: int, first: int | None) -> bool:
        """Returns whether one more step would leave too little to hide the collective under, once it has got in."""
        task = self.tasks[start]
        if self.ahead is not None:
            return len(self.unused.get(task.stream, ())) < self.ahead
        longest = (self.streams.backlog(task.stream) + task.time.high) * task.slowdown.collective.high
        less = self.tasks[first].time.low if first is not None and start in self.hides[first] else 0.0
        return self.under[start] - less - self.longest_under[start] < longest

    def _feeding(self, first: int) -> int | None:
        """A step to go before `first`, for a collective that should start."""
        its_turn = False
        for start in self.coming[:AHEAD]:
            time = self.tasks[start].time
            # Where `first` itself feeds a collective that is wanted sooner, only a little goes before it: the casts of
            # parameters that are to be gathered, say.
            its_turn = its_turn or (first in self.feeds[start] and not self.hold_back)
            if self.missing[start] == 0 or start not in self.hides[first] or (its_turn and self.unfed[start] > time.us):
                continue
            if self.tasks[first].time.low < SMALL * time.high or not self._is_due(start, first):
                continue
            for number in self.feeds[start]:
                if not self.gone[number] and self.missing[number] == 0 and self.tasks[number].kind == "compute":
                    if self._fits(number):
                        return number
        return None

    def _should_wait(self, first: int) -> bool:
        """Returns whether something of more consequence is nearly there, or a collective of more consequence would let
        `first` pass and hide under nothing. The idle GPU lets it in at once, and `first` is kept for another time."""
        time = self.tasks[first].time.us
        knocking, others = self.streams.knocking, len(self.ready["compute"]) - 1
        for wait in self.ready["wait"]:
            of = self.tasks[wait].of
            if self.tail[wait] <= self.tail[first]:
                continue
            if self.streams.left_of(of) < WORTH * time or (of == knocking and not others):
                return True
        return False

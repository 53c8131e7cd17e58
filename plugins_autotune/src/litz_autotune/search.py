"""The search among a graph's decisions. In: a `Tuning`, and the seconds that it may take. Out: the variant that runs.

    weighed decisions -> alternatives by promise -> a variant -> what differs -> a duel, and another if it wins -> kept

Greedy: what wins is where the next alternative starts from. At the end all of the graph, tuned and not, is compared
once more, where that can be: what won in parts must not lose as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import torch

from litz.driver.variants import MEASURED, Tuning, Variant
from litz_plugins import Decision
from litz_plugins.errors import describe

from .alternatives import Alternative, rank
from .difference import Difference, Inseparable, difference, whole
from .duel import Different, Duel
from .judge import judge
from .kept import Tried, Tuned
from .pool import Failure, Runner
from .timing import CudaTimer, Timer, TurnsTimer

SECONDS = {"cpu": 0.6, "cuda": 0.1}
"""The seconds of a duel's runs, by type of device."""
UNCLEAR, LONGER = 0.05, 5
"""A gain of so much that noise hides is worth runs for so many times as long."""
BUILD_SECONDS = 2.0
"""The seconds that building a kernel is thought to take until one was built here: what a C++ compiler takes."""
SHARE = 0.5
"""The share of the device's free memory that a duel's tensors may take."""
TENSORS = 3
"""Times the bytes of what differs: inputs and results of each of the two, and one more set."""


@dataclass
class Clock:
    """The seconds that a trial takes, as learnt so far: to make a schedule, and to build a kernel."""

    schedule: float = 0.5
    kernel: float = BUILD_SECONDS


@dataclass
class Search:
    """deadline: on time.monotonic's clock. settled: keys that were measured elsewhere. stopped: is it to end at once?
    before: what was tried before."""

    tuning: Tuning
    runner: Runner
    deadline: float
    settled: Collection[str] = ()
    timer: Timer | None = None
    stopped: Callable[[], bool] = lambda: False
    base: Variant | None = None
    before: Tuned = field(default_factory=Tuned)
    early: bool = True
    clock: Clock = field(default_factory=Clock)
    duels: int = 0

    def run(self) -> tuple[Variant, Tuned]:
        """Returns the variant that runs, and the record of what was tried."""
        first = best = self.base or self.tuning.first
        if self.before.ways:
            best = self.tuning.make(self.before.ways)
        tried = {each.name: each for each in self.before.tried}
        complete = True
        while (alternative := self._next(best, tried)) is not None:
            if self.stopped() or not self._time_for(self.clock.schedule):
                complete = False
                break
            try:
                best, found = self._try(best, alternative)
            except _NoTime:
                complete = False
                break
            except Exception as error:  # whatever a variant does wrong, the others are as good as before
                found = Tried(alternative.name, False, describe(error))
            tried[found.name] = found
        best, last = self._as_a_whole(first, best)
        everything = (*tried.values(), *([last] if last else []))
        return best, Tuned(dict(best.ways), everything, complete, self._label())

    def _next(self, best: Variant, tried: Collection[str]) -> Alternative | None:
        settled = {*self.settled, *best.ways}
        weighed = {key: found for key, found in best.weighed.items() if self.early or not self.tuning.is_early(key)}
        return next((each for each in rank(weighed, self.tuning.total_us, settled) if each.name not in tried), None)

    def _time_for(self, seconds: float) -> bool:
        return time.monotonic() + seconds < self.deadline

    def _try(self, best: Variant, alternative: Alternative) -> tuple[Variant, Tried]:
        variant, found = self._differing(best, alternative.keys, alternative)
        if found is None:
            return best, Tried(alternative.name, False, "makes no difference")
        measured, keys = found, alternative.keys
        while not self._fits(measured) and len(keys) > 1:
            keys = keys[: len(keys) // 2]  # they are alike: some stand for all
            _, part = self._differing(best, keys, alternative)
            if part is None:
                break
            measured = part
        if not self._fits(measured):
            size = measured.nbytes >> 20
            return best, Tried(alternative.name, False, f"what differs takes {size} MiB: too much to measure here")
        verdict, _ = self._duel(measured)
        if verdict.won:
            again, _ = self._duel(measured)  # of many ties one looks like a gain
            verdict = again if again.won else replace(again, reason=f"a gain that was not there again: {again.reason}")
        tried = replace(verdict, name=alternative.name)
        if not tried.won:
            return best, tried
        self.tuning.note(variant, _decision(tried, measured))
        return variant, tried

    def _differing(
        self, best: Variant, keys: Collection[str], alternative: Alternative
    ) -> tuple[Variant, Difference | None]:
        begun = time.monotonic()
        variant = self.tuning.make({**best.ways, **dict.fromkeys(keys, alternative.way)})
        self.clock.schedule = max(time.monotonic() - begun, self.clock.schedule / 2)
        return variant, difference(best.schedule, variant.schedule)

    def _fits(self, found: Difference) -> bool:
        return fits(found.nbytes, self.tuning.device)

    # ----------------------------------------------------------------------------------------------------- measuring

    def _duel(self, found: Difference) -> tuple[Tried, bool]:
        """Returns what was tried, and whether the second of what differs is slower. Where noise hides a gain that would
        count it is measured for longer. Raises _NoTime where there is no time left for the first of it."""
        verdict, slower = self._run(found, 1)
        if not verdict.won and verdict.us is not None and verdict.us[1] < (1 - UNCLEAR) * verdict.us[0]:
            with suppress(_NoTime):
                return self._run(found, LONGER)
        return verdict, slower

    def _run(self, found: Difference, longer: int) -> tuple[Tried, bool]:
        kernels = len(found.first.launched) + len(found.second.launched)
        device = self.tuning.device.type
        seconds = longer * SECONDS.get(device, 0.3)
        if self.stopped() or not self._time_for(kernels * self.clock.kernel + 2 * seconds):
            raise _NoTime
        timer = self.timer or (CudaTimer() if device == "cuda" else TurnsTimer())
        options: Any = self.tuning.options
        alone = options["autotune.in_subprocess"] and options["autotune.multi_device"] and device == "cuda"
        cache: Any = self.tuning.cache
        duel = Duel(found.first, found.second, timer, options, str(cache.root), seconds, 0 if alone else None)
        begun, self.duels = time.monotonic(), self.duels + 1
        patience = min(options["autotune.timeout"], max(1.0, self.deadline - begun))
        (result,) = self.runner.run([duel], patience)
        spent = max(0.0, time.monotonic() - begun - 2 * seconds)
        if isinstance(result, Failure):
            return Tried("", False, result.reason, None, found.whole), result.reason.startswith(Different.__name__)
        self.clock.kernel = min(self.clock.kernel, spent / max(1, kernels))
        first, second = result
        slower = judge(second, first, device, 0.0, found.whole).won
        return judge(first, second, device, self._handicap(found), found.whole), slower

    def _handicap(self, found: Difference) -> float:
        """µs of the host for the launches that the second has more: a device's clock does not see them. None where CUDA
        graphs launch all."""
        if self.tuning.is_recorded or not self.tuning.target.asynchronous:
            return 0.0
        more = len(found.second.steps) - len(found.first.steps)
        return max(0, more) * self.tuning.target.launch_us

    def _as_a_whole(self, first: Variant, best: Variant) -> tuple[Variant, Tried | None]:
        """The tuned graph, unless it is slower than it was; what was found, None where that was not looked at."""
        if best.ways == first.ways:
            return best, None
        try:
            found = whole(first.schedule, best.schedule)
            if not self._fits(found):
                return best, None
            verdict, worse = self._duel(found)
        except (Inseparable, _NoTime):
            return best, None
        if worse:
            reason = f"what won in parts loses as a whole: {verdict.reason}"
            return first, replace(verdict, name=WHOLE, reason=reason)
        return best, replace(verdict, name=WHOLE, won=True)

    def _label(self) -> str:
        return f"{self.tuning.graph.name} on {self.tuning.target.name or self.tuning.device}"


WHOLE = "all of it, tuned"


class _NoTime(Exception):
    """Raised where the budget does not reach for the next duel."""


def _decision(tried: Tried, measured: Difference) -> Decision:
    times = (("as estimated", tried.us[0]), ("measured faster", tried.us[1])) if tried.us else ()
    gained = tried.us[0] - tried.us[1] if tried.us else None
    why = f"{MEASURED}: {tried.reason}"
    return Decision("schedule", tried.name, "taken otherwise", why, times, "autotune", gained_us=gained)


def free_bytes(device: torch.device) -> float:
    """Returns the bytes of memory that are free on a device; infinite where nobody says."""
    if device.type == "cuda" and torch.cuda.is_available():
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = [line.split() for line in file]
    except OSError:
        return inf
    return next((float(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:"), inf)


def fits(nbytes: int, device: torch.device) -> bool:
    """Returns whether there is memory to measure what has tensors of so many bytes."""
    return nbytes * TENSORS <= SHARE * free_bytes(device)


__all__ = ["Search", "fits", "free_bytes"]

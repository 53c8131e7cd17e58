"""The search among a kernel's settings. In: what is one step from some settings, and what measures. Out: the
measurements, each with its reason, and the settings that won.

    untuned -> all one step away, each in turns with the best so far -> the best of them -> ... -> untuned again, twice

A step is taken where it gains more than noise. What was found in steps has to beat the untuned kernel in a longer
measurement, and in another one: of many candidates one looks fast by chance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from .judge import compare
from .measurement import Measurement, failed
from .results import UNTUNED

SCREEN_SECONDS, FINAL_SECONDS = 0.03, 0.1
"""For the runs of two candidates in turns: in a step, and at the end."""

Settings = Mapping[str, int]
Measure = Callable[[Sequence[tuple[str, str]], float], Sequence[tuple[Measurement, Measurement]]]
"""Times pairs of names, in turns, for so many seconds each. Where the second of a pair fails its time is infinite."""


def name_of(settings: Settings) -> str:
    """Returns the settings as text, which `settings_in` reads."""
    return " ".join(f"{name}={value}" for name, value in settings.items()) or UNTUNED


def settings_in(name: str) -> dict[str, int]:
    """Returns the settings that a text names. Errors: ValueError for a text that names none."""
    if name == UNTUNED:
        return {}
    pairs = [each.partition("=") for each in name.split(" ")]
    return {key: int(value) for key, _, value in pairs}


@dataclass
class Hill:
    """near: the names of settings one step from those of a name, which were not asked for before. measure: see
    `Measure`. most: candidates to measure. deadline: on time.monotonic's clock. stopped: is it to end at
    once?

    measured: what was found, with the reason why it does not win; of the winner and of the untuned kernel without one.
    """

    near: Callable[[str], Sequence[str]]
    measure: Measure
    most: int
    deadline: float
    measured: dict[str, Measurement] = field(default_factory=dict)
    complete: bool = True
    stopped: Callable[[], bool] = lambda: False

    def climb(self) -> str:
        """Returns the name of the settings that win, `UNTUNED` where none do."""
        best, step = UNTUNED, 0
        while (candidates := self._candidates(best)) and self._in_time():
            step += 1
            found = self._screened(best, candidates, step)
            if found is None:
                break
            best = found
        return self._final(best)

    def _candidates(self, best: str) -> list[str]:
        left = self.most - sum(name != UNTUNED for name in self.measured)
        return [] if left <= 0 else list(self.near(best))[:left]

    def _in_time(self) -> bool:
        in_time = time.monotonic() < self.deadline and not self.stopped()
        self.complete = self.complete and in_time
        return in_time

    def _screened(self, best: str, candidates: Sequence[str], step: int) -> str | None:
        """The candidate that gains most over the best so far; None if none does."""
        gains: dict[str, float] = {}
        for name, (now, own) in zip(
            candidates, self.measure([(best, each) for each in candidates], SCREEN_SECONDS), strict=True
        ):
            if best not in self.measured or self.measured[best].us == inf:
                self.measured[best] = now
            verdict = compare(now, own)
            if verdict.won and verdict.us is not None:
                gains[name] = verdict.us[1] / verdict.us[0]
            why = verdict.reason if own.valid else own.reason
            self.measured[name] = replace(own, reason=f"step {step}, from {best}: {why}")
        best = min(gains, key=lambda name: gains[name], default="")
        if not best:
            return None
        self.measured[best] = replace(self.measured[best], reason=f"taken in {self.measured[best].reason}")
        return best

    def _final(self, best: str) -> str:
        """The best against the untuned kernel."""
        if best == UNTUNED:
            return UNTUNED
        climbed = self.measured[best].reason
        for turn in ("", "a gain that was not there again: "):
            if not self._in_time():
                self.measured[best] = replace(self.measured[best], reason=f"{climbed}; no time was left to confirm it")
                return UNTUNED
            ((untuned, own),) = self.measure([(UNTUNED, best)], FINAL_SECONDS)
            verdict = compare(untuned, own)
            self.measured |= {UNTUNED: untuned, best: own}
            if not verdict.won:
                why = verdict.reason if own.valid else own.reason
                self.measured[best] = replace(own, reason=f"{climbed}; against {UNTUNED}: {turn}{why}")
                return UNTUNED
        return best


def winner(measured: Mapping[str, Measurement]) -> tuple[str, str]:
    """Returns the name of the settings that won, by a record's measurements, and why. The rule is that of the search:
    who has no reason against it, and gains more than noise."""
    untuned = measured.get(UNTUNED, failed("the untuned kernel was not measured"))
    for name, own in measured.items():
        if name != UNTUNED and own.valid:
            verdict = compare(untuned, own)
            return (name if verdict.won else UNTUNED), verdict.reason
    return UNTUNED, "no other settings gain more than noise"


__all__ = ["Hill", "Settings", "name_of", "settings_in", "winner"]

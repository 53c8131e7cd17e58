"""Who won a duel. In: the µs of each run of two schedules, in turns. Out: a `Tried`, without a name.

On a GPU, events with the host hidden: medians and their standard errors, as for contractions (`decide`). On a processor
others run as well, for longer than a measurement takes: the fastest run of each is what it takes where nothing disturbs
it; and it has to be faster in so many rounds that chance does not do that, or, where most rounds are disturbed, the
fastest runs of all have to be its own (Tukey, "A Quick, Compact, Two-Sample Test", 1959, one end of it).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, sqrt

from litz.logs.units import time_text

from .decide import LEAST_GAIN, SHORT_GAIN, SHORT_GAIN_US, SHORT_US, SIGMAS
from .kept import Tried
from .measurement import Measurement, summarize

LEAST_CPU = 0.03
"""The smallest gain that counts on a processor, as a share of the present time: two runs of one kernel differ by as
much."""
AHEAD = 10
"""Runs of one that are faster than all of the other's: of two that are the same it is so once in a thousand times."""


Judged = tuple[tuple[float, float] | None, str, str]
"""Times, what speaks against the second, and what for it."""


def judge(
    first: Sequence[float], second: Sequence[float], device: str, handicap: float = 0.0, whole: bool = False
) -> Tried:
    """Judges whether the second is faster beyond noise. handicap: µs that it takes besides, which the clock does not
    see. whole: for the record."""
    second = [us + handicap for us in second]
    return _verdict(_by_rounds(first, second) if device == "cpu" else _by_medians(first, second), whole)


def compare(first: Measurement, second: Measurement) -> Tried:
    """Judges whether the second is faster beyond noise, from medians and their standard errors, by the same rule."""
    return _verdict(_by_times(first, second), False)


def _verdict(judged: Judged, whole: bool) -> Tried:
    us, problem, proof = judged
    if us is None:
        return Tried("", False, problem, None, whole)
    gain = us[0] - us[1]
    if gain <= 0:
        return Tried("", False, "no faster", us, whole)
    if problem:
        return Tried("", False, f"a gain of {time_text(gain)} is within the noise: {problem}", us, whole)
    return Tried("", True, f"gains {gain / us[0]:.1%}, {proof}", us, whole)


def _by_rounds(first: Sequence[float], second: Sequence[float]) -> Judged:
    us = min(first), min(second)
    rounds = len(first)
    faster = sum(b < a for a, b in zip(first, second, strict=True))
    needed = rounds / 2 + SIGMAS * sqrt(rounds) / 2
    proof = f"faster in {faster} of {rounds} rounds"
    if us[0] - us[1] <= LEAST_CPU * us[0]:
        return us, f"less than {LEAST_CPU:.0%}", proof
    if faster >= needed:
        return us, "", proof
    ahead = sum(b < us[0] for b in second)
    proof = f"{proof}, {ahead} runs faster than any other"
    return us, "" if ahead >= AHEAD else proof, proof


def _by_medians(first: Sequence[float], second: Sequence[float]) -> Judged:
    return _by_times(summarize(first), summarize(second))


def _by_times(a: Measurement, b: Measurement) -> Judged:
    if not (a.valid and b.valid):
        return None, a.reason or b.reason, ""
    needed = max(SIGMAS * hypot(a.noise_us, b.noise_us), LEAST_GAIN * a.us)
    if a.us < SHORT_US:
        needed = max(needed, SHORT_GAIN * a.us, SHORT_GAIN_US)
    noise = f"noise {time_text(needed)}"
    return (a.us, b.us), "" if a.us - b.us > needed else noise, noise


__all__ = ["compare", "judge"]

"""From outcomes to numbers. In: what runs came to. Out: a value, better when smaller, and how far it may be off."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from litz_tools.errors import BisectError

from .run import FEWEST, LAST_LINES, Outcome

LEAST = 0.02
"""The smallest slowdown that counts, as a share of the time."""
TIMES_NOISE = 2.0
NOISIEST = 0.25
"""Spread of equal runs, as a share of their time, beyond which "no difference" says nothing."""
RUNS = 3
"""Runs of each side, and at the end with and without what was found."""

RIGHT, WRONG = 0.0, 1.0


@dataclass(frozen=True)
class Bar:
    """The measure that runs are held to. base, other: seconds of a round with litz and on the other side. As shares of
    base: noise, how far equal runs are apart; least, what a gain must be to count, 1 or more where nothing can."""

    base: float
    other: float
    noise: float
    least: float

    @property
    def differs(self) -> bool:
        """Returns whether the other side is faster by a gain that counts."""
        return self.other < self.base * (1 - self.least)

    @property
    def too_noisy(self) -> bool:
        """Returns whether a difference worth finding may hide in the noise."""
        return not self.differs and self.noise > NOISIEST


def time_bar(runs: Sequence[Outcome], others: Sequence[Outcome]) -> Bar:
    """Returns the median times of some runs of each side, the noise of equal runs, and the gain that stands out."""
    base, other = (statistics.median(run.seconds for run in each) for each in (runs, others))
    apart = max(spread([run.seconds for run in each]) for each in (runs, others))
    noise = max(apart / base, *(run.spread for run in runs))
    return Bar(base, other, noise, max(LEAST, TIMES_NOISE * noise))


def spread(values: Sequence[float]) -> float:
    """Returns how far apart the values of equal runs are, in their own unit; 0 of runs that failed."""
    finite = [value for value in values if math.isfinite(value)]
    return max(finite) - min(finite) if finite else 0.0


def clear_gain(slower: Sequence[float], faster: Sequence[float]) -> bool:
    """Returns whether runs in turns show a gain: larger than the spread of equal runs, and than `LEAST`."""
    if not slower or not all(map(math.isfinite, (*slower, *faster))):
        return False
    gain = statistics.median(slower) - statistics.median(faster)
    return gain > max(spread(slower), spread(faster), LEAST * statistics.median(slower))


def value_of(outcome: Outcome, wrong: bool) -> float:
    """Returns the seconds of a round, infinite for a run that failed or has too few calls; with `wrong`, RIGHT or
    WRONG, by the run's results."""
    if wrong:
        return RIGHT if outcome.ratio <= 1 else WRONG
    return float("inf") if outcome.failure or not outcome.enough else outcome.seconds


def check_runs(outcome: Outcome, name: str, hint: str = "") -> None:
    """Checks that a run of the script did not fail. name: of the side. hint: what to do. Errors: BisectError, with the
    last lines that the script wrote."""
    if outcome.failure:
        lines = "\n".join(f"    {line}" for line in outcome.log.strip().splitlines()[-LAST_LINES:])
        raise BisectError(
            f"the script does not run with {name}: {outcome.failure}",
            where=f"the last that it wrote:\n{lines}" if lines else "it wrote nothing",
            todo=hint or "make it run there first",
        )


def check_calls(outcome: Outcome, name: str) -> None:
    """Raises BisectError where the script called nothing that it compiled with litz, ran no kernel, or made too few
    calls to be timed. name: of the side, for the message."""
    if not outcome.times:
        raise BisectError(
            f"the script calls nothing that it compiled with litz (run with {name})",
            todo='have it call a function or module made by torch.compile(..., backend="litz")',
        )
    if outcome.enough and not outcome.seconds:
        raise BisectError(
            f"no kernel ran on a GPU (run with {name}), and kernels are what is timed", todo="measure by --clock wall"
        )
    if not outcome.enough:
        calls = ", ".join(f"{site} {len(times)}" for site, times in outcome.times.items())
        raise BisectError(
            f"too few calls to be timed ({calls}); the first ones, which compile, do not count",
            todo=f"call what is compiled {4 * FEWEST} times or more, or pass --repeat {4 * FEWEST}, which makes each "
            "call so many times with the same arguments",
        )


__all__ = ["RIGHT", "RUNS", "WRONG", "Bar", "check_calls", "check_runs", "clear_gain", "spread", "time_bar", "value_of"]

"""From outcomes to numbers. In: what runs came to. Out: a value, better when smaller, and how far it may be off."""

from __future__ import annotations

from dataclasses import dataclass

from litz_tools.errors import BisectError

from .run import FEWEST, LAST_LINES, Outcome

LEAST = 0.02
"""The smallest slowdown that counts, as a share of the time."""
TIMES_NOISE = 2.0
NOISIEST = 0.25
"""Difference between two runs of the same, beyond which only a larger one is looked into."""
MOST = 0.8
"""A gain of this share of the time counts whatever the noise."""

RIGHT, WRONG = 0.0, 1.0


@dataclass(frozen=True)
class Bar:
    """What runs are held to. base: the value of the script as it is. As parts of it: noise, how far two runs of the
    same are apart; least, what a gain must be to count."""

    base: float
    noise: float
    least: float


def time_bar(runs: list[Outcome]) -> Bar:
    """Returns the mean time of some runs of the same side, their noise, and the gain that stands out from the noise."""
    seconds = [run.seconds for run in runs]
    noise = max((max(seconds) - min(seconds)) / min(seconds), *(run.spread for run in runs))
    return Bar(sum(seconds) / len(seconds), noise, min(MOST, max(LEAST, TIMES_NOISE * noise)))


def check_noise(bar: Bar, reference: Outcome) -> None:
    """Raises BisectError where runs of the same side are too far apart for the difference of the sides to be seen."""
    if bar.noise > NOISIEST and reference.seconds > bar.base * (1 - bar.least):
        shown = f"{1e3 * bar.base:.4g} ms a round, {1e3 * reference.seconds:.4g} ms on the other side"
        raise BisectError(
            f"two runs of the same differ by {bar.noise:.0%}: no smaller difference can be found ({shown})",
            todo="end what else runs on this machine, have the script call its functions more often (or --repeat 50), "
            "or give them more to do",
        )


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


__all__ = ["RIGHT", "WRONG", "Bar", "check_calls", "check_noise", "check_runs", "time_bar", "value_of"]

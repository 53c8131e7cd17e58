"""Times of kernels, from limits and a target's figures, worked out for all estimators. Out: an `Estimate`. The schedule
compares thousands of loops, by the usual figures alone (`schedule/estimate.py`).

    time = the longest of the limits + what is added + launches

A limit is an amount of work at one of the target's speeds. Kernels differ in fields alone: which limits there are, what
share of a speed is reached (at best, usually, at worst), how many programs there are for the units, what is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from litz_plugins import Estimate, Share, Target

from .data import CacheFigures, Room, figures_of


def alike(share: float) -> Share:
    """Returns a share that is the same at best, usually and at worst."""
    return Share(share, share, share)


WHOLE, NONE = alike(1.0), alike(0.0)


@dataclass(frozen=True)
class RooflineFigures(Room):
    """Figures of the roofline, which `target/figures/any/roofline.toml` explains."""

    table = "roofline"
    launch_share: tuple[float, float, float]
    unknown_times: float
    cpu_times: float
    measured_times: float


@dataclass(frozen=True)
class Limit:
    """A limit on a kernel's speed, one of several. us: at the whole of a speed. share: of the speed, that is reached.
    why: in words. best_us: in place of `us` at best, where a cache may have some of what is asked for."""

    us: float
    share: Share = WHOLE
    why: str = ""
    best_us: float | None = None

    def at(self, level: str) -> float:
        """Returns the microseconds at a level of `Share`."""
        us = self.us if self.best_us is None or level != "best" else self.best_us
        return float(us / getattr(self.share, level))


@dataclass(frozen=True)
class Programs:
    """Programs of a launch. units: of the device. resident: how many a unit works on at a time."""

    count: float
    units: int
    resident: int = 1

    @property
    def busy(self) -> float:
        """Returns the share of the units that have a program."""
        return min(1.0, self.count / self.units)

    @property
    def waves(self) -> int:
        """Returns how often all units take programs."""
        return ceil(self.count / (self.units * self.resident))

    @property
    def filled(self) -> float:
        """Returns the share of all waves' places that have a program, for one place to a unit."""
        return self.count / (self.waves * self.units)


def memory(nbytes: float, on: Target, share: Share = WHOLE, busy: float = 1.0, why: str = "") -> Limit:
    """Returns the limit of bytes to and from memory. busy: the share of the units that ask for them."""
    return Limit(nbytes / (on.bandwidth * busy), share, why)


def second_level(nbytes: float, on: Target, busy: float = 1.0, usual: bool = False, why: str = "") -> Limit:
    """Returns the limit of bytes from the second cache. usual: at the speed that tiles of a product usually see."""
    caches = figures_of(on, CacheFigures)
    times = caches.second_level_usual_times if usual else caches.second_level_times
    return Limit(nbytes / (times * on.bandwidth * busy), why=why)


def matrix(flops: float, kind: str, on: Target, share: Share = WHOLE, busy: float = 1.0, why: str = "") -> Limit:
    """Returns the limit of a contraction's arithmetic in a kind of dtype (`rate_kind`)."""
    return Limit(flops / (on.matrix_rate(kind)[0] * busy), share, why)


def vector(flops: float, on: Target, busy: float = 1.0) -> Limit:
    """Returns the limit of arithmetic in float32 by the ordinary units. busy: the share of them that is at work."""
    return Limit(flops / (on.vector["fp32"] * busy))


def launches(count: float, on: Target, replaced: float = 0.0) -> Share:
    """Returns how many launches so many count as. replaced: those that take the place of others, and are as slow as
    these at worst: what they are compared with has launches at best."""
    fastest, _, slowest = figures_of(on, RooflineFigures).launch_share
    instead = min(count, replaced)
    return Share(fastest * count, count, fastest * instead + slowest * (count - instead))


def time_of(
    limits: Sequence[Limit],
    on: Target,
    launched: Share = WHOLE,
    added_us: float = 0.0,
    spread: float = 1.0,
    why: str = "",
) -> Estimate:
    """Returns the time of a kernel. launched: launches, at best, usually, at worst. added_us: what no limit hides.
    spread: how many times quicker or slower the whole may be. why: in words; by default the longest limit's."""

    def at(level: str) -> float:
        most = max(limit.at(level) for limit in limits)
        return float(most + added_us + getattr(launched, level) * on.launch_us)

    usual, best, worst = at("usual"), at("best") / spread, at("worst") * spread
    return Estimate(usual, min(best, usual), max(worst, usual), why or longest(limits).why)


def longest(limits: Sequence[Limit]) -> Limit:
    """Returns the limit that a kernel usually waits for the longest, the first of several."""
    return max(limits, key=lambda limit: limit.at("usual"))

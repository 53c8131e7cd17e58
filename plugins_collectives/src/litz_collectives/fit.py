"""Curves through measured times. In: (bytes, world size, µs) of one kind of collective. Out: a `Curve`.

NCCL switches protocols as messages grow, so a curve has three regimes, each with the physics of a ring:

    time = base + hop * steps + wire * (bytes that a GPU sends) + local * (bytes of a rank's own part)

The same four coefficients hold for every world size, which is what lets a curve predict one that was not measured.
Errors are relative and absolute (L1), not squared: a measurement that was disturbed pulls the curve only a little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

from litz_plugins import LitzError

from .least_squares import not_negative_least_squares
from .nccl import ring_steps, wire_share

Point = tuple[int, int, float]
"""(bytes, world size, µs)"""

REGIMES = 3
LEAST_SIZES = 3
"""Message sizes per regime; fewer do not tell latency from bandwidth."""
REWEIGHTINGS = 12
RUNG = 1.2
"""Sizes within this factor count as one: messages are rounded to equal parts, and so differ a little between groups."""
UNSEEN = 0.05
"""Error added for a world size that was not measured, where there are too few to tell."""
KILO = 1e5
"""Bytes that a unit of the byte coefficients stands for while fitting, so that all four are of like size."""


@dataclass(frozen=True)
class Regime:
    """Messages of up to `upto` bytes: µs = base + hop * steps + wire * bytes sent + local * bytes / ranks.

    error: what 9 of 10 measurements were within, as a share of the curve. unseen: the same, or what is taken for it, on
    world sizes that were not measured.
    """

    upto: float
    base: float
    hop: float
    wire: float
    local: float
    error: float
    unseen: float

    def us(self, kind: str, size: float, world_size: int, wire_scale: float = 1.0) -> float:
        """Returns µs for `size` bytes in this regime. wire_scale: how much slower the links are than when measured."""
        sent = size * wire_share(kind, world_size) * wire_scale
        steps = ring_steps(kind, world_size)
        return self.base + self.hop * steps + self.wire * sent + self.local * size / world_size


@dataclass(frozen=True)
class Curve:
    """The time of one kind of collective; `world_sizes` are those that were measured. Never falls with size."""

    kind: str
    world_sizes: tuple[int, ...]
    regimes: tuple[Regime, ...]

    def regime(self, size: float) -> Regime:
        """Returns the regime that messages of `size` bytes are in; the last has no upper end."""
        return next((r for r in self.regimes if size <= r.upto), self.regimes[-1])

    def us(self, size: float, world_size: int, wire_scale: float = 1.0) -> float:
        """Returns the microseconds for `size` bytes, counted as in `nccl.Message`."""
        most = 0.0
        for regime in self.regimes:
            most = max(most, regime.us(self.kind, min(size, regime.upto), world_size, wire_scale))
            if size <= regime.upto:
                break
        return most


def fit_curve(kind: str, points: Sequence[Point]) -> Curve:
    """Returns the curve with the least mean relative error over all ways to cut the sizes into regimes.

    With three world sizes or more, `Regime.unseen` comes from curves that were fitted without one of them. Errors:
    LitzError where there are fewer than `LEAST_SIZES` sizes per regime.
    """
    curve = _fit(kind, points)
    missed: dict[Regime, list[float]] = {}
    for left_out in curve.world_sizes if len(curve.world_sizes) >= 3 else ():
        others = _fit(kind, [point for point in points if point[1] != left_out])
        for size, n, us in points:
            if n == left_out:
                missed.setdefault(curve.regime(size), []).append(abs(us / others.us(size, n) - 1))
    regimes = (replace(r, unseen=max(r.error, _quantile(missed[r], 0.9))) if r in missed else r for r in curve.regimes)
    return replace(curve, regimes=tuple(regimes))


def _fit(kind: str, points: Sequence[Point]) -> Curve:
    rungs = _rungs(points)
    if len(rungs) < REGIMES * LEAST_SIZES:
        raise LitzError(
            f"a curve of {kind} needs {REGIMES * LEAST_SIZES} message sizes or more; there are {len(rungs)}",
            todo="measure more sizes, from 1 KiB up",
        )

    @cache
    def part(begin: int, end: int) -> tuple[float, float, float, float]:
        return _least_errors(kind, [point for rung in rungs[begin:end] for point in rung])

    last = len(rungs)
    cuts = (
        (first, second)
        for first in range(LEAST_SIZES, last - 2 * LEAST_SIZES + 1)
        for second in range(first + LEAST_SIZES, last - LEAST_SIZES + 1)
    )

    def curve(cut: tuple[int, int]) -> Curve:
        bounds = (0, *cut, last)
        regimes = []
        for begin, end in pairwise(bounds):
            upto = (rungs[end - 1][-1][0] * rungs[end][0][0]) ** 0.5 if end < last else float("inf")
            base, hop, wire, local = part(begin, end)
            regimes.append(Regime(upto, base, hop, wire, local, error=0.0, unseen=0.0))
        return Curve(kind, tuple(sorted({n for _, n, _ in points})), tuple(regimes))

    best = min(map(curve, cuts), key=lambda one: mean_error(one, points))
    regimes = []
    for regime in best.regimes:
        errors = [abs(us / best.us(size, n) - 1) for size, n, us in points if best.regime(size) is regime]
        error = _quantile(errors, 0.9)
        regimes.append(replace(regime, error=error, unseen=error + UNSEEN))
    return replace(best, regimes=tuple(regimes))


def _rungs(points: Sequence[Point]) -> list[list[Point]]:
    """Points by size, from the smallest; sizes within `RUNG` together."""
    rungs: list[list[Point]] = []
    for point in sorted(points):
        if rungs and point[0] <= rungs[-1][0][0] * RUNG:
            rungs[-1].append(point)
        else:
            rungs.append([point])
    return rungs


def mean_error(curve: Curve, points: Sequence[Point]) -> float:
    """Returns the mean absolute error of the curve as a share of the measured time."""
    return sum(abs(curve.us(size, n) / us - 1) for size, n, us in points) / len(points)


def _features(kind: str, size: int, world_size: int) -> tuple[float, ...]:
    sent = size * wire_share(kind, world_size)
    return (1.0, float(ring_steps(kind, world_size)), sent / KILO, size / world_size / KILO)


def _least_errors(kind: str, points: Sequence[Point]) -> tuple[float, float, float, float]:
    """Coefficients >= 0 of least absolute relative error: least squares, reweighted by the inverse of the last error,
    which turns squares into absolute values."""
    rows = [tuple(f / us for f in _features(kind, size, n)) for size, n, us in points]
    count = len(rows[0])
    weights = [1.0] * len(rows)
    found = [0.0] * count
    for _ in range(REWEIGHTINGS):
        gram = [[sum(w * r[i] * r[j] for w, r in zip(weights, rows)) for j in range(count)] for i in range(count)]
        right = [sum(w * r[i] for w, r in zip(weights, rows)) for i in range(count)]
        found = not_negative_least_squares(gram, right)
        weights = [1 / max(0.01, abs(sum(f * v for f, v in zip(row, found)) - 1)) for row in rows]
    return found[0], found[1], found[2] / KILO, found[3] / KILO


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

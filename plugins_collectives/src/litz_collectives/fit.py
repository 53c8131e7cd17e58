"""Curves through measured times. In: (bytes, world size, µs) of one kind of collective. Out: a `Curve`.

NCCL switches protocols as messages grow, so a curve has three regimes, each with the physics of a ring:

    time = base + hop * steps + wire * (bytes that a GPU sends) + local * (bytes of a rank's own part)

The same four coefficients hold for every world size, which is what lets a curve predict one that was not measured.
Errors are relative and absolute (L1), not squared: a measurement that was disturbed pulls the curve only a little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from litz_plugins import LitzError

from .nccl import ring_steps, wire_share

Point = tuple[int, int, float]
"""(bytes, world size, µs)"""

REGIMES = 3
LEAST_SIZES = 3
"""Message sizes per regime; fewer do not tell latency from bandwidth."""
REWEIGHTINGS, SWEEPS = 12, 60
KILO = 1e5
"""Bytes that a unit of the byte coefficients stands for while fitting, so that all four are of like size."""


@dataclass(frozen=True)
class Regime:
    """Messages of up to `upto` bytes: µs = base + hop * steps + wire * bytes sent + local * bytes / ranks.

    error: what 9 of 10 measurements were within, as a share of the curve.
    """

    upto: float
    base: float
    hop: float
    wire: float
    local: float
    error: float

    def us(self, kind: str, size: float, world_size: int, wire_scale: float = 1.0) -> float:
        """wire_scale: how much slower the links are than those that were measured."""
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
        return next((r for r in self.regimes if size <= r.upto), self.regimes[-1])

    def us(self, size: float, world_size: int, wire_scale: float = 1.0) -> float:
        """Microseconds for `size` bytes, counted as in `nccl.Message`."""
        most = 0.0
        for regime in self.regimes:
            most = max(most, regime.us(self.kind, min(size, regime.upto), world_size, wire_scale))
            if size <= regime.upto:
                break
        return most


def fit_curve(kind: str, points: Sequence[Point]) -> Curve:
    """The curve with the least mean relative error over all ways to cut the sizes into regimes.

    Errors: LitzError where there are fewer than `LEAST_SIZES` sizes per regime.
    """
    sizes = sorted({size for size, _, _ in points})
    if len(sizes) < REGIMES * LEAST_SIZES:
        raise LitzError(
            f"a curve of {kind} needs {REGIMES * LEAST_SIZES} message sizes or more; there are {len(sizes)}",
            todo="measure more sizes, from 1 KiB up",
        )

    @cache
    def part(begin: int, end: int) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
        inside = [point for point in points if sizes[begin] <= point[0] <= sizes[end - 1]]
        found = _least_errors(kind, inside)
        errors = tuple(abs(_predict(kind, found, point) / point[2] - 1) for point in inside)
        return sum(errors), found, errors

    last = len(sizes)
    cuts = (
        (first, second)
        for first in range(LEAST_SIZES, last - 2 * LEAST_SIZES + 1)
        for second in range(first + LEAST_SIZES, last - LEAST_SIZES + 1)
    )
    first, second = min(cuts, key=lambda cut: part(0, cut[0])[0] + part(*cut)[0] + part(cut[1], last)[0])
    regimes = []
    for begin, end in ((0, first), (first, second), (second, last)):
        _, (base, hop, wire, local), errors = part(begin, end)
        upto = (sizes[end - 1] * sizes[end]) ** 0.5 if end < last else float("inf")
        regimes.append(Regime(upto, base, hop, wire, local, _quantile(errors, 0.9)))
    return Curve(kind, tuple(sorted({n for _, n, _ in points})), tuple(regimes))


def mean_error(curve: Curve, points: Sequence[Point]) -> float:
    """Mean absolute error of the curve as a share of the measured time."""
    return sum(abs(curve.us(size, n) / us - 1) for size, n, us in points) / len(points)


def _features(kind: str, size: int, world_size: int) -> tuple[float, ...]:
    sent = size * wire_share(kind, world_size)
    return (1.0, float(ring_steps(kind, world_size)), sent / KILO, size / world_size / KILO)


def _predict(kind: str, coefficients: Sequence[float], point: Point) -> float:
    base, hop, wire, local = coefficients
    _, steps, sent, own = _features(kind, point[0], point[1])
    return base + hop * steps + (wire * sent + local * own) * KILO


def _least_errors(kind: str, points: Sequence[Point]) -> tuple[float, ...]:
    """Coefficients >= 0 of least absolute relative error: least squares by coordinate descent, reweighted by the
    inverse of the last error, which turns squares into absolute values."""
    rows = [tuple(f / us for f in _features(kind, size, n)) for size, n, us in points]
    count = len(rows[0])
    found = [0.0] * count
    weights = [1.0] * len(rows)
    for _ in range(REWEIGHTINGS):
        gram = [[sum(w * r[i] * r[j] for w, r in zip(weights, rows)) for j in range(count)] for i in range(count)]
        right = [sum(w * r[i] for w, r in zip(weights, rows)) for i in range(count)]
        for _ in range(SWEEPS):
            for i in range(count):
                slope = right[i] - sum(g * value for g, value in zip(gram[i], found))
                if gram[i][i] > 0:
                    found[i] = max(0.0, found[i] + slope / gram[i][i])
        weights = [1 / max(0.01, abs(sum(f * v for f, v in zip(row, found)) - 1)) for row in rows]
    return found[0], found[1], found[2] / KILO, found[3] / KILO


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

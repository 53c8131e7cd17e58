"""How far a profile is off. In: a profile and measured points. Out: errors by kind and world size.

A world size that the profile was not fitted to is held out: what the profile says of it is a prediction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .fit import Point
from .model import collective_cost
from .nccl import Message
from .profile import Profile

LARGE = 1 << 20
"""The bytes from which on bandwidth counts rather than latency."""


@dataclass(frozen=True)
class Errors:
    """Mean absolute error as a share of the measured time, over all sizes and over those of `LARGE` bytes and more
    (None without any). within: the share of measurements inside the estimate's interval. fitted: False if held out."""

    kind: str
    world_size: int
    fitted: bool
    all: float
    large: float | None
    within: float


def split_points(
    points: Mapping[str, Sequence[Point]], hold_out: Iterable[int]
) -> tuple[dict[str, list[Point]], dict[str, list[Point]]]:
    """Returns the points to fit to, and the points of the world sizes that are held out."""
    away = frozenset(hold_out)
    fitted = {kind: [point for point in found if point[1] not in away] for kind, found in points.items()}
    held = {kind: [point for point in found if point[1] in away] for kind, found in points.items()}
    return fitted, held


def errors_of(profile: Profile, points: Mapping[str, Sequence[Point]]) -> list[Errors]:
    """Returns a row per kind and world size, in that order."""
    found = []
    for kind, measured in points.items():
        for n in sorted({point[1] for point in measured}):
            curve = profile.curves.get(kind)
            fitted = curve is not None and n in curve.world_sizes
            found.append(_errors(kind, n, fitted, profile, [point for point in measured if point[1] == n]))
    return found


def _errors(kind: str, world_size: int, fitted: bool, profile: Profile, points: Sequence[Point]) -> Errors:
    off, large, within = [], [], 0
    for size, _, us in points:
        cost = collective_cost(Message(kind, size, world_size), profile)
        error = abs(cost.us / us - 1)
        off.append(error)
        large += [error] if size >= LARGE else []
        within += cost.low_us <= us <= cost.high_us
    return Errors(kind, world_size, fitted, _mean(off), _mean(large) if large else None, within / len(points))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def error_lines(rows: Sequence[Errors]) -> list[str]:
    """Returns a table for the terminal, errors in percent."""
    lines = [f"{'collective':<16}{'ranks':>5}  {'':<9}{'off by':>8}{'from 1 MiB':>12}{'in interval':>13}"]
    for row in rows:
        what = "fitted" if row.fitted else "held out"
        large = "" if row.large is None else f"{100 * row.large:.1f} %"
        lines.append(
            f"{row.kind:<16}{row.world_size:>5}  {what:<9}{100 * row.all:>6.1f} %{large:>12}{100 * row.within:>11.0f} %"
        )
    return lines

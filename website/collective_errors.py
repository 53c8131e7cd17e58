"""How far litz's estimates of collectives are off, from the measurements in tests/collectives/data. Out: rows of text.

docs/collectives.md and docs/benchmarks.md show these rows; `python -m website.figures` compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from litz_collectives.evaluate import LARGE, split_points
from litz_collectives.fit import Point
from litz_collectives.model import collective_cost
from litz_collectives.nccl import Message
from litz_collectives.profile import Profile, builtin_profile, make_profile, read_points
from litz_collectives.topology import make_topology

DATA = Path(__file__).parents[1] / "tests" / "collectives" / "data"
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@cache
def rows() -> Mapping[str, Sequence[str]]:
    """For each row of docs/collectives.md, by its label, the errors of each kind: "all sizes / from 1 MiB up", in %.

    Curves are fitted to the first run on four H200 and scored on the second; "the other host" is a run on two others.
    """
    files = ("nccl_h200_w2_w3_w4.csv", "nccl_h200_w2_w3_w4_again.csv", "nccl_h200_w2_w4.csv")
    first, second, other = (read_points(DATA / name)[0] for name in files)
    return {
        "litz, fitted to 2 and 4 ranks, on these": _errors(first, [3], second, (2, 4)),
        "the same, on 3 ranks, which it has not seen": _errors(first, [3], second, (3,)),
        "litz, fitted to 2 and 3 ranks, on 4": _errors(first, [4], second, (4,)),
        "litz without calibration, on 2, 3 and 4": [_error(builtin_profile(), second[kind], kind) for kind in KINDS],
        "the other host": [_error(builtin_profile(), other[kind], kind) for kind in KINDS],
    }


def _errors(
    fit_to: Mapping[str, list[Point]], hold_out: Sequence[int], score: Mapping[str, list[Point]], ranks: Sequence[int]
) -> list[str]:
    fitted, _ = split_points(fit_to, hold_out)
    topology = make_topology("H200", "NV18")
    found = []
    for kind in KINDS:
        profile = make_profile(topology, {kind: fitted[kind]}, {}, "the first run")
        found.append(_error(profile, [point for point in score[kind] if point[1] in ranks], kind))
    return found


def _error(profile: Profile, points: Sequence[Point], kind: str) -> str:
    """The mean absolute error over all messages, and over those of 1 MiB and more, in percent."""
    off = [(size, abs(collective_cost(Message(kind, size, n), profile).us / us - 1)) for size, n, us in points]
    large = [error for size, error in off if size >= LARGE]
    return f"{100 * sum(error for _, error in off) / len(off):.1f} / {100 * sum(large) / len(large):.1f}"

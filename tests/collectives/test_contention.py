"""What overlap costs: the table of a profile, and what stands in for one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from litz_collectives.contention import Beside, Contention, contention_at, contention_rows
from litz_collectives.profile import Profile, parse_profile
from litz_collectives.topology import TopologyError, make_topology

MIB = 1 << 20
TABLE = {"all_reduce": (Contention(MIB, 1.0, 1.1, 1.0), Contention(64 * MIB, 1.3, 1.4, 1.6, 100.0))}


def test_between_rows_by_the_logarithm_of_the_size() -> None:
    half = contention_at(TABLE, "all_reduce", 8 * MIB)
    assert half is not None
    assert (half.gemm, half.copy, half.collective, half.delay_us) == pytest.approx((1.15, 1.25, 1.3, 50.0))
    assert contention_at(TABLE, "all_reduce", 64 * MIB) == TABLE["all_reduce"][1]


def test_outside_of_the_rows_the_nearest_holds() -> None:
    assert contention_at(TABLE, "all_reduce", 1) == Contention(1, 1.0, 1.1, 1.0)
    assert contention_at(TABLE, "all_reduce", 1 << 30) == Contention(1 << 30, 1.3, 1.4, 1.6, 100.0)
    assert contention_at(TABLE, "broadcast", MIB) == Contention(MIB, 1.0, 1.1, 1.0), "another kind stands in"
    assert contention_at({}, "all_reduce", MIB) is None


def test_what_a_collective_takes_beside_kernels_is_a_delay_and_a_factor() -> None:
    measured = [Beside(size, 1.2, 0.98, alone, 100 + 1.5 * alone) for size, alone in ((MIB, 20.0), (64 * MIB, 400.0))]
    rows = contention_rows(measured)
    assert [(row.bytes, row.gemm, row.copy) for row in rows] == [(MIB, 1.2, 1.0), (64 * MIB, 1.2, 1.0)]
    assert all((row.collective, row.delay_us) == pytest.approx((1.5, 100.0)) for row in rows)


def test_no_collective_is_faster_beside_kernels() -> None:
    rows = contention_rows([Beside(MIB, 1.2, 1.1, 20.0, 80.0), Beside(64 * MIB, 1.2, 1.1, 400.0, 390.0)])
    assert all(row.collective == 1 and row.delay_us > 0 for row in rows)


def test_a_profile_keeps_it() -> None:
    profile = replace(Profile(make_topology("H200")), gemm_tflops=640.5, copy_gb_s=3900.0, contention=TABLE)
    again = parse_profile(profile.dumps(), "test")
    assert again == replace(profile, source=again.source)
    assert again.slowdown("all_reduce", 64 * MIB).gemm == 1.3
    assert Profile(make_topology("H200")).slowdown("all_reduce", MIB).gemm >= 1


def test_what_speeds_up_by_contention_is_no_profile() -> None:
    text = replace(Profile(make_topology("H200")), contention=TABLE).dumps()
    for old, new in (('"gemm": 1.3', '"gemm": 0.9'), ('"copy": 1.4', '"copy": "much"'), ('"bytes": 1048576', '"b": 1')):
        assert old in text
        with pytest.raises(TopologyError, match=r"contention|curve"):
            parse_profile(text.replace(old, new), "p.json")

"""`litz.target.times`: the formula of all times of kernels, and that nobody has another."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from litz.target import CacheFigures, figures_of, target_named
from litz.target.times import (
    NONE,
    Limit,
    Programs,
    RooflineFigures,
    alike,
    launches,
    longest,
    matrix,
    memory,
    second_level,
    time_of,
    vector,
)
from litz_plugins import Share

ROOT = Path(__file__).parents[2]
H100 = target_named("H100 SXM")


def test_the_longest_limit_counts_at_each_level() -> None:
    traffic, arithmetic = Limit(8.0, Share(1.0, 0.8, 0.5), "bytes"), Limit(9.0, why="flops")
    found = time_of((traffic, arithmetic), H100, launched=Share(0.0, 1.0, 2.0), added_us=1.0)
    launch = H100.launch_us
    assert (found.low_us, found.us, found.high_us) == pytest.approx((10.0, 11.0 + launch, 17.0 + 2 * launch))
    assert found.why == "bytes" == longest((arithmetic, traffic)).why
    wide = time_of((arithmetic,), H100, NONE, spread=3.0)
    assert (wide.low_us, wide.us, wide.high_us) == pytest.approx((3.0, 9.0, 27.0))


def test_an_estimate_never_turns_round() -> None:
    found = time_of((Limit(1.0, Share(0.1, 1.0, 10.0)),), H100, NONE)
    assert (found.low_us, found.us, found.high_us) == (1.0, 1.0, 1.0)


def test_limits_are_amounts_at_the_speeds_of_the_target() -> None:
    assert memory(1e6, H100, busy=0.5).us == pytest.approx(2e6 / H100.bandwidth)
    caches = figures_of(H100, CacheFigures)
    assert second_level(1e6, H100).us == pytest.approx(1e6 / (caches.second_level_times * H100.bandwidth))
    usual = second_level(1e6, H100, usual=True).us
    assert usual == pytest.approx(1e6 / (caches.second_level_usual_times * H100.bandwidth))
    assert matrix(1e9, "bf16", H100, alike(0.5)).us == pytest.approx(1e9 / H100.matrix["bf16"])
    assert vector(1e9, H100).us == pytest.approx(1e9 / H100.vector["fp32"])


def test_programs_fill_waves() -> None:
    few, many = Programs(66, 132), Programs(300, 132, 2)
    assert (few.busy, few.waves, few.filled) == (0.5, 1, 0.5)
    assert (many.busy, many.waves, Programs(396, 132).filled) == (1.0, 2, 1.0)


def test_launches_that_replace_others_are_no_slower_than_these() -> None:
    fastest, _, slowest = figures_of(H100, RooflineFigures).launch_share
    assert launches(3, H100) == Share(3 * fastest, 3, 3 * slowest)
    assert launches(3, H100, replaced=2).worst == pytest.approx(2 * fastest + slowest)
    assert launches(1, H100, replaced=2).worst == fastest


SPEEDS = ("bandwidth", "matrix_rate")


def test_time_is_worked_out_in_one_place() -> None:
    """No estimator divides by a target's speed: `times` does, and has a name for what differs."""
    files = [*ROOT.glob("core/src/litz/**/*.py"), *ROOT.glob("plugins_*/src/**/*.py")]
    found = {
        file.stem
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
        for part in ast.walk(node.right)
        if getattr(part.value if isinstance(part, ast.Subscript) else part, "attr", "") in SPEEDS
    }
    assert found == {"times"}, "use litz.target.times"

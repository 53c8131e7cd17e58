"""A short form of `python -m benchmarks.soak`: what a process holds does not grow by the compile, nor by the call."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.soak import QUANTITIES

from support.warm import run_warm

ROOT = Path(__file__).parents[2]

SCRIPT = """
from benchmarks import soak
def run(steps, count):
    for _ in range(count):
        next(steps)
    return soak.sample("", 0)
def growth(before, after):
    print(*(round(getattr(after, name) - getattr(before, name), 1) for name in soak.QUANTITIES))
compiles = soak.compiles("litz", 4, 1)
run(compiles, 2)  # Python modules are loaded by then
growth(run(compiles, 1), run(compiles, 1))
calls = soak.calls("litz", 10 ** 9)
run(calls, 60)  # each of 50 sizes once
growth(run(calls, 50), run(calls, 50))
"""


def test_neither_a_compile_nor_a_call_leaves_anything_behind(tmp_path: Path) -> None:
    """Dynamo forgets what was compiled: no library of it stays mapped. 250 calls make no object that stays."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = run_warm(["-c", SCRIPT], {**os.environ, "LITZ_CACHE_DIR": str(tmp_path), "PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    compiles, calls = ([float(word) for word in line.split()] for line in done.stdout.splitlines()[-2:])
    names = dict(zip(QUANTITIES, compiles, strict=True)), dict(zip(QUANTITIES, calls, strict=True))
    assert [(of["files"], of["threads"], of["libraries"]) for of in names] == [(0, 0, 0)] * 2
    assert names[1]["objects"] < 50 and names[1]["rss"] < 4

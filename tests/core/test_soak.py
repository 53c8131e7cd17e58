"""A short form of `python -m benchmarks.soak`: what a process holds does not grow by the compile, nor by the call."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from benchmarks.soak import QUANTITIES

from support.warm import run_warm

ROOT = Path(__file__).parents[2]

SCRIPT = """
import contextvars, torch
from benchmarks import soak
def run(steps, count):
    for _ in range(count):
        next(steps)
    return soak.sample("", 0)
def growth(before, after):
    print(*(round(getattr(after, name) - getattr(before, name), 1) for name in soak.QUANTITIES))
def compiler(function, dynamic=None, backend="litz"):
    return torch.compile(function, backend=backend, dynamic=dynamic)
compiles = soak.compiles(compiler, 1)
run(compiles, 2)  # Python modules are loaded by then
growth(run(compiles, 1), run(compiles, 1))
calls = soak.calls(compiler)
run(calls, 60)  # each of 50 sizes once
growth(run(calls, 50), run(calls, 50))
def left(backend):
    steps = soak.compiles(lambda function, **known: compiler(function, backend=backend, **known), 1, lambda number:
        soak.template(6 * number))  # other constants, and the same code
    before, variables = run(steps, 1), len(contextvars.copy_context())
    print(run(steps, 2).objects - before.objects, len(contextvars.copy_context()) - variables)
left("aot_eager")
left("litz")
from litz.ir.node import _table
print(sum(node.op == "load" for node in list(_table.values())))
"""


@pytest.mark.nightly
def test_neither_a_compile_nor_a_call_leaves_anything_behind(tmp_path: Path) -> None:
    """Dynamo forgets what was compiled: no library of it stays mapped. 250 calls make no object that stays. Two
    trainings leave what torch itself leaves, and a few records for `save_cache_artifacts`."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = run_warm(["-c", SCRIPT], {**os.environ, "LITZ_CACHE_DIR": str(tmp_path), "PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    lines = [[float(word) for word in line.split()] for line in done.stdout.splitlines()[-5:]]
    names = [dict(zip(QUANTITIES, line, strict=True)) for line in lines[:2]]
    assert [(of["files"], of["threads"], of["libraries"]) for of in names] == [(0, 0, 0)] * 2
    assert names[1]["objects"] < 50 and names[1]["rss"] < 4
    (objects, variables), (ours, our_variables), (loads,) = lines[2:]
    assert loads == 0, "a memo holds nodes of graphs that are gone"
    assert our_variables == variables, "a ContextVar for each compile, which the thread's context keeps for ever"
    assert ours < objects + 400, (objects, ours)

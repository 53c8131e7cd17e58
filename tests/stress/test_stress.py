"""The short form of `make stress`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.warm import run_together


def stressed(processes: int, *arguments: str) -> list[dict[str, object]]:
    """What each process found. They share a disk cache."""
    line = [str(Path(__file__).with_name("program.py")), "--processes", "1", *arguments]
    done = run_together([line] * processes)
    assert all(one.returncode == 0 for one in done), done[0].stderr
    return [json.loads(one.stdout.splitlines()[-1]) for one in done]


def test_threads_that_call_at_once() -> None:
    """The pool that asked for use counts gave 16 threads a wrong result in each hundred calls."""
    (found,) = stressed(1, "--seconds", "0.4", "--no-compiles", "--sizes", "192")
    assert found["wrong"] == 0 and found["errors"] == [] and int(str(found["calls"])) > 200


@pytest.mark.thorough
def test_processes_and_threads_that_compile() -> None:
    found = stressed(4, "--seconds", "4", "--threads", "4")
    assert [(one["wrong"], one["errors"]) for one in found] == [(0, [])] * 4


@pytest.mark.gpu
def test_threads_that_replay_at_once() -> None:
    line = [sys.executable, "-m", "stress.program", "--processes", "1", "--seconds", "10", "--device", "cuda"]
    # A process of its own: a forked one has no GPU.
    done = subprocess.run(line, capture_output=True, text=True, cwd=Path(__file__).parent.parent, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["wrong"] == 0 and found["errors"] == [] and found["calls"] > 200

"""Python's hash seed changes nothing: keys, texts, bits and what was tuned are equal in two processes.

The order of sets of strings follows the seed, which is another in each process, and ranks must plan alike.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.warm import run_warm

PROGRAM = Path(__file__).parent.parent / "support" / "hash_seed_program.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{PROGRAM.parents[1]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def compiled(seeds: Sequence[int], folder: Path, *names: str) -> list[dict[str, object]]:
    """What each process made, in a cold cache folder of its own."""
    started = []
    for seed in seeds:
        environment = {**ENVIRONMENT, "PYTHONHASHSEED": str(seed)}
        line = [sys.executable, str(PROGRAM), str(folder / str(seed)), *names]
        started.append(subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment))
    outputs = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(started)
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def _check(first: dict[str, object], *others: dict[str, object]) -> None:
    assert len({found.pop("hash") for found in (first, *others)}) == 1 + len(others)
    assert any(name.endswith(".cpp") for name in first) and any(name.endswith("wrapper.py") for name in first)
    for other in others:
        assert {name: other.get(name) for name in first} == first and len(other) == len(first)


def test_two_seeds(tmp_path: Path) -> None:
    """Those of the two processes whose copies run the program: chance's, or for both what the environment says."""
    names, found = ("softmax", "tuned"), []
    if "PYTHONHASHSEED" in os.environ:
        found += compiled([int(os.environ["PYTHONHASHSEED"] == "1") + 1], tmp_path, *names)
    for interpret in [""] if found else ["", "1"]:
        line = [str(PROGRAM), str(tmp_path / f"copy {interpret}"), *names]
        done = run_warm(line, {**ENVIRONMENT, "TRITON_INTERPRET": interpret}, imported=True)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    first, second = found
    _check(first, second)
    kinds = [name.partition("/")[0] for name in first]
    assert kinds.count("autotune") > 1 and kinds.count("autotune-decisions") == 1


@pytest.mark.thorough
def test_five_seeds_and_all_programs(tmp_path: Path) -> None:
    _check(*compiled(range(5), tmp_path))

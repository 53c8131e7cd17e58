"""Python's hash seed changes nothing: keys, texts, bits and what was tuned are equal in two processes.

The order of sets of strings follows the seed, which is another in each process, and ranks must plan alike.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent.parent / "support" / "hash_seed_program.py"


def compiled(seeds: range, folder: Path, *names: str) -> list[dict[str, object]]:
    """What each process made, in a cold cache folder of its own."""
    started = []
    for seed in seeds:
        paths = os.pathsep.join(filter(None, [str(PROGRAM.parent.parent), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": paths}
        line = [sys.executable, str(PROGRAM), str(folder / str(seed)), *names]
        started.append(subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment))
    outputs = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(started)
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def _check(seeds: range, folder: Path, *names: str) -> dict[str, object]:
    first, *others = compiled(seeds, folder, *names)
    assert any(name.endswith(".cpp") for name in first) and any(name.endswith("wrapper.py") for name in first)
    for other in others:
        assert {name: other.get(name) for name in first} == first and len(other) == len(first)
    return first


def test_two_seeds(tmp_path: Path) -> None:
    first = _check(range(2), tmp_path, "pointwise", "softmax", "tuned")
    kinds = [name.partition("/")[0] for name in first]
    assert kinds.count("autotune") > 1 and kinds.count("autotune-decisions") == 1


@pytest.mark.thorough
def test_five_seeds_and_all_programs(tmp_path: Path) -> None:
    _check(range(5), tmp_path)

"""A second process finds what the first has compiled, without a trace; what changed in between is compiled again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from support.warm import run_warm

SCRIPT = str(Path(__file__).parents[1] / "support" / "second_process.py")
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def process(tmp_path: Path) -> Run:
    """Cases of the script, in a process of their own with the test's caches; the C++ compiler is not tested anew. CUDA
    does not start in a copy of a process that has it."""

    def run(*cases: str, on_a_gpu: bool = False, **environ: str) -> dict[str, Any]:
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch"), "LITZ_CACHE_DIR": str(tmp_path / "litz")}
        settings = {"LITZ_GRAPH_CACHE": "1", "LITZ_CPP_QUALIFY": "0"}
        environ = {**os.environ, **caches, **settings, **environ}
        if on_a_gpu:
            done = subprocess.run([sys.executable, SCRIPT, *cases], env=environ, capture_output=True, text=True)
        else:
            done = run_warm([SCRIPT, *cases], environ, imported=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.strip().splitlines()[-1])  # type: ignore[no-any-return]

    return run


def compiled(found: dict[str, Any]) -> bool:
    """Whether a case was compiled, and not found by any cache."""
    return found["hits"] == 0 and all(said.startswith("miss") for said in found["graphs"])


def test_found_without_a_trace_and_right(process: Run) -> None:
    first = process("training", "dynamic", "reduce-overhead", "half")
    assert all(map(compiled, first.values())), first
    again = process("training", "retained", "offloaded", "dynamic", "longer", "reduce-overhead", "half")
    for case, found in again.items():
        assert found["hits"] == 1 and found["graphs"], case
        assert all(said.startswith("hit") and said.endswith("without a trace") for said in found["graphs"]), case
        assert found["error"] < (0.02 if case == "half" else 1e-5), case


@pytest.mark.gpu
def test_found_without_a_trace_on_a_gpu(process: Run) -> None:
    case = "training on a GPU"
    assert compiled(process(case, on_a_gpu=True)[case])
    found = process(case, on_a_gpu=True)[case]
    assert found["hits"] == 1 and found["error"] < 1e-5
    assert [said.partition(" ")[0] for said in found["graphs"]] == ["hit", "hit"]
    assert all(said.endswith("without a trace") for said in found["graphs"]), found


@pytest.mark.nightly
def test_what_differs_is_compiled(process: Run) -> None:
    """Another width, dtype, option or task."""
    assert compiled(process("inference")["inference"])
    for case, found in process("wider", "half", "precise", "training").items():
        assert compiled(found), case


@pytest.mark.ci_cases("setting1", "setting2")
@pytest.mark.parametrize("setting", [("LITZ_DEBUG", "1"), ("LITZ_VETO", "fuse"), ("LITZ_GRAPH_CACHE", "0")])
def test_not_asked_where_each_stage_is_to_be_seen(process: Run, setting: tuple[str, str]) -> None:
    # The second time in one process, which asks torch's cache again unless it is told not to.
    found = process("inference", "inference", **dict([setting]))["inference"]
    assert found["hits"] == 0 and not found["graphs"][0].endswith("without a trace") and found["error"] < 1e-5


PLUGIN = """
from litz_plugins import hookimpl

NUMBER = {number}

@hookimpl
def litz_register_lowerings():
    return {{}}
"""


def test_an_edited_plugin_is_compiled_with(process: Run, tmp_path: Path) -> None:
    folder = tmp_path / "plugin"
    (folder / "odd_plugin-1.0.dist-info").mkdir(parents=True)
    (folder / "odd_plugin-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: odd-plugin\nVersion: 1.0\n"
    )
    (folder / "odd_plugin-1.0.dist-info" / "entry_points.txt").write_text("[litz]\nodd = odd_plugin\n")
    (folder / "odd_plugin").mkdir()
    path = os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))
    states = []
    for number in (1, 1, 2):
        (folder / "odd_plugin" / "__init__.py").write_text(PLUGIN.format(number=number))
        states.append(compiled(process("inference", PYTHONPATH=path)["inference"]))
    assert states == [True, False, True]


@pytest.mark.nightly
def test_gone_graphs_are_traced_and_kept_again(process: Run, tmp_path: Path) -> None:
    process("training")
    for file in (tmp_path / "litz").rglob("graph.json"):
        file.unlink()
    found = process("training")["training"]
    assert compiled(found) and found["error"] < 1e-5
    assert process("training")["training"]["hits"] == 1


def test_a_guard_that_torchs_cache_does_not_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace fixes what it cannot compute from a float, and guards it; torch keeps no guards on floats."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    monkeypatch.setenv("LITZ_CACHE_DIR", str(tmp_path / "litz"))
    monkeypatch.setenv("LITZ_GRAPH_CACHE", "1")
    monkeypatch.setenv("LITZ_CPP_QUALIFY", "0")
    x = torch.ones(3)

    def fn(x: torch.Tensor, scale: float) -> tuple[torch.Tensor, float]:
        return x + scale, scale * 2

    for _ in range(2):
        torch._dynamo.reset()
        compiled = torch.compile(fn, backend="litz")
        for scale in (0.5, 1.5, -1.5, 2.0):
            assert compiled(x, scale)[1] == scale * 2

"""What a warm start on a GPU does, counted: calls of the driver, files of the cache, modules."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from litz.runtime.builders import processors
from support import warm_gpu
from support.warm import run_warm

COMPILING = ("litz.codegen", "litz.cost", "litz.execution", "litz.ir", "litz.lower", "litz.pipeline", "litz.schedule")


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any], Path]:
    """What a cold process and a warm one did, and the cache's folder."""
    folder = tmp_path_factory.mktemp("warm")
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"), "LITZ_CACHE_DIR": str(folder / "litz")}
    settings = {"LITZ_GRAPH_CACHE": "1", "LITZ_CPP_QUALIFY": "0", "LITZ_DEBUG": "0"}
    paths = os.pathsep.join([str(Path(warm_gpu.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    found = []
    for _ in range(2):
        done = run_warm([warm_gpu.__file__], {**os.environ, **caches, **settings, "PYTHONPATH": paths}, timeout=300)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.strip().splitlines()[-1]))
    return found[0], found[1], folder / "litz"


def entries(root: Path, keys: list[str]) -> list[dict[str, Any]]:
    return [json.loads((root / "graph" / key / "graph.json").read_text()) for key in keys]


def test_each_distinct_kernel_is_loaded_once_and_the_backwards_with_the_forwards(starts: Any) -> None:
    """Equal layers' kernels are one file and one module of the driver's; nothing is loaded when backward is called."""
    cold, warm, root = starts
    built, launched = cold["kernels"], sum(len(entry["kernels"]) for entry in entries(root, cold["graphs"]))
    assert (cold["hits"], warm["hits"]) == (0, 1)
    assert 0 < built < launched  # equal layers have equal kernels
    assert warm["calls"]["cuModuleLoadData"] == warm["forward"]["cuModuleLoadData"] == built
    assert warm["calls"]["cuDevicePrimaryCtxRetain"] <= processors()  # each thread's first kernel may ask


def test_a_warm_start_opens_each_file_at_most_twice(starts: Any) -> None:
    """Once for its sum and once to be read; of a graph's kernels equal texts once; JSON is parsed once a file."""
    cold, warm, root = starts
    opened = Counter(warm["opened"])
    kinds = Counter(PurePosixPath(path).parts[1] for path in opened)
    assert set(kinds) <= {"graph", "triton", "native"}
    assert max(opened.values()) <= 2
    graphs, kernels = len(cold["graphs"]), cold["kernels"]
    assert len({PurePosixPath(path).parent for path in opened if "triton" in path}) == kernels
    texts = sum(len(set(entry["kernel_files"].values())) for entry in entries(root, cold["graphs"]))
    # The manifest, graph.json, the wrapper, the tensors, the key, the schedule, and the kernels' texts of a graph.
    assert kinds["graph"] <= 6 * graphs + texts
    assert warm["sums"] <= 5 * graphs + texts + 3 * kernels + 2
    assert warm["json"] <= 2 * graphs + 2 * kernels + 4


def test_equal_graphs_are_found_in_memory(starts: Any) -> None:
    """A layer that dynamo compiles again and again is read and loaded once, in a cold process and in a warm one."""
    for process in starts[:2]:
        first, *others = process["alike"]
        assert first[0] > process["calls"]["cuModuleLoadData"]
        assert others == [first, first]


def test_a_warm_start_imports_nothing_that_compiles(starts: Any) -> None:
    cold, warm, _ = starts
    assert set(COMPILING) <= set(cold["modules"])
    assert not [name for name in warm["modules"] if name.startswith(COMPILING)]

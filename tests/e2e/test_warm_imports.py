"""What a process imports that finds its graphs and kernels: nothing that only a compile uses."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

from support.warm import run_warm

SCRIPT = """
import json, sys
import torch
before = set(sys.modules)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
torch.compile(model, backend="litz")(torch.ones(3, 8)).sum().backward()
hits = torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"]
print(json.dumps([hits, sorted(set(sys.modules) - before)]))
"""
TARGETS = {f"litz.targets{rest}" for rest in ("", ".cpp", ".meta", ".triton")} | {
    *("litz.targets.cpp.build", "litz.targets.cpp.codegen", "litz.targets.meta.codegen", "litz.targets.triton.codegen")
}
"""What knows of each device how to load its kernels."""
COMPILING = ("litz.codegen", "litz.cost", "litz.execution", "litz.ir", "litz.lower", "litz.pipeline", "litz.schedule")
"""Stages, and the page that calls them."""
MOST = {"litz": 120, "litz_plugins": 40, "litz_tools": 4, "litz_autotune": 3, "litz_collectives": 3, "litz_passes": 5}
"""Modules of a dist at most; of any other the package and its plugin. litz-passes has two plugins, and asks what
torch's library has for the processor."""


def test_a_warm_process_imports_no_generator(tmp_path: Path) -> None:
    """A second process calls AOTAutograd's cache, litz's graph cache, and what loads kernels."""
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch"), "LITZ_CACHE_DIR": str(tmp_path / "litz")}
    settings = {"LITZ_GRAPH_CACHE": "1", "LITZ_CPP_QUALIFY": "0", "LITZ_DEBUG": "0"}
    found = []
    for _ in range(2):
        done = run_warm(["-c", SCRIPT], {**os.environ, **caches, **settings}, timeout=300)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.strip().splitlines()[-1]))
    (cold_hits, cold), (hits, warm) = found
    assert (cold_hits, hits) == (0, 1)
    assert "litz.targets.cpp.generate" in cold  # the names below are those of modules that a compile imports
    assert {name for name in warm if name.startswith("litz.targets")} == TARGETS
    assert set(COMPILING) <= set(cold)
    assert not [name for name in warm if name.startswith((*COMPILING, "litz.capture.passes", "litz.capture.joint"))]
    assert not [name for name in warm if name.partition(".")[0] in ("packaging", "rich", "click", "triton")]
    counts = Counter(name.partition(".")[0] for name in warm if name.startswith("litz"))
    assert not {dist: count for dist, count in counts.items() if count > MOST.get(dist, 2)}

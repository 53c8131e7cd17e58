"""Every script in examples/ runs, and prints what it promises."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from support.third_party import run_python

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTED = {
    "quickstart.py": ["step 4: loss", "graph0_forward: ", "graph0_backward: ", "wrapper.py"],
    "inspect_schedule.py": ["=== the program", "cuda:0", "=== the schedule", "kernel kernel1", "µs (", "fused ("],
}
PARALLEL = {
    "ddp.py": ["step 4: loss"],
    "fsdp2.py": ["step 4: loss"],
    "tensor_parallel.py": ["step 4: loss", "graph0_forward: _c10d_functional.all_reduce"],
}
"""Run by torchrun, as two ranks."""


def test_each_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*PRINTED, *PARALLEL}


@pytest.mark.parametrize("name", PRINTED)
def test_it_runs(name: str, tmp_path: Path) -> None:
    done = run_python(str(EXAMPLES / name), imported=True, LITZ_CACHE_DIR=str(tmp_path), PYTHONIOENCODING="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    missing = [part for part in PRINTED[name] if part not in done.stdout]
    assert not missing, f"{missing} not in:\n{done.stdout}"


@pytest.mark.parametrize("name", PARALLEL)
def test_it_runs_on_two_ranks(name: str, tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    environment = {"LITZ_CACHE_DIR": str(tmp_path), "PYTHONIOENCODING": "utf-8", "PYTHONFAULTHANDLER": "1"}
    for _ in range(3):
        done = run_python(*torchrun, str(EXAMPLES / name), children=True, **environment)
        if "terminate called without an active exception" not in done.stderr:
            break
        # Some thread of torch's outlived the interpreter, after all was printed. Seen in 2 of 30 runs, and then in
        # none of 128; the fault handler's dump below says which thread, should it come back.
        warnings.warn(f"{name} aborted at exit, and is run again:\n{done.stderr}", stacklevel=1)
    assert done.returncode == 0, done.stdout + done.stderr
    missing = [part for part in PARALLEL[name] if part not in done.stdout]
    assert not missing, f"{missing} not in:\n{done.stdout}"

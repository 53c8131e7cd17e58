"""Every script in examples/ runs, and prints what it promises."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.third_party import run_python

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTED = {
    "quickstart.py": ["step 4: loss", "graph0_forward: ", "graph0_backward: ", "wrapper.py"],
    "plugin_pass.py": ["reciprocals: ", "rewritten: a division as a multiplication", "kernel kernel0", "0.125:f32"],
    "inspect_schedule.py": ["=== the program", "cuda:0", "=== the schedule", "kernel kernel1", "µs (", "fused ("],
}


def test_each_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_it_runs(name: str, tmp_path: Path) -> None:
    done = run_python(str(EXAMPLES / name), LITZ_CACHE_DIR=str(tmp_path), PYTHONIOENCODING="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    missing = [part for part in PRINTED[name] if part not in done.stdout]
    assert not missing, f"{missing} not in:\n{done.stdout}"

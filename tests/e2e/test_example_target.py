"""Targets out of tree: installed, examples/litz-numpy takes the CPU's place, and the examples' own tests pass."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from support.third_party import pip_install, run_python

PROJECT = Path(__file__).parents[2] / "examples" / "litz-numpy"

THOROUGH = {"test_models.py"}
"""Whole models, whose operations and kinds of programs the project's other files have."""
NAMES = [
    pytest.param(path.name, marks=[pytest.mark.thorough] * (path.name in THOROUGH))
    for path in sorted((PROJECT / "tests").glob("test_*.py"))
]

INSTALLED = """
import torch
from litz import report

def softmax(x):
    return x.softmax(-1)

x = torch.randn(4, 50).bfloat16()
with report.collect() as reports:
    found = torch.compile(softmax, backend="litz")(x)
torch.testing.assert_close(found, softmax(x))
(text,) = reports[0].kernel_sources.values()
print(text)
"""


def test_installed_it_writes_the_cpus_kernels(tmp_path: Path) -> None:
    copy = shutil.copytree(PROJECT, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__", "build"))
    pip_install(copy, tmp_path / "site")
    environment = {"LITZ_CACHE_DIR": str(tmp_path / "cache"), "LITZ_CXX": "/no/such/compiler"}
    done = run_python("-c", INSTALLED, path=(tmp_path / "site",), imported=True, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (shown,) = re.findall(
        r"<!-- test: softmax -->\n```python\n(.*?)```", (PROJECT / "README.md").read_text(), re.DOTALL
    )
    assert done.stdout.strip() == shown.strip()


@pytest.mark.ci_cases("test_loops.py", "test_ops.py")
@pytest.mark.parametrize("name", NAMES)
def test_its_tests_pass(name: str, tmp_path: Path) -> None:
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(PROJECT), str(PROJECT / "tests" / name))
    done = run_python(*tests, imported=True, LITZ_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_vendor_that_runs_triton(tmp_path: Path) -> None:
    project = PROJECT.with_name("litz-faketriton")
    files = [*project.rglob("*.py"), project / "pyproject.toml"]
    assert sum(len(path.read_text().splitlines()) for path in files) < 300
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(project), str(project / "tests"))
    done = run_python(*tests, LITZ_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr

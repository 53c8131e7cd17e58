"""`tests/plugins/projects` are the projects that `litz plugins new` writes, and their own tests: found here by path."""

import sys
from pathlib import Path

import pytest

from support.warm_children import warm_python

PROJECTS = (Path(__file__).parent / "projects").resolve()
sys.path += sorted(map(str, PROJECTS.glob("*/src")))


@pytest.fixture(autouse=True)
def interpreters_for_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a project's test of values starts, with TRITON_INTERPRET=1, is a copy of a process with litz."""
    if PROJECTS in request.path.resolve().parents and request.node.name == "test_values_are_right":
        monkeypatch.setattr(sys, "executable", warm_python(imported=True, interpret="1"))

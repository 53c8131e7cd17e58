"""What tests/conftest.py promises: a run with the variable CI is as one without it, and its files lie where they are
removed quickly, and what a module's tests share is made once."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest
import torch._functorch.config
from hypothesis import settings

from support import run_folder
from support.made_once import share_workers


def test_nothing_sees_that_this_is_ci() -> None:
    assert "CI" not in os.environ
    assert not torch._functorch.config.error_on_custom_op_aliasing


def test_hypothesis_makes_the_same_inputs_in_every_run() -> None:
    assert settings.default is not None and settings.default.derandomize and settings.default.deadline is None


@pytest.mark.skipif(sys.platform != "linux", reason="memory has a place among the files of Linux")
def test_files_lie_in_memory_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(kilobytes: int) -> Path:
        path = tmp_path / "meminfo"
        path.write_text(f"MemTotal: {1 << 40} kB\nMemAvailable:    {kilobytes} kB\nBuffers: 1 kB\n")
        return path

    enough = run_folder.ROOM >> 10
    monkeypatch.setattr(run_folder, "ROOM", 4096 << 10)  # a disk has that much
    assert run_folder.has_room(tmp_path, said(4096)) and enough > 4096
    assert not run_folder.has_room(tmp_path, said(4095))
    assert not run_folder.has_room(tmp_path / "none", said(4096))
    assert not run_folder.has_room(tmp_path, tmp_path / "none")
    assert not run_folder.has_room(Path("/proc/self"), said(4096)), "it has no room"
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", None)
        patch.setenv("TMPDIR", str(tmp_path))
        assert run_folder.begin() is None and tempfile.gettempdir() == str(tmp_path), "what the environment says wins"
        patch.delenv("TMPDIR")
        patch.setattr(run_folder, "MEMORY", tmp_path)
        patch.setattr(run_folder, "AVAILABLE", said(4096))
        made = run_folder.begin()
        assert made is not None and Path(tempfile.mkdtemp()).parent == made == Path(os.environ["TMPDIR"])
        run_folder.end(made)
        assert not made.exists() and "TMPDIR" not in os.environ


SHARED = """
import pytest

@pytest.fixture(scope="module")
def made(): ...

@pytest.fixture
def through(made): ...

def test_by_itself(made): ...
def test_through_another(through): ...
def test_without(tmp_path): ...

@pytest.mark.xdist_group("own")
def test_of_a_group(made): ...

@pytest.fixture(scope="session")
def of_all(): ...

class TestMore:
    @pytest.mark.parametrize("n", [1, 2])
    def test_of_a_session(self, of_all, n): ...
"""


def test_tests_that_share_a_fixture_share_a_worker(tmp_path: Path) -> None:
    class Groups(dict[str, str]):
        def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
            share_workers(items)
            for item in items:
                mark = item.get_closest_marker("xdist_group")
                self[item.name] = mark.args[0] if mark else ""

    (tmp_path / "test_shared.py").write_text(SHARED)
    found = Groups()
    alone = ["-p", "no:terminal", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path)]
    assert pytest.main([*alone, "--collect-only", str(tmp_path)], plugins=[found]) == 0
    shared = dict.fromkeys(
        ("test_by_itself", "test_through_another", "test_of_a_session[1]", "test_of_a_session[2]"), "test_shared.py"
    )
    assert found == {**shared, "test_without": "", "test_of_a_group": "own"}

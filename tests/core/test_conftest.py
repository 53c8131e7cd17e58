"""What tests/conftest.py promises: a run with the variable CI is as one without it, and its files lie where they are
removed quickly."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest
import torch._functorch.config
from hypothesis import settings

from support import run_folder


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

"""What pytest does around tests, made quicker: it hears what it heard, and a test that hangs is ended."""

from __future__ import annotations

import faulthandler
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.logging import LogCaptureHandler

from support import around_tests
from support.around_tests import HANG_SECONDS, UNHEARD, WATCH_SECONDS, Watch

APART = logging.getLogger("litz-tests.apart")
APART.propagate = False
HANGS = """
import faulthandler, pytest, time
from support import around_tests

def test_hangs(request):
    around_tests.HANG_SECONDS = 0.2
    around_tests.Watch().begin(request.node)
    time.sleep(30)
"""


@pytest.mark.parametrize("name", ["litz-tests", APART.name])
def test_loggers_are_heard(name: str, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger(name).warning("said")
    assert caplog.messages == ["said"]


def test_torchs_traces_are_not_heard_and_nobody_listens_twice() -> None:
    for name in UNHEARD:
        assert not any(isinstance(handler, LogCaptureHandler) for handler in logging.getLogger(name).handlers)
    for logger in (APART, logging.getLogger()):
        assert sum(isinstance(handler, LogCaptureHandler) for handler in logger.handlers) == 2


def test_one_watch_serves_a_minute(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    now, begun = [1000.0], list[float]()
    monkeypatch.setattr(around_tests.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda seconds, **_: begun.append(seconds))
    watch = Watch()
    for passed in (0, WATCH_SECONDS / 2, WATCH_SECONDS, 1):
        now[0] += passed
        watch.begin(request.node)
    assert begun == [HANG_SECONDS] * 2


def test_a_test_that_hangs_ends_its_process_and_is_named(tmp_path: Path) -> None:
    file = tmp_path / "test_hanging.py"
    file.write_text(HANGS)
    line = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--rootdir",
        str(tmp_path),
    ]
    path = [str(Path(__file__).parents[1]), *sys.path]
    done = subprocess.run([*line, str(file)], capture_output=True, text=True, env={"PYTHONPATH": ":".join(path)})
    assert done.returncode == 1
    assert "Timeout (0:00:00.2" in done.stderr and "in test_hangs" in done.stderr

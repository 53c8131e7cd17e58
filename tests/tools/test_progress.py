"""The line of a long compile, on a terminal of the test's own."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from litz.options import distributed_rank
from litz_tools import progress
from litz_tools.progress import Board, Job, can_be_seen, line
from support.warm import run_warm


class Terminal:
    """A pseudo terminal: `file` is the program's side of it, `text()` what came out so far. In a `with` it is standard
    error; pytest sets that anew between fixtures and tests."""

    def __init__(self) -> None:
        self._main, side = pty.openpty()
        termios.tcsetwinsize(side, (24, 80))
        self.file = os.fdopen(side, "w")
        self._seen = b""
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Terminal:
        self._before, sys.stderr = sys.stderr, self.file
        return self

    def __exit__(self, *error: object) -> None:
        sys.stderr = self._before

    def _read(self) -> None:
        while True:
            try:
                self._seen += os.read(self._main, 65536)
            except OSError:
                return

    def text(self) -> str:
        return self._seen.decode()

    def wait_for(self, part: str, seconds: float = 20.0) -> str:
        end = time.monotonic() + seconds
        while part not in self.text() and time.monotonic() < end:
            time.sleep(0.02)
        assert part in self.text(), self.text()
        return self.text()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    yield Terminal()


def test_the_line_says_graph_stage_kernels_and_time() -> None:
    job = Job("graph0_backward", 2)
    assert line([job], 4.4) == "litz: graph 2, graph0_backward: capture, 4 s"
    job.at("build")
    for _ in range(12):
        job.built(40)
    assert line([Job("", 1), job], 17.2) == "litz: graph 2, graph0_backward: build, 12 of 40 kernels, 17 s"
    assert line([Job("graph1", 1), job], 17).endswith(", 17 s, and 1 more")
    job.at("report")
    assert "kernels" not in line([job], 17)
    assert line([Job("", 3)], 3) == "litz: graph 3: capture, 3 s"


def test_it_appears_after_a_while_lives_and_is_erased(terminal: Terminal) -> None:
    with terminal:
        board = Board(patience=0.2)
        with board.job("graph0_inference", True) as job:
            job.at("lower")
            assert terminal.text() == "", "not yet"
            terminal.wait_for("litz: graph 1, graph0_inference: lower")
            job.at("build")
            job.built(3)
            terminal.wait_for("build, 1 of 3 kernels")
            print("a warning of the program's", file=sys.stderr)
            terminal.wait_for("a warning of the program's")
        time.sleep(0.3)
        text = terminal.text()
        erased = text.rpartition("litz:")[2].partition("\x1b[2K")
        assert erased[1] and not re.sub(r"\x1b\[[?\w]+", "", erased[2]).strip(), repr(text)
        assert sys.stderr is terminal.file, "what is printed is taken over only while the line lives"
        shown = text.count("litz:")
        time.sleep(0.6)
        assert terminal.text().count("litz:") == shown, "nothing is drawn once the compile is done"
        assert all(len(row) <= 80 for row in text.replace("\x1b[2K", "").split("\r") if row.startswith("litz"))


def test_a_short_compile_draws_nothing(terminal: Terminal) -> None:
    with terminal:
        board = Board(patience=5.0)
        with board.job("graph0", True):
            time.sleep(0.05)
        time.sleep(0.1)
        assert terminal.text() == ""


def test_a_backward_soon_after_its_forward_goes_on_counting(terminal: Terminal) -> None:
    with terminal:
        board = Board(patience=0.5)
        with board.job("graph0_forward", True):
            time.sleep(0.3)
        with board.job("graph0_backward", True):
            start = time.monotonic()
            terminal.wait_for("graph 2, graph0_backward")
            assert time.monotonic() - start < 5
        board._ended = board._since = -1000.0
        with board.job("graph1", True):
            assert time.monotonic() - board._since < 1, "after a pause it counts anew"


def test_threads_share_one_line(terminal: Terminal) -> None:
    with terminal:
        board = Board(patience=0.1)
        inside, leave = threading.Barrier(4), threading.Event()

        def compile_one(number: int) -> None:
            with board.job(f"graph{number}", True):
                inside.wait()
                leave.wait()

        threads = [threading.Thread(target=compile_one, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        inside.wait()
        text = terminal.wait_for("and 2 more")
        assert not any(row.count("litz:") > 1 for row in text.split("\r")), "one at a time"
        leave.set()
        for thread in threads:
            thread.join()
        assert board._shown is None and not board._jobs


def test_an_error_ends_the_line(terminal: Terminal) -> None:
    with terminal:
        board = Board(patience=0.05)
        with pytest.raises(KeyboardInterrupt), board.job("graph0", True):
            terminal.wait_for("litz: graph 1")
            raise KeyboardInterrupt
        assert board._shown is None


JOB = """
import sys, time
from litz_tools import progress
board, stop = progress.Board(0.05), time.monotonic() + float(sys.argv[1])
with board.job("graph0", True):
    while board._shown is None and time.monotonic() < stop:
        time.sleep(0.02)
    time.sleep(0.1)
"""
"""Works until its line is there, at most as many seconds as it is told."""


def test_one_process_has_a_terminals_line(terminal: Terminal) -> None:
    with terminal:
        claim = progress._claim()
        assert claim is not None
        for expected in (False, True):
            before = len(terminal.text())
            code = [sys.executable, "-c", JOB, "20" if expected else "0.3"]
            subprocess.run(code, stderr=terminal.file, check=True)
            time.sleep(0.1)
            assert ("litz: graph 1" in terminal.text()[before:]) == expected
            claim.release()


def test_nothing_is_drawn_without_a_terminal_or_beyond_rank_0(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with terminal:
        assert can_be_seen(None) and can_be_seen(0) and not can_be_seen(1)
        with (tmp_path / "log").open("w") as file:
            monkeypatch.setattr(sys, "stderr", file)
            assert not can_be_seen(None)
        assert not can_be_seen(None), "a closed one"
        assert distributed_rank({"RANK": "3"}) == 3 and distributed_rank({}) is None
        started = threading.active_count()
        with Board(patience=0.0).job("graph0", False):
            assert threading.active_count() == started


def test_a_dumb_terminal_has_no_line(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal:
        monkeypatch.setenv("TERM", "dumb")
        with Board(patience=0.05).job("graph0", True):
            time.sleep(0.6)
        assert "litz" not in terminal.text()


SCRIPT = """
import sys
import time
import torch
from litz import pipeline
from litz_tools import progress
progress.BOARD.patience = 0.3
load = pipeline.load_kernels
def slow(*arguments):
    loaded = load(*arguments)
    stop = time.monotonic() + (20 if sys.argv[1] == "on" and sys.stderr.isatty() else 0.6)
    while progress.BOARD._shown is None and time.monotonic() < stop:
        time.sleep(0.02)
    time.sleep(0.3)  # the line is drawn four times a second
    return loaded
pipeline.load_kernels = slow
f = torch.compile(lambda x: x.sin() + 1, backend="litz", options={"progress": sys.argv[1] == "on"})
f(torch.ones(3))
print("done", file=sys.stderr)
"""


@pytest.mark.parametrize("option", ["on", "off"])
def test_a_compile_on_a_terminal(terminal: Terminal, option: str) -> None:
    done = run_warm(["-c", SCRIPT, option], stderr=os.ttyname(terminal.file.fileno()), imported=True)
    assert done.returncode == 0
    text = terminal.wait_for("done")
    assert ("litz: graph 1, graph0_inference: build, 1 of 1 kernels" in text) == (option == "on")


def test_a_compile_into_a_pipe_says_nothing() -> None:
    done = run_warm(["-c", SCRIPT, "on"], imported=True)
    assert done.stderr == "done\n" and done.stdout == ""

"""A line on the terminal that says what a long compile is doing. In: jobs, their stages and kernels. Out: the line.

    litz: graph 2, graph0_backward: build, 12 of 40 kernels, 17 s

The line stands below what the program prints, from the fourth second on, and is erased when the compile is done. There
is one per terminal: compiles of several threads share it, a second process leaves it to the first, and of a distributed
job the process of rank 0 has it. Nothing is drawn, and no thread started, where standard error is no terminal.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from litz.options import distributed_rank
from litz_plugins import Watcher, threads

PATIENCE = 3.0
"""Seconds of silence before the line appears."""
PAUSE = 10.0
"""Seconds without a compile after which the next one starts counting anew: between the forward and the backward of a
step, torch traces and the program runs."""


@dataclass(eq=False)
class Job:
    """One graph on its way, or the capture of one. done, kernels: built so far, and to be built. within: what takes
    long there, in words; '' for nothing in particular."""

    name: str
    number: int
    stage: str = "capture"
    done: int = 0
    kernels: int = 0
    within: Callable[[], str] = str

    def at(self, stage: str) -> None:
        """Enters a stage; no kernels are counted in it yet."""
        self.stage, self.done, self.kernels = stage, 0, 0

    def built(self, kernels: int) -> None:
        """Counts one more built kernel of `kernels`. Several threads call this, and a count may get lost between
        them."""
        self.done, self.kernels = self.done + 1, kernels


def line(jobs: list[Job], seconds: float) -> str:
    """Returns the text of the line about the job that began last, which others in the same thread wait for."""
    job = jobs[-1]
    kernels = f", {min(job.done, job.kernels)} of {job.kernels} kernels" if job.kernels else ""
    others = len({other.name for other in jobs} - {job.name, ""})
    more = f", and {others} more" if others else ""
    name = f", {job.name}" if job.name else ""
    slow = job.within()
    within = f", {slow}" if slow else ""
    return f"litz: graph {job.number}{name}: {job.stage}{kernels}{within}, {seconds:.0f} s{more}"


class Board:
    """The jobs of this process and the line that shows them. patience: seconds until the line appears."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self.patience = patience
        self._lock = threading.RLock()
        self._jobs: list[Job] = []
        self._count = 0
        self._since = self._ended = -PAUSE
        self._timer: threading.Event | None = None
        self._shown: Shown | None = None

    @contextmanager
    def job(self, name: str, enabled: bool) -> Iterator[Job]:
        """Yields a job that lasts as long as the `with`. name: of the graph; '' for a capture, which makes graphs."""
        with self._lock:
            self._count += bool(name)
            job = Job(name, self._count + (not name), "start" if name else "capture")
        if not enabled:
            yield job
            return
        self._begin(job)
        try:
            yield job
        finally:
            self._end(job)

    def _begin(self, job: Job) -> None:
        with self._lock:
            now = time.monotonic()
            if not self._jobs and now - self._ended > PAUSE:
                self._since = now
            self._jobs.append(job)
            if self._timer is None and self._shown is None:
                self._timer = threads.later(max(0.0, self._since + self.patience - now), self._show)

    def _end(self, job: Job) -> None:
        with self._lock:
            if job in self._jobs:
                self._jobs.remove(job)
            if self._jobs:
                return
            self._ended = time.monotonic()
            if self._timer is not None:
                self._timer.set()
                self._timer = None
            if self._shown is not None:  # before the program prints anything
                self._shown.stop()
                self._shown = None

    def _show(self) -> None:
        with self._lock:
            self._timer = None
            if self._jobs and self._shown is None:
                self._shown = Shown.on_this_terminal(self._text)

    def _text(self) -> str:
        jobs = list(self._jobs)  # without the lock: who draws must not wait for who stops the drawing
        return line(jobs, time.monotonic() - self._since) if jobs else ""


class Shown:
    """A line that is being drawn, and the terminal's claim to it."""

    def __init__(self, live: Any, claim: Claim) -> None:
        self._live, self._claim = live, claim

    @classmethod
    def on_this_terminal(cls, text: Callable[[], str]) -> Shown | None:
        """Returns a line that is drawn from now on; None if another process has it, or this terminal cannot."""
        try:
            claim = _claim()
            if claim is None:
                return None
            from rich.console import Console  # a tenth of a second that a short compile need not pay
            from rich.live import Live
            from rich.text import Text

            console = Console(stderr=True)
            if not console.is_terminal or console.is_dumb_terminal:
                claim.release()
                return None

            def drawn() -> Any:
                return Text(text(), style="dim", no_wrap=True, overflow="ellipsis")

            # What the program prints meanwhile goes above the line, unless it goes elsewhere.
            live = Live(
                console=console,
                get_renderable=drawn,
                refresh_per_second=4,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),
            )
            live.start(refresh=True)
            console.show_cursor(True)  # a process that is killed would leave a terminal without one
            return cls(live, claim)
        except Exception:  # whatever goes wrong with a line that says nothing but "wait": the compile goes on
            return None

    def stop(self) -> None:
        """Erases the line, and lets other processes have it."""
        with contextlib.suppress(Exception):
            self._live.stop()
        with contextlib.suppress(Exception):
            self._claim.release()


class Claim:
    """The right to draw on a terminal, which one process at a time has: a lock on the terminal's own file."""

    def __init__(self, file: int | None) -> None:
        self._file = file

    def release(self) -> None:
        """Gives the terminal up for other processes. Does nothing if this process does not hold it."""
        if self._file is not None:
            import fcntl

            fcntl.flock(self._file, fcntl.LOCK_UN)  # a child that was forked meanwhile holds the file open
            os.close(self._file)
            self._file = None


def _claim() -> Claim | None:
    """A claim to the terminal of standard error; None while another process has it. Where terminals cannot be locked
    (Windows, some containers) everyone has it."""
    try:
        import fcntl

        # Opened anew: processes that were started from one shell share the file that standard error is.
        file = os.open(os.ttyname(sys.stderr.fileno()), os.O_WRONLY | os.O_NOCTTY)
    except (ImportError, OSError):
        return Claim(None)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    except OSError:
        os.close(file)
        return Claim(None)
    return Claim(file)


def can_be_seen(rank: int | None) -> bool:
    """Returns whether this process should draw, and on a terminal. rank: in a distributed job, None outside of one."""
    if rank:
        return False
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # no standard error, or a closed one
        return False


BOARD = Board()
"""A process has one terminal, and threads that compile know nothing of one another."""


def watch(name: str, enabled: bool, slow: Callable[[], str]) -> Watcher | None:
    """Returns what moves the line for a graph, or for '' a capture; None where nobody would see the line."""
    from litz.capture import torch_api  # loads torch, which a compile has loaded

    rank, _ = torch_api.rank() or (distributed_rank(), None)
    shown, stack = enabled and can_be_seen(rank), ExitStack()
    job = stack.enter_context(BOARD.job(name, shown))
    job.within = slow
    return Watcher(job.at if name else None, job.built, ended=stack.close) if shown else None


def _forget() -> None:
    global BOARD
    BOARD = Board(BOARD.patience)


if hasattr(os, "register_at_fork"):  # a child has neither the thread that draws nor the parent's compiles
    os.register_at_fork(after_in_child=_forget)

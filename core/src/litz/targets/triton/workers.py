"""Processes that compile Triton kernels beside this one, whose threads would wait for each other's Python.

In: `Job`s. Out: a folder's files, or why there are none. A worker imports Triton and no torch, sees no GPU, and is
warm when it says so: it has compiled a kernel. Jobs and answers are JSON; what is built lies in the folder, and the
cache vouches for it as for anything that this process builds. A worker that ends or takes too long costs its job
nothing but time: this process does it.

There is one pool to a process. Workers are started by the first compile that misses the graph cache (`start`), or by
the first kernel that nobody has built; they end when nobody has asked for so long, with this process, and with the line
to it. A process that was forked has no workers until it starts its own.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from litz import logs
from litz.options import local_ranks, without_gpus
from litz.runtime.builders import processors
from litz.target import Room, figures_of
from litz_plugins import Target, threads

from .compile import Compile, Job, compile_job

START_SECONDS = 60.0
"""Until a worker is warm: half a second, more where Triton lies on a slow disk."""
BUILD_SECONDS = 300.0
"""For one job: ptxas takes a minute for some."""
IDLE_SECONDS = 60.0
"""After the last job, until workers end."""
LOSSES = 3
"""Workers that may end or be ended in their jobs before there are no more of them."""

_logger = logs.LOGGER.getChild("build")


@dataclass(frozen=True)
class WorkerFigures(Room):
    """Figures of the machine that compiles, which `target/figures/any/workers.toml` explains."""

    table = "workers"
    most_processes: int
    fewest_processors: int


def compiling(options: Any) -> Compile:
    """Returns a function that compiles kernels by workers, or in this process where `options` ask for none."""
    most = worker_count(options)
    return partial(_compile, most=most) if most else compile_job


def start(options: Any) -> None:
    """Starts the workers that a compile with these options may use, where they do not run; does not wait for them. One
    processor is left to who makes the texts, which takes as long as a worker's start."""
    _shared.start(min(worker_count(options), max(processors(local_ranks()) - 1, 1)))


def worker_count(options: Any) -> int:
    """Returns how many processes compile kernels; 0: this process does. options: None, or with `threads` and
    `build_processes`."""
    if options is None:
        return 0
    given: int | None = options.get("build_processes")
    if given is not None:
        return given
    mine, figures = processors(local_ranks()), figures_of(Target("cpu"), WorkerFigures)
    count = min(options.get("threads") or mine, figures.most_processes)
    return count if count > 1 and mine >= figures.fewest_processors else 0


def _python() -> str:
    """Returns the Python of this process. Errors: OSError where litz is part of a program of another kind."""
    name = Path(sys.executable or "").name
    if "py" not in name.lower() or getattr(sys, "frozen", False):
        raise OSError(f"{sys.executable or 'the program'} is no Python")
    return sys.executable


def last_words(errors: IO[bytes]) -> str:
    """Returns ": " and the last line that a process has written to a file, '' where the file has none. errors: open
    for reading."""
    try:
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
    except (OSError, ValueError):
        return ""
    return f": {lines[-1][:200]}" if lines else ""


class Lost(Exception):
    """Raised where a worker has ended, or had to be ended; the message says why."""


_START = """
import json, sys
settings = json.loads(sys.argv[1])
sys.path[:] = settings["path"]
from litz.targets.triton.worker import main
main(settings["line"], settings["parent"])
"""


class Worker:
    """A process that compiles, and the socket to it. Errors: OSError where no process can be started."""

    def __init__(self, program: str = _START) -> None:
        self._errors: Any = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        ours, theirs = socket.socketpair()
        with theirs:
            path = [entry for entry in sys.path if isinstance(entry, str)]
            settings = json.dumps({"path": path, "line": theirs.fileno(), "parent": os.getpid()})
            try:
                self.process = subprocess.Popen(
                    [_python(), "-P", "-c", program, settings],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=self._errors,
                    stderr=self._errors,
                    env=without_gpus(),
                )
            except BaseException:
                ours.close()
                raise
        self._line = Connection(ours.detach())
        self.warm = False

    @property
    def ready(self) -> bool:
        """Returns whether the worker would begin with a request at once."""
        return self.warm or self._line.poll()

    def ask(self, request: bytes, seconds: float) -> bytes:
        """Sends a request and returns the answer. seconds: the time that the answer may take. Errors: Lost."""
        try:
            if not self.warm:
                problem = self._receive(START_SECONDS, "is not warm")
                if problem:
                    raise Lost(f"a worker compiles nothing: {problem.decode(errors='replace')}")
                self.warm = True
            self._line.send_bytes(request)
            return self._receive(seconds, "has not built it")
        except (EOFError, OSError) as error:
            raise Lost(f"a worker has ended{last_words(self._errors)}") from error

    def _receive(self, seconds: float, late: str) -> bytes:
        if not self._line.poll(seconds):
            raise Lost(f"a worker {late} in {seconds:g} s")
        return self._line.recv_bytes()

    def end(self) -> None:
        """Ends the process, waits for up to 5 seconds, and closes its files."""
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):  # not even a kill ends a process that waits for a disk
            self.process.wait(5.0)
        self.let_go()

    def let_go(self) -> None:
        """Closes this process's end of the line, and the file of the worker's errors."""
        with suppress(OSError):
            self._line.close()
        self._errors.close()


class Workers:
    """A pool of workers. seconds: for a job. idle: seconds without a job until workers end. program: what they run."""

    def __init__(self, seconds: float = BUILD_SECONDS, idle: float = IDLE_SECONDS, program: str = _START) -> None:
        self._seconds, self._idle, self._program = seconds, idle, program
        self._changed = threading.Condition()
        self._free: list[Worker] = []
        self._busy: set[Worker] = set()
        self._losses = 0
        self._over = False
        self._used = time.monotonic()
        self._timer: threading.Event | None = None

    def processes(self) -> list[int]:
        """Returns the numbers of the worker processes."""
        with self._changed:
            return [worker.process.pid for worker in (*self._free, *self._busy)]

    def start(self, most: int) -> None:
        """Starts the workers that are missing to `most`, and does not wait for them."""
        with self._changed:
            while len(self._free) + len(self._busy) < most and self._add():
                pass

    def compile(self, job: Job, folder: Path, most: int) -> str:
        """Compiles a job by one of up to `most` workers, and waits; in this process where no worker can."""
        request = json.dumps({"job": job.to_data(), "folder": str(folder.resolve())}).encode()
        worker = self._take(most)
        if worker is None:
            return compile_job(job, folder)
        try:
            answer = worker.ask(request, self._seconds)
        except Lost as why:
            self._lose(worker, str(why))
            shutil.rmtree(folder, ignore_errors=True)  # with what the worker has left there
            folder.mkdir(mode=0o700, exist_ok=True)
            return compile_job(job, folder)
        except BaseException:  # Ctrl-C: the answer would be taken for that to the next request
            self._drop(worker)
            raise
        self._give_back(worker)
        return answer.decode()

    def close(self) -> None:
        """Ends all workers, and starts no more."""
        with self._changed:
            self._over = True
            ending = [*self._free, *self._busy]
            self._free, self._busy = [], set()
            if self._timer is not None:
                self._timer.set()
            self._changed.notify_all()
        for worker in ending:
            worker.end()

    def forget(self) -> None:
        """Lets go, in a forked process, of the parent's workers, whose lines are not to be held open here."""
        for worker in (*self._free, *self._busy):
            worker.let_go()
            worker.process.returncode = 0  # not this process's to wait for

    # ------------------------------------------------------------------------------------ with the lock held, or to it

    def _add(self) -> bool:
        """Start a worker. False where there are to be none."""
        if self._over:
            return False
        try:
            self._rest_later(self._idle)
            self._free.append(Worker(self._program))
        except (OSError, RuntimeError) as error:  # processes are not allowed, or this one is about to end
            self._over = True
            _logger.warning("kernels are built in this process: no other can be started: %s", error)
            return False
        self._used = time.monotonic()
        return True

    def _take(self, most: int) -> Worker | None:
        with self._changed:
            while True:
                if len(self._busy) >= most:
                    self._changed.wait()
                elif self._free:
                    worker = next((worker for worker in self._free if worker.ready), self._free[0])
                    self._free.remove(worker)
                    self._busy.add(worker)
                    return worker
                elif not self._add():
                    return None

    def _give_back(self, worker: Worker) -> None:
        with self._changed:
            self._used = time.monotonic()
            if worker in self._busy:
                self._busy.remove(worker)
                self._free.append(worker)
            self._changed.notify()

    def _drop(self, worker: Worker) -> None:
        worker.end()
        with self._changed:
            self._busy.discard(worker)
            self._changed.notify_all()

    def _lose(self, worker: Worker, why: str) -> None:
        self._drop(worker)
        with self._changed:
            if self._over:
                return
            self._losses += 1
            self._over = not worker.warm or self._losses >= LOSSES
        more = ", and so are all others from here on" if self._over else ""
        _logger.warning("a kernel is built in this process%s: %s", more, why)

    def _rest_later(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = threads.later(seconds, self._rest)

    def _rest(self) -> None:
        """End the workers if nobody has asked for long."""
        with self._changed:
            self._timer = None
            left = self._used + self._idle - time.monotonic()
            if self._busy or left > 0:
                self._rest_later(max(left, self._idle / 10))
                return
            ending, self._free = self._free, []
        for worker in ending:
            worker.end()


# ------------------------------------------------------------------------------------------------- of this process

_shared = Workers()


def _compile(job: Job, folder: Path, most: int) -> str:
    return _shared.compile(job, folder, most)


@atexit.register
def _end() -> None:
    _shared.close()


def _forget() -> None:
    global _shared
    _shared.forget()
    _shared = Workers()


if hasattr(os, "register_at_fork"):  # a child has neither the threads that ask nor a right to the answers
    os.register_at_fork(after_in_child=_forget)

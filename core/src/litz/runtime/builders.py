"""Threads that build, and the programs that they run. Nothing here takes forever, and all of it ends on Ctrl-C.

In: functions, and command lines. Out: a `Future` of each function; what a program did. A program has a time limit, a
process group of its own, and nothing to read. Where threads cannot be started, who waits for a result does the work.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from litz_plugins import threads

T = TypeVar("T")

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Linux's file of the processor time that a container may use, in each of so many microseconds."""
PROGRAM_SECONDS = 300.0
"""A program may take: g++ needs a minute for the longest kernels."""
CALLER = 0
"""The number of a thread that waits, and does the work where no other can."""
END_SECONDS = 5.0
"""A killed process may take to end: longer where it waits for a disk."""

_builders: ContextVar[Builders | None] = ContextVar("litz_builders", default=None)
"""Whose thread this is."""


@dataclass(frozen=True)
class Done:
    """The end of a program. problem: '' where it ended with 0, else why not, to follow its name. output, errors: what
    it wrote; '' where it was ended."""

    problem: str
    output: str = ""
    errors: str = ""


def run_program(line: Sequence[str], seconds: float | None = None) -> Done:
    """Runs a program to its end, for up to `seconds` (`PROGRAM_SECONDS`). A program that takes longer, or that is under
    way when who waits is interrupted, is killed with all processes that it has started."""
    seconds, mine = PROGRAM_SECONDS if seconds is None else seconds, _builders.get()
    if mine is None and threading.current_thread() is threading.main_thread():
        # Ctrl-C may arrive here between the program's start and the first line that could end it; in no other thread.
        with Builders(1) as builders:
            return builders.result(builders.submit(run_program, line, seconds))
    # In a group of its own a program's children can be ended with it. Ctrl-C in a terminal does not reach another
    # group: who waits for the program ends it.
    group: Any = {"process_group": 0} if hasattr(os, "killpg") else {}
    try:
        pipe = subprocess.PIPE
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, **group)
    except (OSError, ValueError, subprocess.SubprocessError) as cause:
        return Done(f"cannot be started: {cause}")
    try:
        if mine is not None:
            mine.running(process)
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        return Done(f"did not end in {seconds:g} s, and was ended")
    except BaseException:
        _end(process)
        raise
    finally:
        if mine is not None:
            mine.running(None)
    status = process.returncode
    problem = "" if status == 0 else f"ended with {status}" if status > 0 else f"was ended by signal {-status}"
    return Done(problem, output.decode(errors="replace"), errors.decode(errors="replace"))


def _kill(process: subprocess.Popen[Any]) -> None:
    with suppress(OSError):
        if hasattr(os, "killpg") and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()


def _end(process: subprocess.Popen[Any]) -> None:
    _kill(process)
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    for stream in (process.stdout, process.stderr):  # not read to the end: whoever left the group may hold them open
        if stream is not None:
            stream.close()


class Builders:
    """Up to `count` threads that do what is submitted, in order.

    At the end of a `with`, nothing is under way. An error inside ends the programs that are running and drops what has
    not begun; where the error is no Exception (Ctrl-C), nobody waits for the rest.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._under_way: dict[Future[Any], int] = {}  # with the number of the thread that does the work
        self._programs: dict[int, subprocess.Popen[Any]] = {}  # by the thread that waits
        self._threads: dict[int, threads.Alive] = {}  # by number, each once it is started
        self._started = self._idle = 0
        self._over = self._stopped = False

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Has a thread call a function. Take the result by `result`."""
        future: Future[T] = Future()
        with self._changed:
            self._waiting.append((future, lambda: function(*arguments)))
            wanted = self._idle < len(self._waiting) and self._started < self._count
            self._started += wanted
            number = self._started
            self._changed.notify()
        if wanted:
            self._threads[number] = threads.start(partial(self._work, number)) or (lambda: False)
        return future

    def result(self, future: Future[T]) -> T:
        """Waits for what was submitted, and returns or raises what came of it. Where no thread lives, this one does the
        work."""
        while True:
            try:
                return future.result(threads.LOOK_SECONDS)
            except TimeoutError:
                if future.done():
                    raise  # the function's own
            with self._changed:
                if not self._lives(self._under_way.get(future, CALLER)) and not future.done():
                    future.set_exception(MemoryError("the thread that did this has ended: there is no memory for it"))
                if future.done() or self._any_lives():
                    continue
            self._do_one(CALLER)

    def running(self, process: subprocess.Popen[Any] | None) -> None:
        """Notes which program the calling thread waits for, None for none any more."""
        me = threading.get_ident()
        with self._changed:
            if process is None:
                self._programs.pop(me, None)
                return
            self._programs[me] = process
            if self._stopped:
                _kill(process)

    def __enter__(self) -> Builders:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        with self._changed:
            self._over, self._stopped = True, error is not None
            dropped = [future for future, _ in self._waiting] if self._stopped else []
            if self._stopped:
                self._waiting.clear()
                for process in self._programs.values():
                    _kill(process)
            self._changed.notify_all()
        for future in dropped:
            future.cancel()
        if error is not None and not isinstance(error, Exception):  # who presses Ctrl-C has waited enough
            return
        while True:
            with self._changed:
                if self._any_lives() if self._waiting else any(map(self._lives, self._under_way.values())):
                    self._changed.wait(threads.LOOK_SECONDS)
                    continue
                if not self._waiting:
                    return
            self._do_one(CALLER)

    def _lives(self, number: int) -> bool:
        """Says whether a thread exists or is about to be started."""
        return number not in self._threads or self._threads[number]()

    def _any_lives(self) -> bool:
        return any(map(self._lives, range(1, self._started + 1)))

    def _work(self, number: int) -> None:
        """Runs a thread's tasks until there are no more."""
        while self._next():
            self._do_one(number)

    def _next(self) -> bool:
        """Waits until there is something to do; False at the end."""
        with self._changed:
            self._idle += 1
            try:
                while not self._waiting and not self._over:
                    self._changed.wait()
            finally:
                self._idle -= 1
            return bool(self._waiting)

    def _do_one(self, number: int) -> None:
        with self._changed:
            if not self._waiting:
                return
            future, function = self._waiting.popleft()
            self._under_way[future] = number
        token = _builders.set(self)
        try:
            if future.set_running_or_notify_cancel():
                future.set_result(function())
        except BaseException as error:
            if not future.done():
                future.set_exception(error)
        finally:
            _builders.reset(token)
            with self._changed:
                self._under_way.pop(future, None)
                self._changed.notify_all()


def processors(ranks: int = 1) -> int:
    """Returns how many processors this process may use: those that it is bound to, and no more than its share of the
    machine's, or the container's, where `ranks` processes have one each."""
    machine = _bound_to(1)  # of a container, what it was given
    with suppress(OSError, ValueError):
        quota, period = QUOTA.read_text(encoding="utf-8").split()
        if quota != "max":
            machine = min(machine, -(-int(quota) // int(period)))
    return max(min(_bound_to(0), machine // ranks), 1)


def _bound_to(process: int) -> int:
    """Returns how many processors a process may run on. process: its number, 0 for this one."""
    try:
        return len(os.sched_getaffinity(process))
    except (AttributeError, OSError):  # not on Linux
        return os.cpu_count() or 1

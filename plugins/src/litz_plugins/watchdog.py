"""Calls of plugins that take long: in, calls as they begin and end; out, a word about a call that takes more than a
second, and `TookTooLong`, raised in the thread of a call that takes more than its limit.

One thread of the process looks at the calls that run, and none is started before the first call with a limit. Python
delivers the exception between two instructions of its own: a call that hangs in C code gets it when that returns.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

INTERVAL = 0.05
"""Seconds between two looks, at most."""
SLOW = 1.0
"""Seconds after which somebody is told that a call still runs."""


class TookTooLong(BaseException):
    """Raised in a call that has taken more than its limit. No Exception, so that what hangs does not catch it."""


@dataclass(eq=False, slots=True)
class Running:
    """A call that runs. ends, slow: by `time.monotonic`, when it is stopped, and when `say` is called, once and from
    another thread. told: it was stopped. said: `say` was called."""

    ends: float
    slow: float
    say: Callable[[], None]
    thread: int = field(default_factory=threading.get_ident)
    told: bool = False
    said: bool = False


class Watchdog:
    """The calls that run, of all threads."""

    def __init__(self) -> None:
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Begin anew: a child of a process that forks has neither its thread nor its calls."""
        self._running: dict[int, Running] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, seconds: float, say: Callable[[], None]) -> tuple[int, Running]:
        """A call begins in this thread that may take so long, 0 for no limit. say: called when the call is slow."""
        now = time.monotonic()
        number, running = next(self._numbers), Running(now + (seconds or inf), now + SLOW, say)
        self._running[number] = running
        if not self._wake.is_set():  # it is, as long as the thread has not looked since the last call
            if self._thread is None or not self._thread.is_alive():
                self._start()
            self._wake.set()
        return number, running

    def end(self, number: int, running: Running) -> bool:
        """The call has ended, or was ended. Was it told to?"""
        with self._lock:  # `told` and the exception go together
            del self._running[number]
            if running.told:
                _deliver(running.thread)  # not delivered yet, it would hit who comes next
        return running.told

    def _start(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._look, name="litz-watchdog", daemon=True)
                self._thread.start()

    def _look(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._running:
                now = time.monotonic()
                ends = [now + INTERVAL * 4]
                for number, running in list(self._running.items()):
                    if running.slow <= now and not running.said:
                        running.said = True
                        running.say()
                    if running.ends > now:
                        ends.append(running.ends)
                        continue
                    with self._lock:
                        if number in self._running:
                            running.told, running.ends = True, now + 1.0  # again, where it was caught
                            _raise_in(running.thread, TookTooLong)
                time.sleep(max(INTERVAL, min(ends) - now))


def _raise_in(thread: int, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def _deliver(thread: int) -> None:
    """Have this thread take the exception here, whether or not it has arrived before. To take it back instead would
    leave CPython 3.11 with a request that nothing ends: a traced function (a debugger, coverage) would never begin."""
    try:
        _raise_in(thread, TookTooLong)
        for _ in range(1_000_000):  # it arrives at the first jump back
            pass
    except TookTooLong:
        pass

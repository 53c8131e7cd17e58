"""Calls of plugins that take long: in, calls as they begin and end; out, a word about a call that takes more than a
second, and `TookTooLong`, raised in the thread of a call that takes more than its limit.

One thread of the process looks at the calls that run, and none is started before the first call with a limit. Python
delivers the exception between two instructions of its own: a call that hangs in C code gets it when that returns.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from math import inf

from . import threads

INTERVAL = 0.05
"""Seconds between two looks, at most."""
SLOW = 1.0
"""Seconds after which somebody is told that a call still runs."""


class TookTooLong(BaseException):
    """Raised in a call that has taken more than its limit. No Exception, so that what hangs does not catch it."""


class Running:
    """A call that runs, or will. seconds: its limit, 0 for none. begun, ends: by `time.perf_counter`, when it began and
    when it is stopped. told: it was stopped. said: `say` was called."""

    __slots__ = ("begun", "ends", "said", "seconds", "thread", "told")

    def __init__(self, seconds: float) -> None:
        self.seconds, self.begun, self.ends, self.thread = seconds, 0.0, inf, 0
        self.told = self.said = False

    def say(self) -> None:
        """Says that the call takes more than a second. Another thread calls this, once."""


class Watchdog:
    """Watches the calls that run in all threads."""

    def __init__(self) -> None:
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Begin anew: a child of a process that forks has neither its thread nor its calls."""
        self._running: set[Running] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._looks: threads.Alive | None = None

    def begin(self, running: Running) -> None:
        """Notes that a call begins in this thread, and wakes the thread that watches."""
        running.thread = threading.get_ident()
        running.begun = begun = time.perf_counter()
        if running.seconds:
            running.ends = begun + running.seconds
        self._running.add(running)
        if not self._wake.is_set():  # it is, as long as the thread has not looked since the last call
            self._start()
            self._wake.set()

    def again(self, running: Running, now: float) -> None:
        """Notes that a call has ended and the next begins in its place. Raises TookTooLong if it was told to end."""
        with self._lock:  # from here on nobody ends the call that was
            if running.told:
                raise TookTooLong
            running.begun = now
            if running.seconds:
                running.ends = now + running.seconds

    def end(self, running: Running) -> bool:
        """Notes that a call has ended. Returns whether the call was told to end."""
        with self._lock:  # `told` and the exception go together
            self._running.discard(running)
            if running.told:
                _deliver(running.thread)  # not delivered yet, it would hit who comes next
        return running.told

    def _start(self) -> None:
        with self._lock:
            if self._looks is None or not self._looks():
                self._looks = threads.start(self._look)  # without a thread, nobody is told

    def _look(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            time.sleep(INTERVAL)  # most calls have ended by then: to look at each would take longer than the call
            while self._running:
                time.sleep(self._look_once())

    def _look_once(self) -> float:
        """Looks at the calls that run. Returns the seconds until the next look. No call stays in a variable of the
        thread that watches: a call holds what its plugin was handed, such as a Program."""
        now = time.perf_counter()
        ends = [now + INTERVAL * 4]
        for running in list(self._running):
            if running.begun + SLOW <= now and not running.said:
                running.said = True
                running.say()
            if running.ends > now:
                ends.append(running.ends)
                continue
            with self._lock:
                if running in self._running:
                    running.told, running.ends = True, now + 1.0  # again, where it was caught
                    _raise_in(running.thread, TookTooLong)
        return max(INTERVAL, min(ends) - now)


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

"""Threads that nobody has to wait for. In: a function. Out: a function that says whether the thread still exists.

`threading.Thread.start` waits until the thread says that it runs. A thread that has no memory to say so ends, and who
started it waits forever. Nobody waits for these threads; their work is what can be left undone, or done by who needs
it.
"""

from __future__ import annotations

import _thread
import threading
import time
import weakref
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
Alive = Callable[[], bool]
"""Says whether a thread still exists."""

LOOK_SECONDS = 0.25
"""Between two looks at whether the thread exists that does what somebody waits for."""


class _Held:
    """The arguments of a thread, which nothing else holds."""


def start(work: Callable[[], object]) -> Alive | None:
    """Runs `work` in a thread that does not keep the process alive. Returns a function that says whether the thread
    still exists: where memory is short, a thread may end before `work` begins. None where no thread can be started."""

    def begin(held: _Held) -> None:
        try:
            work()
        finally:
            del held  # Python keeps the traceback of an error that had no memory, and so its frames

    try:
        held = _Held()
        there = weakref.ref(held)  # not of `begin`: Python 3.11 keeps a function whose frame had no memory

        def alive() -> bool:
            return there() is not None

        _thread.start_new_thread(begin, (held,))  # last: once a thread runs, nothing here may fail for want of memory
    except (RuntimeError, MemoryError):
        return None
    return alive


def within(seconds: float, work: Callable[[], T]) -> T:
    """Returns what `work` returns, which a thread of its own runs; raises what `work` raises. TimeoutError after so
    many seconds: the thread is left to itself. Where no thread can be started, or the thread had no memory to begin or
    to say how `work` ended, the calling thread runs `work`."""
    ended, found = threading.Event(), list[T]()
    raised = list[BaseException]()

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            raised.append(error)
        ended.set()

    alive, end = start(run), time.monotonic() + seconds
    if alive is None:
        return work()
    while not ended.wait(max(0.0, min(LOOK_SECONDS, end - time.monotonic()))):
        if not alive() and not ended.is_set():
            return work()
        if time.monotonic() >= end:
            raise TimeoutError(f"it took more than {seconds:g} s")
    if raised:
        raise raised[0]
    return found[0]


def later(seconds: float, work: Callable[[], object]) -> threading.Event:
    """Runs `work` in a thread in so many seconds, unless the event that this returns is set before."""
    cancelled = threading.Event()

    def wait() -> None:
        if not cancelled.wait(seconds):
            work()

    start(wait)
    return cancelled

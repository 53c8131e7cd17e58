"""Threads that nobody has to wait for. In: a function. Out: what says whether its thread is still there.

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
"""Says whether a thread is still there."""

LOOK_SECONDS = 0.25
"""Between two looks whether the thread is there that does what is waited for."""


class _Held:
    """What a thread's arguments hold, and nothing else does."""


def start(work: Callable[[], object]) -> Alive | None:
    """Runs `work` in a thread that does not keep the process alive. Returns what says whether the thread is still
    there: where memory is short, it may end before it begins. None where no thread can be started."""
    held = _Held()

    def begin(held: _Held) -> None:
        try:
            work()
        finally:
            del held  # the traceback of an error for which there is no memory is kept, and its frames with it

    try:
        _thread.start_new_thread(begin, (held,))
    except (RuntimeError, MemoryError):
        return None
    there = weakref.ref(held)  # not of the function: Python 3.11 keeps one whose frame had no memory
    del held
    return lambda: there() is not None


def within(seconds: float, work: Callable[[], T]) -> T:
    """Returns what `work` returns, which a thread of its own runs; raises what `work` raises. TimeoutError after so
    many seconds: the thread is left to itself. Where no thread can be started, or the thread had no memory to begin or
    to say how it ended, this one runs it."""
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

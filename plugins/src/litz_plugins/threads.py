"""Threads that nobody has to wait for. In: a function. Out: whether a thread was started for it.

`threading.Thread.start` waits until the thread says that it runs. A thread that has no memory to say so ends, and who
started it waits forever. Nobody waits for these threads; their work is what can be left undone, or done by who needs
it.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def start(work: Callable[[], object]) -> bool:
    """Runs `work` in a thread that does not keep the process alive. Returns False where no thread can be started; with
    True it may still never begin, where memory is short."""
    try:
        _thread.start_new_thread(work, ())
    except (RuntimeError, MemoryError):
        return False
    return True


def within(seconds: float, work: Callable[[], T]) -> T:
    """Returns what `work` returns, which a thread of its own runs; raises what `work` raises. TimeoutError after so
    many seconds: the thread is left to itself. Where no thread can be started this one runs it."""
    ended, found = threading.Event(), list[T]()
    raised = list[BaseException]()

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            raised.append(error)
        ended.set()

    if not start(run):
        return work()
    if not ended.wait(seconds):
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

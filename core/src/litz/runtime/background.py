"""Work that goes on beside the calls of a compiled graph: a better entry is looked for, and put in between two calls.

In: an entry, and a job that finds another. Out: an entry that starts the job, in a thread, once its first call is done,
and calls what the job found from the next call on. A call that is running goes on with what it began with.
"""

from __future__ import annotations

import atexit
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from .compiled_graph import Entry

GRACE = 10.0
"""Seconds that a process which ends waits for its jobs to notice."""

Job = Callable[[Callable[[], bool]], Entry | None]
"""A function that finds an entry, or None for the present one; its argument is a function that says when to stop."""

_threads: set[threading.Thread] = set()
_ending = threading.Event()


def wait(seconds: float | None = None) -> bool:
    """Waits until no job runs. Returns False if a job still runs after `seconds`."""
    until = None if seconds is None else time.monotonic() + seconds
    for thread in list(_threads):
        thread.join(None if until is None else max(0.0, until - time.monotonic()))
    return not any(thread.is_alive() for thread in list(_threads))


@atexit.register
def _end() -> None:
    _ending.set()
    wait(GRACE)


class Replaceable:
    """A graph's entry that another entry can replace between two calls."""

    def __init__(self, entry: Entry, job: Job, name: str = "") -> None:
        self.entry, self.name = entry, name
        self._job: Job | None = job
        self._lock = threading.Lock()

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        """Runs the present entry on the inputs; the first call starts the search for a better one."""
        outputs = self.entry(args)
        if self._job is not None:
            self._start()
        return outputs

    def _start(self) -> None:
        with self._lock:
            job, self._job = self._job, None
        if job is None or _ending.is_set():
            return  # another thread has started it
        threads = torch.get_num_threads()
        thread = threading.Thread(target=self._run, args=(job, threads), name=f"litz-{self.name}", daemon=True)
        _threads.add(thread)
        try:
            thread.start()
        except RuntimeError:  # there is room for no thread: the entry stays
            _threads.discard(thread)

    def _run(self, job: Job, threads: int) -> None:
        # A thread has settings of its own: gradients are on, and the number of threads is OpenMP's.
        torch.set_num_threads(threads)
        try:
            with torch.no_grad():
                found = job(_ending.is_set)
            if found is not None:
                self.entry = found
        except Exception as error:
            warnings.warn(
                f"litz goes on with {self.name} as it was first compiled: looking for something faster in the "
                f"background failed: {type(error).__name__}: {error}",
                stacklevel=2,
            )
        finally:
            _threads.discard(threading.current_thread())

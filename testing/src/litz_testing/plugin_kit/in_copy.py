"""Calls that may end the process, tried in a copy of it. In: a function. Out: how the copy ended."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable

import torch


def how_a_copy_ends(work: Callable[[], object]) -> str:
    """Runs `work` in a copy of this process, on the CPU. Returns "" if the copy lived to the end of `work`, whether
    or not `work` raised; the name of the signal that ended the copy otherwise, as "SIGFPE"."""
    copy = os.fork()
    if not copy:
        try:
            faulthandler.disable()  # the end is expected, and told by who asked
            torch.set_num_threads(1)  # OpenMP's threads are not in the copy, and a parallel loop would wait for them
            work()
        finally:
            os._exit(0)  # what this process wants done at its exit is its own
    _, status = os.waitpid(copy, 0)
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else ""


__all__ = ["how_a_copy_ends"]

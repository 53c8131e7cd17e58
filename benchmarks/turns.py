"""Many benchmark processes on one machine: they compile side by side and measure one at a time.

A folder of lock files is all that they share (`fcntl.flock`: the kernel lets go of what a dead process held). Measuring
waits until nobody compiles, and nobody begins to compile while somebody measures. Who has waited for too long measures
beside those who compile: their few steps hardly move a median.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from math import inf
from pathlib import Path


class Turns:
    """folder: one for all processes. slots: how many may compile at once. patience: seconds, from now, after which
    measuring waits for others that measure only."""

    def __init__(self, folder: Path, slots: int, patience: float = inf) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.machine, self.device = folder / "machine", folder / "device"
        self.deadline = time.monotonic() + patience
        self.slots = [folder / f"slot{number}" for number in range(slots)]

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """One of the slots, beside others that compile."""
        with contextlib.ExitStack() as held:
            while not any(_take(held, slot, fcntl.LOCK_EX | fcntl.LOCK_NB) for slot in self.slots):
                time.sleep(0.2)
            _take(held, self.machine, fcntl.LOCK_SH)
            yield

    @contextlib.contextmanager
    def measuring(self) -> Iterator[bool]:
        """The device, and the whole machine unless that takes too long: is it this process's alone?"""
        with contextlib.ExitStack() as held:
            _take(held, self.device, fcntl.LOCK_EX)
            while not (alone := _take(held, self.machine, fcntl.LOCK_EX | fcntl.LOCK_NB)):
                if time.monotonic() >= self.deadline:
                    break
                time.sleep(0.05)
            yield alone


def _take(held: contextlib.ExitStack, path: Path, how: int) -> bool:
    file = path.open("a")
    try:
        fcntl.flock(file, how)
    except BlockingIOError:
        file.close()
        return False
    held.enter_context(file)  # closing lets go
    return True

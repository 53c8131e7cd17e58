"""Many benchmark processes on one machine: they compile side by side and measure one at a time.

A folder of lock files is all that they share (`fcntl.flock`: the kernel lets go of what a dead process held). Measuring
waits until nobody compiles, and nobody begins to compile while somebody measures.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path


class Turns:
    """folder: one for all processes. slots: how many may compile at once."""

    def __init__(self, folder: Path, slots: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.machine = folder / "machine"
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
    def measuring(self) -> Iterator[None]:
        """The whole machine."""
        with contextlib.ExitStack() as held:
            _take(held, self.machine, fcntl.LOCK_EX)
            yield


def _take(held: contextlib.ExitStack, path: Path, how: int) -> bool:
    file = path.open("a")
    try:
        fcntl.flock(file, how)
    except BlockingIOError:
        file.close()
        return False
    held.enter_context(file)  # closing lets go
    return True

"""What tests take of the processor: their own process and every process below it, copies of a warm one too.

`pytest --processor-times FILE` appends a line for each test: seconds, a tab, the test's id. Time that passes while the
processor serves somebody else does not count, so that figures of a busy machine can be compared."""

from __future__ import annotations

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def seconds_so_far(pid: int | None = None) -> float:
    """Processor seconds, of user and system, of a process (this one by default), of those that live below it, and of
    those that ended and were waited for. 0 where there is no /proc."""
    process = Path("/proc") / str(pid or os.getpid())
    try:
        # The name of a program is in parentheses, and may have any sign in it.
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        below = [int(child) for task in (process / "task").iterdir() for child in _children(task)]
    except OSError:  # it ended meanwhile, or the system has no /proc
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS + sum(map(seconds_so_far, below))


def _children(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except OSError:  # a thread that ended meanwhile
        return []


def note(path: str, nodeid: str, seconds: float) -> None:
    """Append a test's line: one write, so that the processes of a run share the file."""
    with open(path, "a") as out:
        out.write(f"{seconds:.2f}\t{nodeid}\n")

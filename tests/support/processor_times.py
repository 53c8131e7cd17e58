"""What tests take of the processor: their own process and every process below it, copies of a warm one too.

`pytest --processor-times FILE` appends a line for each test: seconds, a tab, the test's id. Time that passes while the
processor serves somebody else does not count, so that figures of a busy machine can be compared."""

from __future__ import annotations

import os

TICKS = os.sysconf("SC_CLK_TCK")


def seconds_so_far(pid: int | None = None) -> float:
    """Processor seconds, of user and system, of a process (this one by default), of those that live below it, and of
    those that ended and were waited for. 0 where there is no /proc."""
    process = f"/proc/{pid or os.getpid()}"
    try:
        # The name of a program is in parentheses, and may have any sign in it.
        fields = _read(f"{process}/stat").rpartition(b")")[2].split()
        below = [int(child) for task in os.listdir(f"{process}/task") for child in _children(f"{process}/task/{task}")]
    except OSError:  # it ended meanwhile, or the system has no /proc
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS + sum(map(seconds_so_far, below))


def _children(task: str) -> list[bytes]:
    try:
        return _read(f"{task}/children").split()
    except OSError:  # a thread that ended meanwhile
        return []


def _read(path: str) -> bytes:
    """What a file has, without the layers of `open`: each test reads some dozens, which took a fiftieth of a run."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 1 << 16)
    finally:
        os.close(file)


def note(path: str, nodeid: str, seconds: float) -> None:
    """Append a test's line: one write, so that the processes of a run share the file."""
    with open(path, "a") as out:
        out.write(f"{seconds:.2f}\t{nodeid}\n")

"""The folder of a run's temporary files and caches. In memory, where the machine has room: a kernel's build makes and
removes ten files and folders, and each removal takes milliseconds where a disk is told of what is free (`discard`)."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

MEMORY, AVAILABLE = Path("/dev/shm"), Path("/proc/meminfo")
ROOM = 4 << 30
"""Bytes that have to be free: a run of all tests leaves less than one GiB."""


def begin() -> Path | None:
    """Has this process and those that it starts put their temporary files into a new folder, which is returned; None
    where the environment names a folder (TMPDIR), or memory has no room."""
    if "TMPDIR" in os.environ or not has_room(MEMORY, AVAILABLE):
        return None
    folder = Path(tempfile.mkdtemp(prefix="litz-tests-", dir=MEMORY))
    os.environ["TMPDIR"], tempfile.tempdir = str(folder), None
    return folder


def end(folder: Path | None) -> None:
    """Removes what `begin` made."""
    if folder is not None:
        os.environ.pop("TMPDIR", None)
        tempfile.tempdir = None
        shutil.rmtree(folder, ignore_errors=True)


def has_room(place: Path, available: Path) -> bool:
    """Whether a place in memory holds a run's files, and code may run from it. available: /proc/meminfo."""
    if sys.platform != "linux":
        return False
    try:
        found, text = os.statvfs(place), available.read_text()
    except OSError:
        return False
    free = re.search(r"^MemAvailable: *(\d+) kB", text, re.MULTILINE)
    room = min(found.f_bavail * found.f_frsize, int(free[1]) << 10 if free else 0)
    return room >= ROOM and not found.f_flag & os.ST_NOEXEC and os.access(place, os.W_OK)

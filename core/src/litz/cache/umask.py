"""The mask of the rights that new files do not get, which belongs to the whole process.

A mask that takes rights from the owner (0o177, 0o777) makes folders that nobody can enter and files that the compiler
cannot read. While litz writes, the owner keeps his rights; those of all others are as the user wants them.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OWNER = 0o700
STATUS = Path("/proc/self/status")

_lock = threading.Lock()
_within = 0
_before = 0


@contextmanager
def owner_may() -> Iterator[None]:
    """Within, the owner has all rights to what this process makes. May be nested, and entered by several threads."""
    global _within, _before
    with _lock:
        if _within or _current() & OWNER:
            if not _within:
                _before = os.umask(_current() & ~OWNER)
            _within += 1
            changed = True
        else:
            changed = False
    try:
        yield
    finally:
        if changed:
            with _lock:
                _within -= 1
                if not _within:
                    os.umask(_before)


def _current() -> int:
    """The mask. Only Linux has it to read: elsewhere another one stands for a moment."""
    try:
        found = re.search(r"^Umask:\s*([0-7]+)$", STATUS.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
        if found is not None:
            return int(found[1], 8)
    except OSError:
        pass
    mask = os.umask(0o077)
    os.umask(mask)
    return mask

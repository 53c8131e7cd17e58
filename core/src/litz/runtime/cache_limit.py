"""How much a disk cache may hold. In: what was written to it. Out: a cache in which what was not used for the longest
time makes room.

How much there is stands in a file of lines beside the entries, one for each entry that some process has written: a
line is appended, which no other process disturbs, and their sum is looked at. Only where it exceeds the limit are the
entries themselves counted, by one process at a time, and removed, the least recently used first, until a tenth of the
limit is free. An entry was used when a process last looked at its sums. What took minutes to measure goes last.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from . import manifest

SIZES = ".sizes"
"""The file whose lines each have a number of bytes."""
MOST_LINES = 4096
"""More are put together into one."""
FREE = 0.1
"""The share of the limit that is free after entries were deleted."""
MEASURED = frozenset({"autotune", "autotune-decisions", "autotune-partial", "compiler"})
"""Kinds of entries that take little room and long to make."""


@dataclass(frozen=True)
class Limit:
    """The limit of the cache at `root`, in bytes; 0 for none."""

    root: Path
    bytes: int = 0

    def written(self, folder: Path) -> None:
        """Makes room where a new entry, `folder`, exceeds the limit. What cannot be written or locked stays."""
        if not self.bytes:
            return
        with contextlib.suppress(OSError, Timeout, NotImplementedError, ValueError):
            if self._add(bytes_of(folder)) > self.bytes:
                make_room(self.root, self.bytes, keep=folder)

    def _add(self, count: int) -> int:
        """Adds `count` to the bytes that the cache holds and returns their sum, which is approximate."""
        path = self.root / SIZES
        if not path.exists():
            return _rewrite(path, sum(entry.bytes for entry in entries(self.root)))
        with path.open("a") as file:
            file.write(f"{count}\n")
        lines = path.read_text().splitlines()
        total = sum(map(int, filter(None, lines)))
        return total if len(lines) <= MOST_LINES else _rewrite(path, total)


@dataclass(frozen=True)
class Entry:
    """An entry in a cache: its folder, its bytes, and when it was last used."""

    folder: Path
    bytes: int
    used: float

    @property
    def rank(self) -> tuple[bool, float]:
        """Returns the key that sorts entries to delete: the least recently used first, and after all others those that
        take long to make."""
        return self.folder.parent.name in MEASURED, self.used


def make_room(root: Path, limit: int, keep: Path | None = None) -> int:
    """Removes the least recently used entries until they leave a tenth of the limit free, and returns how many those
    were. keep: stays in any case. Errors: OSError; Timeout where another process is at it."""
    with FileLock(root / ".room.lock", timeout=0):
        found = sorted(entries(root), key=lambda entry: entry.rank)
        total, removed = sum(entry.bytes for entry in found), 0
        for entry in found:
            if total <= limit * (1 - FREE):
                break
            if entry.folder != keep and _remove(entry.folder):
                total, removed = total - entry.bytes, removed + 1
        _rewrite(root / SIZES, total)
    return removed


def entries(root: Path) -> Iterator[Entry]:
    """Returns all entries of a cache, unsorted."""
    for kind in root.iterdir():
        if kind.is_dir() and not kind.is_symlink():
            for path in kind.glob(f"*/{manifest.FILE}"):
                with contextlib.suppress(OSError):  # another process has removed it
                    yield Entry(path.parent, bytes_of(path.parent), path.stat().st_mtime)


def use(folder: Path) -> None:
    """Notes that an entry is used now; does nothing where the entry's folder cannot be written."""
    with contextlib.suppress(OSError):
        os.utime(folder / manifest.FILE)


def bytes_of(folder: Path) -> int:
    """Returns the bytes of all files in a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _remove(folder: Path) -> bool:
    """First out of the way, so that nobody finds a part of it."""
    try:
        aside = tempfile.mkdtemp(prefix=f".{folder.name[:8]}-", dir=folder.parent)
        os.rename(folder, Path(aside) / folder.name)
    except OSError:
        return False
    shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(OSError):
        (folder.parent / f".{folder.name}.lock").unlink(missing_ok=True)
    return True


def _rewrite(path: Path, total: int) -> int:
    scratch, name = tempfile.mkstemp(dir=path.parent, prefix=".sizes-")
    with os.fdopen(scratch, "w") as file:
        file.write(f"{total}\n")
    os.replace(name, path)
    return total

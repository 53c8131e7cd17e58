"""How much a disk cache may hold. In: what was written to it. Out: a cache in which what was not used for the longest
time makes room.

How much there is stands in a file of lines beside the entries, one for each entry that some process has written: a
line is appended, which no other process disturbs, and their sum is looked at. Only where it exceeds the limit are the
entries themselves counted, by one process at a time, and removed, the least recently used first, until a tenth of the
limit is free. An entry was used when a process last looked at its sums. What took minutes to measure goes last.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import shutil
import stat
import time
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
LEFT_SECONDS = 600.0
"""After which a folder that an entry was being copied to is taken for left: a copy takes milliseconds."""
_SCRATCH = re.compile(r"\.[0-9a-zA-Z]{1,8}-[0-9a-z_]{8}")
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
        with contextlib.suppress(OSError, Timeout, NotImplementedError):
            _sweep_once(folder.parent)
            if self._add(bytes_of(folder)) > self.bytes:
                make_room(self.root, self.bytes, keep=folder)

    def _add(self, count: int) -> int:
        """Adds `count` to the bytes that the cache holds and returns their sum, which is approximate. A file that is
        not as it should be is written anew, by a count of what is there."""
        path = self.root / SIZES
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                raise ValueError("no plain file")
            with path.open("a", encoding="ascii") as file:
                file.write(f"{count}\n")
            lines = path.read_text(encoding="ascii").splitlines()
            total = sum(map(int, filter(None, lines)))
            return total if len(lines) <= MOST_LINES else _rewrite(path, total)
        except (OSError, ValueError):
            total = sum(entry.bytes for entry in entries(self.root))
            with contextlib.suppress(OSError):
                _rewrite(path, total)
            return total


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
    with FileLock(root / ".room.lock", timeout=0, mode=0o644):
        for kind in _kinds(root):
            _sweep(kind)
        found = sorted(entries(root), key=lambda entry: entry.rank)
        total, removed = sum(entry.bytes for entry in found), 0
        for entry in found:
            if total <= limit * (1 - FREE):
                break
            if entry.folder != keep and _remove(entry.folder):
                total, removed = total - entry.bytes, removed + 1
        with contextlib.suppress(OSError):
            _rewrite(root / SIZES, total)
    return removed


def entries(root: Path) -> Iterator[Entry]:
    """Returns all entries of a cache, unsorted."""
    for kind in _kinds(root):
        for path in kind.glob(f"*/{manifest.FILE}"):
            with contextlib.suppress(OSError):  # another process has removed it
                yield Entry(path.parent, bytes_of(path.parent), path.stat().st_mtime)


def leftovers_in(kind: Path, seconds: float = 0.0) -> list[Path]:
    """Returns what processes that ended while they wrote or removed an entry have left beside the entries of a kind,
    where nothing was written there for so long."""
    found = []
    with contextlib.suppress(OSError):
        for path in kind.iterdir():
            if _SCRATCH.fullmatch(path.name) and path.lstat().st_mtime <= time.time() - seconds:
                found.append(path)
    return found


def _kinds(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir() and not path.is_symlink()]


def _sweep(kind: Path) -> None:
    for path in leftovers_in(kind, LEFT_SECONDS):
        shutil.rmtree(path, ignore_errors=True)


_sweep_once = functools.cache(_sweep)  # a sweep reads the names of all entries, and a process compiles often


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
        aside = folder.parent / f".{folder.name[:8]}-{secrets.token_hex(4)}"
        os.rename(folder, aside)
    except OSError:
        return False
    shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(OSError):
        (folder.parent / f".{folder.name}.lock").unlink(missing_ok=True)
    return True


def _rewrite(path: Path, total: int) -> int:
    scratch = path.with_name(f"{path.name}-{secrets.token_hex(4)}")
    scratch.touch(0o644)  # for nobody else to write, whatever the process's mask
    scratch.write_text(f"{total}\n", encoding="ascii")
    os.replace(scratch, path)
    return total

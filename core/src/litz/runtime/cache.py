"""The on-disk cache: what was built, found by the content that it was built from.

An entry is a folder `ROOT/KIND/KEY/` of plain files (source text, shared objects, cubins, JSON) with a `manifest.json`
of their SHA-256 sums. Nothing in it is unpickled, and nothing is used that the manifest does not vouch for
(`litz.runtime.manifest`). Writers build in a folder of their own and rename it into place, so nobody ever sees half an
entry; a lock spares two processes from building the same, and where it cannot be had both build. Readers check the sums
once a process, and an entry that does not match is thrown away and built anew.

Where it holds more than it may, what was not used for longest makes room. Caches that are only read may lie under it: a
team's, or a container image's.

A cache that cannot be used (read-only, full, a file where a folder should be) costs one warning: what is missing is
built in a temporary folder.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import hashlib
import os
import re
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from litz.errors import CacheError

from . import artifacts, manifest
from .cache_limit import SIZES, Limit, use
from .peers import Peers

PATIENCE = 10.0
"""Seconds to wait for another process that builds an entry, before it is built here too."""
_KEY = re.compile(r"[0-9a-f]{40}")
_SCRATCH = re.compile(r"\.[0-9a-zA-Z]{1,8}-[0-9a-z_]{8}")
_FULL = (errno.ENOSPC, errno.EDQUOT)


def digest(*parts: str | bytes) -> str:
    """Returns a key of 40 hex digits: SHA-256 over the parts and their lengths."""
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        sha.update(f"{len(data)}:".encode())
        sha.update(data)
    return sha.hexdigest()[:40]


class Cache:
    """Entries under `root`. With `enabled=False` every entry is built in a temporary folder and never found again.

    hits, misses: how many entries `build` has found, and made or taken from a peer.
    peers: the other ranks of a job, who may have built what is not there. limit: bytes that it may hold, 0 for no limit
    (`litz.runtime.cache_limit`). shared: caches that are looked into after it, and never written to.
    CacheError if no temporary folder can be made.
    """

    def __init__(
        self,
        root: Path,
        enabled: bool = True,
        peers: Peers | None = None,
        limit: int = 0,
        shared: Sequence[Path] = (),
    ) -> None:
        self._peers = peers or Peers(lambda: None)
        self._scratch = None if enabled else _temporary()
        self.root = Path(root) if self._scratch is None else Path(self._scratch.name)
        self._limit = Limit(self.root, limit if enabled else 0)
        self._shared = tuple(Path(path) for path in shared) if enabled else ()
        self._checked: set[Path] = set()
        self._spare: list[Cache] = []  # this and the lock are shared with `counted` copies
        self._giving_up = threading.Lock()
        self.hits = self.misses = 0

    def counted(self) -> Cache:
        """Returns the same cache with counts of its own, for a caller who wants only its own hits and misses."""
        own = copy.copy(self)
        own.hits = own.misses = 0
        return own

    def find(self, kind: str, key: str, needs: Sequence[str] = ()) -> Path | None:
        """Returns the folder of an undamaged entry that has the needed files; None if there is none."""
        places = (self.root, *self._shared)
        return next(filter(None, (self._find(root / kind / key, needs) for root in places)), None)

    def _find(self, folder: Path, needs: Sequence[str]) -> Path | None:
        if folder in self._checked and all((folder / name).is_file() for name in (manifest.FILE, *needs)):
            return folder
        self._checked.discard(folder)
        if not manifest.holds(folder, needs):
            return None
        self._checked.add(folder)
        use(folder)
        return folder

    def build(
        self, kind: str, key: str, make: Callable[[Path], None], needs: Sequence[str] = (), patience: float = PATIENCE
    ) -> Path:
        """Returns the folder of an entry; if it is not there, `make(folder)` fills a fresh one first.

        needs: files that the caller will read. patience: seconds to wait for another process that builds the entry.
        What `make` raises is passed on, and nothing is kept. Where the cache cannot be used, the folder is a temporary
        one, and a warning says why, once. CacheError if that cannot be had either.
        """
        found = self.find(kind, key, needs)
        if found is not None:
            self.hits += 1
            artifacts.record(kind, key, found)
            return found
        if self._spare:
            return self._in_spare(kind, key, make, needs)
        try:
            folder = self._build(kind, key, make, needs, patience)
        except Exception as cause:
            if self._scratch is not None or not self._is_about(cause):
                raise
            self.aside(cause)
            return self._in_spare(kind, key, make, needs)
        self._checked.add(folder)
        if self._scratch is None:
            artifacts.record(kind, key, folder)
        return folder

    def aside(self, why: BaseException) -> Cache:
        """Returns a cache in a temporary folder, for what this one cannot hold. The first call warns of `why`."""
        with self._giving_up:
            if self._spare:
                return self._spare[0]
            self._spare.append(Cache(self.root, enabled=False))
        problem = (why.strerror if isinstance(why, OSError) else None) or str(why) or type(why).__name__
        warnings.warn(
            f"litz goes on without its disk cache, and keeps nothing that it builds: {self.root} cannot be used: "
            f"{problem}. Make the folder usable, or name another: LITZ_CACHE_DIR=/path; LITZ_CACHE=0 uses none",
            stacklevel=1,  # one place for all compiles of a process: Python shows it once
        )
        return self._spare[0]

    def _in_spare(self, kind: str, key: str, make: Callable[[Path], None], needs: Sequence[str]) -> Path:
        spare = self._spare[0]
        hits, misses = spare.hits, spare.misses
        folder = spare.build(kind, key, make, needs)
        self.hits, self.misses = self.hits + spare.hits - hits, self.misses + spare.misses - misses
        return folder

    def _build(self, kind: str, key: str, make: Callable[[Path], None], needs: Sequence[str], patience: float) -> Path:
        parent = self.root / kind
        parent.mkdir(parents=True, exist_ok=True)
        with _lock(parent / f".{key}.lock", patience):
            found = self.find(kind, key, needs)  # another process may have been faster
            if found is not None:
                self.hits += 1
                return found
            folder = parent / key
            scratch = Path(tempfile.mkdtemp(prefix=f".{key[:8]}-", dir=parent))
            try:
                self._fill(kind, key, make, needs, scratch)
                manifest.write(scratch)
                _put(scratch, folder, needs)
                self._limit.written(folder)
                self.misses += 1
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        return folder

    def _fill(self, kind: str, key: str, make: Callable[[Path], None], needs: Sequence[str], folder: Path) -> None:
        """Fill a folder with what another rank has built, or with `make` for all ranks."""
        files = self._peers.fetch(kind, key)
        if files is not None and set(needs) <= files.keys():
            for name, data in files.items():
                (folder / name).write_bytes(data)
            return
        built = None
        try:
            make(folder)
            built = folder
        finally:
            self._peers.offer(kind, key, built)

    def _is_about(self, cause: Exception) -> bool:
        """Whether an error is the cache folder's: a full disk, or a file in it or on the way to it."""
        if not isinstance(cause, OSError):  # a compiler says in its own words that the disk is full
            return any(os.strerror(number) in str(cause) for number in _FULL)
        names = [str(name) for name in (cause.filename, cause.filename2) if name]
        root = str(self.root)
        return cause.errno in _FULL or any(name.startswith(root) or root.startswith(name) for name in names)

    def info(self) -> dict[str, Any]:
        """Returns path, entries, bytes, and by_kind: entries and bytes of each kind. Raises CacheError."""
        by_kind: dict[str, dict[str, int]] = {}
        for folder in self._entries():
            row = by_kind.setdefault(folder.parent.name, {"entries": 0, "bytes": 0})
            row["entries"] += 1
            row["bytes"] += sum(_size(path) for path in folder.rglob("*"))
        return {
            "path": str(self.root),
            "entries": sum(row["entries"] for row in by_kind.values()),
            "bytes": sum(row["bytes"] for row in by_kind.values()),
            "by_kind": by_kind,
        }

    def clear(self) -> int:
        """Removes every entry, and says how many there were. Only what is an entry of this cache is touched, or was
        left by a process that ended while it wrote one. CacheError if the folder cannot be read."""
        entries = self._entries()
        for folder in entries:
            _remove(folder)
            (folder.parent / f".{folder.name}.lock").unlink(missing_ok=True)
        for left in (path for kind in self._kinds() for path in _listed(kind) if _SCRATCH.fullmatch(path.name)):
            _remove(left)
        (self.root / SIZES).unlink(missing_ok=True)
        self._checked.clear()
        return len(entries)

    def _kinds(self) -> list[Path]:
        return [path for path in _listed(self.root) if path.is_dir() and not path.is_symlink()]

    def _entries(self) -> list[Path]:
        """Folders with a manifest, and what else has the name of an entry: damaged, it would be replaced."""
        found = [path for kind in self._kinds() for path in _listed(kind)]
        return [path for path in found if _KEY.fullmatch(path.name) or (path / manifest.FILE).is_file()]


def _temporary() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="litz-", ignore_cleanup_errors=True)
    except OSError as cause:
        problem = f"no temporary folder can be made: {cause.strerror or cause}"
        raise CacheError(problem, todo="set TMPDIR to a folder that can be written") from cause


@contextlib.contextmanager
def _lock(path: Path, patience: float) -> Iterator[None]:
    """The lock of an entry; without it where another process does not let go in time, or the file system has none.

    It only spares work: entries are renamed into place whole.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=patience)
    except (Timeout, OSError, NotImplementedError):
        yield
        return
    try:
        yield
    finally:
        lock.release()


def _put(scratch: Path, folder: Path, needs: Sequence[str]) -> None:
    """Rename an entry into place. What is there is damaged, or another process has been faster: then that stays."""
    for _ in range(2):
        try:
            os.rename(scratch, folder)
            return
        except OSError as cause:
            if manifest.holds(folder, needs):
                return
            if cause.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            _remove(folder)
    os.rename(scratch, folder)


def _remove(path: Path) -> None:
    """A folder, file or link; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _listed(folder: Path) -> list[Path]:
    """What is in a folder, nothing if it is not there. CacheError if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as cause:
        raise CacheError(f"the cache cannot be read: {cause.strerror or cause}", path=str(folder)) from cause


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size if path.is_file() else 0
    except OSError:  # another process has removed it
        return 0

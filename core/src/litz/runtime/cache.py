"""The on-disk cache: what was built, found by the content that it was built from.

An entry is a folder `ROOT/KIND/KEY/` of plain files (source text, shared objects, cubins, JSON) with a `manifest.json`
of their SHA-256 sums. Nothing in it is unpickled. Writers build in a folder of their own and rename it into place under
a lock, so two processes never see half an entry; readers check the sums once a process, and an entry that does not
match is thrown away and built anew.
"""

from __future__ import annotations

import copy
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from litz.errors import CacheError

from .peers import Peers

MANIFEST = "manifest.json"


def digest(*parts: str | bytes) -> str:
    """A key: SHA-256 over the parts and their lengths, 40 hex digits."""
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        sha.update(f"{len(data)}:".encode())
        sha.update(data)
    return sha.hexdigest()[:40]


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Cache:
    """Entries under `root`. With `enabled=False` every entry is built in a temporary folder and never found again.

    hits, misses: how many entries `build` has found, and made or taken from a peer.
    peers: the other ranks of a job, who may have built what is not there.
    """

    def __init__(self, root: Path, enabled: bool = True, peers: Peers | None = None) -> None:
        self._peers = peers
        self._scratch = None if enabled else tempfile.TemporaryDirectory(prefix="litz-")
        self.root = Path(root) if self._scratch is None else Path(self._scratch.name)
        self._checked: set[Path] = set()
        self.hits = self.misses = 0

    def counted(self) -> Cache:
        """The same cache, counted anew: for one who wants to know what was found for him alone."""
        own = copy.copy(self)
        own.hits = own.misses = 0
        return own

    def find(self, kind: str, key: str) -> Path | None:
        """The folder of an entry that is there and undamaged, else None."""
        folder = self.root / kind / key
        if folder in self._checked:
            return folder
        if not self._intact(folder):
            return None
        self._checked.add(folder)
        return folder

    def build(self, kind: str, key: str, make: Callable[[Path], None]) -> Path:
        """The folder of an entry; if it is not there, `make(folder)` fills a fresh one first.

        What `make` raises is passed on, and nothing is kept. Two processes that ask at once build once. CacheError if
        the folder cannot be written.
        """
        found = self.find(kind, key)
        if found is not None:
            self.hits += 1
            return found
        try:
            folder = self._build(kind, key, make)
        except OSError as cause:
            if self._is_about(cause):
                problem = f"the cache cannot be written: {cause.strerror or cause}"
                todo = "make the folder writable, or name another: LITZ_CACHE_DIR=/path; LITZ_CACHE=0 uses none"
                raise CacheError(problem, path=str(self.root), todo=todo) from cause
            raise
        self._checked.add(folder)
        return folder

    def _build(self, kind: str, key: str, make: Callable[[Path], None]) -> Path:
        parent = self.root / kind
        parent.mkdir(parents=True, exist_ok=True)
        with FileLock(parent / f".{key}.lock"):
            found = self.find(kind, key)  # another process may have been faster
            if found is not None:
                self.hits += 1
                return found
            self.misses += 1
            folder = parent / key
            shutil.rmtree(folder, ignore_errors=True)  # damaged, or it would have been found
            scratch = Path(tempfile.mkdtemp(prefix=f".{key[:8]}-", dir=parent))
            try:
                ours = self._fill(kind, key, make, scratch)
                if ours and self._peers is not None:
                    self._peers.offer(kind, key, scratch)
                sums = {str(p.relative_to(scratch)): _sum(p) for p in sorted(scratch.rglob("*")) if p.is_file()}
                (scratch / MANIFEST).write_text(json.dumps(sums, indent=1))
                os.replace(scratch, folder)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        return folder

    def _fill(self, kind: str, key: str, make: Callable[[Path], None], folder: Path) -> bool:
        """Fill a folder with what another rank has built, or with `make`; whether it was that."""
        files = None if self._peers is None else self._peers.fetch(kind, key)
        if files is not None:
            for name, data in files.items():
                (folder / name).write_bytes(data)
            return False
        try:
            make(folder)
        except BaseException:
            if self._peers is not None:
                self._peers.decline(kind, key)
            raise
        return True

    def _is_about(self, cause: OSError) -> bool:
        """Whether an error is the cache folder's: a full disk, or a file in it or on the way to it."""
        name, root = str(cause.filename or ""), str(self.root)
        return cause.errno in (errno.ENOSPC, errno.EDQUOT) or (
            bool(name) and (name.startswith(root) or root.startswith(name))
        )

    def info(self) -> dict[str, Any]:
        """path, entries, bytes, and by_kind: entries and bytes of each kind."""
        by_kind: dict[str, dict[str, int]] = {}
        for folder in self._entries():
            row = by_kind.setdefault(folder.parent.name, {"entries": 0, "bytes": 0})
            row["entries"] += 1
            row["bytes"] += sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
        return {
            "path": str(self.root),
            "entries": sum(row["entries"] for row in by_kind.values()),
            "bytes": sum(row["bytes"] for row in by_kind.values()),
            "by_kind": by_kind,
        }

    def clear(self) -> int:
        """Remove every entry, and say how many there were. Only what is an entry of this cache is touched."""
        entries = self._entries()
        for folder in entries:
            shutil.rmtree(folder, ignore_errors=True)
            (folder.parent / f".{folder.name}.lock").unlink(missing_ok=True)
        self._checked.clear()
        return len(entries)

    def _entries(self) -> list[Path]:
        return [path.parent for path in self.root.glob(f"*/*/{MANIFEST}")] if self.root.is_dir() else []

    def _intact(self, folder: Path) -> bool:
        try:
            sums = json.loads((folder / MANIFEST).read_text())
            return isinstance(sums, dict) and all(_sum(folder / name) == value for name, value in sums.items())
        except (OSError, ValueError):
            return False

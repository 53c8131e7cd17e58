"""The on-disk cache: what was built, found by the content that it was built from.

An entry is a folder `ROOT/KIND/KEY/` of plain files (source text, shared objects, cubins, JSON) with a `manifest.json`
of their SHA-256 sums. Nothing in it is unpickled, nothing is used that the manifest does not vouch for
(`litz.cache.manifest`), nor anything that others may write (`litz.origins.trust`). Writers build in a temporary folder,
copy what is whole beside the place, and rename it, so nobody ever sees half an entry; a lock spares two processes from
building the same, and where it cannot be had both build. Readers check the sums once a process, and an entry that does
not match is thrown away and built anew.

Beyond its limit the cache deletes first what nobody used for the longest time. Caches that are only read may lie under
it: a team's, or a container image's.

So whatever becomes of the cache while something is built, what was built is there. A cache that cannot hold it
(read-only, full, a file where a folder should be, a mount that no code runs from) costs one warning in a process, and
it stays in a temporary folder.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import hashlib
import os
import re
import secrets
import shutil
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from litz.errors import CacheError
from litz.origins.trust import OWN, Trust, warn_once

from . import artifacts, manifest
from .limit import SIZES, Limit, leftovers_in, use
from .stores import Stores, write
from .umask import owner_may

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds to wait for another process that builds an entry, before it is built here too."""
FAILED = "failed"
"""The folder, inside the cache folder, of kernels and graphs that did not compile."""
TRIES = 3
"""Of writing or reading an entry, while another process empties the cache."""
_KEY = re.compile(r"[0-9a-f]{40}")
_PLACES = ("/tmp", "/var/tmp", "/dev/shm")
"""For temporary folders, where the name of the usual place has a $, which the loader of libraries may replace."""


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

    hits, misses: how many entries `build` has found, and made or taken from a store.
    stores: who may have what is not there; nobody is asked with `enabled=False`. limit: bytes that it may hold, 0 for
    no limit (`litz.cache.limit`). shared: caches that are looked into after it, and never written to. trust: whose
    files are used.
    CacheError if no temporary folder can be made.
    """

    def __init__(
        self,
        root: Path,
        enabled: bool = True,
        stores: Stores | None = None,
        limit: int = 0,
        shared: Sequence[Path] = (),
        trust: Trust = OWN,
    ) -> None:
        self._stores = stores if enabled else None
        self._enabled = enabled
        self.root = Path(root) if enabled else temporary_folder(self)
        self._limit = Limit(self.root, limit if enabled else 0)
        self._shared = tuple(Path(path) for path in shared) if enabled else ()
        self._trust, self._problems = trust, dict[Path, str]()
        self._checked: set[Path] = set()
        self._useless: set[Path] = set()  # undamaged entries of shared caches that cannot be used where they lie
        self._spare: list[Cache] = []  # shared with `counted` copies
        self.hits = self.misses = 0

    def counted(self) -> Cache:
        """Returns the same cache with counts of its own, for a caller who wants only its own hits and misses."""
        own = copy.copy(self)
        own.hits = own.misses = 0
        return own

    def find(self, kind: str, key: str, needs: Sequence[str] = ()) -> Path | None:
        """Returns the folder of an undamaged entry that has the needed files; None if there is none."""
        if self._enabled and self._problem(self.root / kind):
            return None  # whoever builds what is missing hears of it
        found = self._find(self.root / kind / key, needs)
        for root in self._shared if found is None else ():
            problem = self._problem(root / kind)
            if problem:
                warn_once(f"litz uses nothing from {root}, which cache_shared names: {problem}")
            else:
                found = found or self._find(root / kind / key, needs)
        return found

    def fetch(self, kind: str, key: str, needs: Sequence[str], check: Callable[[Path], object]) -> Path | None:
        """Returns what `find` does, or else the folder of an entry that a store has, put onto the disk; None if there
        is none. check: called with a folder of the store's files before they are put anywhere; what it raises means
        that they are no such entry."""
        found = self.find(kind, key, needs)
        files = self._stores.fetch(kind, key, needs) if self._stores is not None and found is None else None
        if files is None:
            return found

        def make(folder: Path) -> None:
            write(files, folder)
            check(folder)

        try:
            return self.build(kind, key, make, needs, asks=False)
        except (OSError, ValueError, LookupError, ImportError, AttributeError, TypeError):
            return None

    def offer(self, kind: str, key: str, folder: Path) -> None:
        """Hands an entry to the stores that keep what is made here."""
        if self._stores is not None:
            self._stores.offer(kind, key, folder)

    def _problem(self, folder: Path) -> str:
        """Returns why a folder is not trusted, or ''. A folder that others may yet make is looked at again."""
        if folder in self._problems:
            return self._problems[folder]
        there, problem = folder.is_dir(), self._trust.problem_of(folder)
        if there:
            self._problems[folder] = problem
        return problem

    def _find(self, folder: Path, needs: Sequence[str]) -> Path | None:
        if folder in self._checked - self._useless and all(
            (folder / name).is_file() for name in (manifest.FILE, *needs)
        ):
            return folder
        self._checked.discard(folder)
        if folder in self._useless or not manifest.holds(folder, needs, self._trust):
            return None
        self._checked.add(folder)
        use(folder)
        return folder

    def build(
        self,
        kind: str,
        key: str,
        make: Callable[[Path], None],
        needs: Sequence[str] = (),
        patience: float = PATIENCE,
        asks: bool = True,
    ) -> Path:
        """Returns the folder of an entry; if it is not there, `make(folder)` fills a fresh one first.

        asks: whether stores are asked before `make` runs, and get what it made. needs: files that the caller will read.
        patience: seconds to wait for another process that builds the entry. What `make` raises is passed on, and
        nothing is kept. Where the cache cannot hold it, the folder is a temporary one, and a warning says why, once a
        process. CacheError if that cannot be had either.
        """
        found = self.find(kind, key, needs)
        if found is not None:
            self.hits += 1
        elif self._spare or self._is_foreign(kind):
            return self._in_spare(kind, key, make, needs)
        else:
            with owner_may(), _lock(self.root / kind, key, patience, self._trust):
                found = self.find(kind, key, needs)  # another process may have been faster
                if found is not None:
                    self.hits += 1
                else:
                    found = self._build(kind, key, make, needs, asks)
        if self._enabled:
            artifacts.record(kind, key, found)
        return found

    def _is_foreign(self, kind: str) -> bool:
        """Returns whether others may write where entries of a kind belong: then they are built in the spare."""
        if not self._enabled:
            return False
        with owner_may(), contextlib.suppress(OSError):  # whoever keeps something there says so
            self._trust.make(self.root / kind)
        problem = self._problem(self.root / kind)
        if problem:
            self.aside(OSError(errno.EPERM, problem))
        return bool(problem)

    def use(
        self, kind: str, key: str, make: Callable[[Path], None], read: Callable[[Path], T], needs: Sequence[str] = ()
    ) -> T:
        """Returns what `read` makes of the folder that `build` returns. An OSError of `read` means that the entry was
        removed meanwhile, and is built again, or is of no use where it lies: then it is built in a temporary folder.
        CacheError if it is of no use there."""
        for _ in range(TRIES + len(self._shared)):
            folder = self.build(kind, key, make, needs)
            try:
                return read(folder)
            except OSError as error:
                cause = error
            self._checked.discard(folder)
            if not manifest.holds(folder, needs, self._trust):
                continue
            if not any(root in folder.parents for root in self._shared):
                break
            self._useless.add(folder)
        if self._enabled and self.root in folder.parents:
            return self.aside(cause).use(kind, key, make, read, needs)
        todo = "set TMPDIR to a folder that code may run from: no $ in its name, and no mount with noexec"
        raise CacheError(f"what was built is of no use: {_reason(cause)}", path=str(folder), todo=todo) from cause

    def aside(self, why: BaseException) -> Cache:
        """Returns a cache in a temporary folder, for what this one cannot hold: the same for all caches of the process
        in this place. The first call warns of `why`."""
        if self._spare:
            return self._spare[0]
        with _spares_lock:
            place = (os.getpid(), str(self.root))
            first = place not in _spares
            if first:
                _spares[place] = Cache(self.root, enabled=False)
            self._spare[:] = [_spares[place]]
        if first:
            warnings.warn(
                f"litz goes on without its disk cache, and keeps nothing that it builds: {self.root} cannot be used: "
                f"{_reason(why)}. Make the folder usable, or name another: LITZ_CACHE_DIR=/path; "
                "LITZ_CACHE=0 uses none",
                stacklevel=1,
            )
        return self._spare[0]

    def _in_spare(self, kind: str, key: str, make: Callable[[Path], None], needs: Sequence[str]) -> Path:
        spare = self._spare[0].counted()
        folder = spare.build(kind, key, make, needs)
        self.hits, self.misses = self.hits + spare.hits, self.misses + spare.misses
        return folder

    def _build(self, kind: str, key: str, make: Callable[[Path], None], needs: Sequence[str], asks: bool) -> Path:
        """Build in a folder that only this call knows, then put the result where it belongs."""
        place = temporary_folder()
        try:
            made = place / key
            made.mkdir()
            try:
                self._fill(kind, key, make, needs, made) if asks and self._stores is not None else make(made)
                manifest.write(made)
            except OSError as cause:
                if place in Path(str(cause.filename or place)).parents or cause.errno in (errno.ENOSPC, errno.EDQUOT):
                    problem = f"nothing can be built in the folder for temporary files: {_reason(cause)}"
                    raise CacheError(problem, path=str(place.parent), todo=_TMPDIR) from cause
                raise
            self.misses += 1
            try:
                return self._store(made, kind, key, needs)
            except OSError as cause:
                if not self._enabled:
                    raise CacheError(
                        f"nothing can be kept: {_reason(cause)}", path=str(self.root), todo=_TMPDIR
                    ) from cause
                return self.aside(cause)._store(made, kind, key, needs)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _store(self, made: Path, kind: str, key: str, needs: Sequence[str]) -> Path:
        """Copy a folder into the cache, which another process may be about to empty. Returns where it lies."""
        parent = self.root / kind
        folder = parent / key
        for turn in range(TRIES):
            scratch = parent / f".{key[:8]}-{secrets.token_hex(4)}"
            try:
                self._trust.make(parent)
                _copy(made, scratch, self._trust)
                _put(scratch, folder, needs, self._trust)
                break
            except FileNotFoundError:
                if turn == TRIES - 1:
                    raise
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        self._limit.written(folder)
        self._checked.add(folder)
        return folder

    def _fill(self, kind: str, key: str, make: Callable[[Path], None], needs: Sequence[str], folder: Path) -> None:
        """Fill a folder with what a store has, or with `make`, for whoever keeps it."""
        assert self._stores is not None
        files = self._stores.fetch(kind, key, needs)
        if files is not None:
            write(files, folder)
            return
        built = None
        try:
            make(folder)
            built = folder
        finally:
            self._stores.offer(kind, key, built)

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
        for left in (path for kind in self._kinds() for path in leftovers_in(kind)):
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


_spares: dict[tuple[int, str], Cache] = {}
_spares_lock = threading.Lock()
"""What this process builds in place of caches that cannot be used, by the process's number and the cache's folder."""
_TMPDIR = "set TMPDIR to a folder that can be written"


def temporary_folder(owner: object = None) -> Path:
    """Returns a new folder that nobody else may look into. owner: with it the folder goes. CacheError if there is no
    place for one."""
    problem: OSError | None = None
    places = _temporary_places()
    while True:
        try:
            folder = Path(tempfile.mkdtemp(prefix="litz-", dir=next(places)))
            folder.chmod(0o700)  # whatever the process's mask
            if owner is not None:
                weakref.finalize(owner, _remove_own, folder, os.getpid())
            return folder
        except OSError as cause:
            problem = problem or cause
        except StopIteration:
            break
    assert problem is not None
    raise CacheError(f"no temporary folder can be made: {_reason(problem)}", todo=_TMPDIR) from problem


def _temporary_places() -> Iterator[str | None]:
    """Yields folders in which others cannot replace a new one, None for the usual one. Errors: OSError, at the end."""
    try:
        usual = tempfile.gettempdir()
    except OSError:  # there is none, and mkdtemp says so
        yield None
        return
    problem = OWN.problem_of(usual, sticky=True)
    if problem:
        warn_once(f"litz builds in another place than {usual}: {problem}, or set TMPDIR to another folder")
    if problem or "$" in usual:
        yield from (place for place in _PLACES if not OWN.problem_of(place, sticky=True))
    if problem:
        raise OSError(errno.EPERM, problem, usual)
    yield None


def _remove_own(folder: Path, process: int) -> None:
    if os.getpid() == process:  # and not one that was forked from it
        shutil.rmtree(folder, ignore_errors=True)


def _reason(cause: BaseException) -> str:
    return (cause.strerror if isinstance(cause, OSError) else None) or str(cause) or type(cause).__name__


@contextlib.contextmanager
def _lock(folder: Path, key: str, patience: float, trust: Trust) -> Iterator[None]:
    """The lock of an entry; without it where another process does not let go in time, or the file system has none.

    The lock only spares work: entries are renamed into place whole.
    """
    try:
        trust.make(folder)
        lock = FileLock(folder / f".{key}.lock", mode=trust.mode & 0o666)
        lock.acquire(timeout=patience)
    except (Timeout, OSError, NotImplementedError):
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            lock.release()


def folder_for_texts(root: Path) -> Path:
    """Returns a folder for what failed, where the user can look at it: of the cache at `root`, or a temporary one where
    others may write there (a link of theirs would lead the text elsewhere). Errors: OSError, CacheError."""
    folder = root / FAILED
    with owner_may(), contextlib.suppress(OSError):
        OWN.make(folder)
    return temporary_folder() if OWN.problem_of(folder) else folder


def _copy(source: Path, target: Path, trust: Trust) -> None:
    """Copy a folder's content, with the rights that new files have: those of a temporary folder are for its owner."""
    target.mkdir(trust.mode)
    for path in source.iterdir():
        if path.is_dir():
            _copy(path, target / path.name, trust)
        else:
            (target / path.name).touch(trust.mode & 0o666, exist_ok=False)
            (target / path.name).write_bytes(path.read_bytes())


def _put(scratch: Path, folder: Path, needs: Sequence[str], trust: Trust) -> None:
    """Rename an entry into place. What is there is damaged, or another process has been faster: then that stays."""
    for _ in range(2):
        try:
            os.rename(scratch, folder)
            return
        except OSError as cause:
            if manifest.holds(folder, needs, trust):
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
    """Returns what a folder holds, nothing if it is not there. CacheError if it cannot be read."""
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

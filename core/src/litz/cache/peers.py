"""Kernels that another rank of the job has built. In: an entry's kind and key. Out: its files, over the store of the
process group, so that ranks without a common disk need not build the same.

The first rank that asks for an entry builds it and leaves its files in the store; the others wait for them. The files
are those of the cache, as JSON with their SHA-256 sums: nothing is unpickled. A kernel is code that will run, as is
whatever else the ranks of a job tell each other: the store is trusted as torch trusts it.

A rank that waits too long builds for itself, warns once, and asks no more.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
import warnings
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .manifest import FILE

KINDS = frozenset({"cpp", "triton"})
"""Kinds of entries that follow from their key alone; what was measured is each machine's own."""
MOST_BYTES = 4 << 20
"""The most bytes of an entry as it is sent: a TCPStore takes 8 MiB in a value."""
LARGEST = 1 << 28
"""The most bytes of an entry, unpacked."""
SECONDS = 60.0
"""How long to wait for another rank's kernel."""
POLL_S = 0.01
"""Between two looks. A store's own wait would keep this process's other threads from it."""
PREFIX = "litz/built/1"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")
"""Names that files of an entry may have: none leads to another folder, on any system."""

StoreOf = Callable[[], tuple[Any, int] | None]
"""Gives (the store of the process group, this rank), None without one; asked each time, as groups come and go."""


class Peers:
    """The entries that ranks of the job have built, exchanged through the job's store."""

    def __init__(self, store_of: StoreOf, seconds: float = SECONDS) -> None:
        self._store_of, self._seconds = store_of, seconds
        self._broken = False

    def fetch(self, kind: str, key: str) -> Mapping[str, bytes] | None:
        """Returns the files of an entry by name; None where this rank must build the entry and then `offer` it."""
        return self._try(lambda store, rank: self._wait(store, rank, kind, key)) if kind in KINDS else None

    def offer(self, kind: str, key: str, folder: Path | None) -> None:
        """Leaves an entry's files, built by this rank, to the others. folder: None if the build failed."""
        if kind in KINDS:
            self._try(lambda store, _: store.set(f"{PREFIX}/{kind}/{key}/files", pack(folder) if folder else NOTHING))

    def _wait(self, store: Any, rank: int, kind: str, key: str) -> Mapping[str, bytes] | None:
        place = f"{PREFIX}/{kind}/{key}"
        holder = store.compare_set(f"{place}/rank", "", str(rank)).decode()
        files = f"{place}/files"
        if holder == str(rank) and not store.check([files]):
            return None
        until = time.monotonic() + self._seconds
        while not store.check([files]):
            if time.monotonic() > until:
                self._broken = True
                late = f"rank {holder} did not deliver one in {self._seconds:g} s"
                warnings.warn(f"rank {rank} builds its kernels by itself: {late}", stacklevel=2)
                return None
            time.sleep(POLL_S)
        return unpack(store.get(files))

    def _try(self, action: Callable[[Any, int], Any]) -> Any:
        """What `action(store, rank)` gives; None without a store, and from when it fails on."""
        found = None if self._broken else self._store_of()
        if found is None:
            return None
        try:
            return action(*found)
        # torch raises DistStoreError, a RuntimeError, where the store is gone; ValueError: what it holds is no text.
        except (RuntimeError, OSError, ValueError):
            self._broken = True
            return None


NOTHING = "{}"


def pack(folder: Path, most: int | None = None) -> str:
    """Returns the files of a folder as text, its manifest aside; `NOTHING` where they are too many bytes, or lie in
    folders of their own."""
    paths = sorted(path for path in folder.iterdir() if path.name != FILE)
    if not all(path.is_file() for path in paths):
        return NOTHING
    files = {}
    for path in paths:
        data = path.read_bytes()
        packed = base64.b64encode(zlib.compress(data, 1)).decode()
        files[path.name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "zlib": packed}
    text = json.dumps(files)
    return text if len(text) <= (MOST_BYTES if most is None else most) else NOTHING


def unpack(text: str | bytes) -> Mapping[str, bytes] | None:
    """Returns the files that `pack` packed; None for `NOTHING`, damaged text, and text without plain files."""
    try:
        files = json.loads(text)
        found, room = {}, LARGEST
        for name, item in files.items():
            size = item["bytes"]
            if not _NAME.fullmatch(name) or name == FILE or type(size) is not int or not 0 <= size <= room:
                return None
            # One more than there may be: 0 would be no limit.
            data = zlib.decompressobj().decompress(base64.b64decode(item["zlib"], validate=True), size + 1)
            if len(data) != size or hashlib.sha256(data).hexdigest() != item["sha256"]:
                return None
            found[name], room = data, room - size
        return found or None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError, zlib.error):
        return None

"""Entries that lie elsewhere than on this disk: in, an entry's files, or bytes that a store had; out, the other.

The bytes are JSON text of the files' names, sizes, SHA-256 sums and compressed contents. A store keeps them as they are
and reads nothing in them: a server, an export of `torch.compiler.save_cache_artifacts`, the other ranks of a job. litz
looks at what comes back before litz writes a part of it, and unpickles nothing. An entry is code, as all in the cache
is: the store has to know from whom the entry comes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .manifest import FILE

KINDS = frozenset({"cpp", "triton", "native", "graph"})
"""Kinds of entries that follow from their keys. What was measured is each machine's own."""
LARGEST = 1 << 28
"""The most bytes of an entry, packed or unpacked."""
NOTHING = b"{}"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")
"""Names that files of an entry may have: none leads to another folder, on any system."""


def pack(folder: Path) -> bytes:
    """Returns the files of a folder as bytes, its manifest aside; `NOTHING` where they are too many, lie in folders of
    their own, or have been removed meanwhile."""
    files = {}
    try:
        for path in sorted(path for path in folder.iterdir() if path.name != FILE):
            data = path.read_bytes()  # an IsADirectoryError for a folder
            packed = base64.b64encode(zlib.compress(data, 1)).decode()
            files[path.name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "zlib": packed}
    except OSError:
        return NOTHING
    text = json.dumps(files).encode()
    return text if len(text) <= LARGEST else NOTHING


def unpack(content: str | bytes) -> Mapping[str, bytes] | None:
    """Returns the files that `pack` packed; None for `NOTHING`, damaged bytes, and bytes without plain files."""
    try:
        files = json.loads(content) if len(content) <= LARGEST else {}
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


def write(files: Mapping[str, bytes], folder: Path) -> None:
    """Writes what `unpack` returned into a folder."""
    for name, data in files.items():
        (folder / name).write_bytes(data)


Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Stores:
    """The plugins that have entries which this disk has not, as two functions.

    find: called with an entry's kind, its key, and a check that gives the files of bytes, or None for what is no entry;
    returns the files, None where nobody has them. keep: called with kind, key, and the bytes of what was made here,
    None if making the entry failed: nobody need wait for the entry then. None where nobody keeps anything.
    """

    find: Callable[[str, str, Callable[[bytes], Files | None]], Files | None]
    keep: Callable[[str, str, bytes | None], None] | None

    def fetch(self, kind: str, key: str, needs: Sequence[str]) -> Files | None:
        """Returns the files of an entry, those in `needs` among them; None where the entry is to be made, and
        `offer`ed."""

        def whole(content: bytes) -> Files | None:
            files = unpack(content)
            return files if files is not None and set(needs) <= files.keys() else None

        return self.find(kind, key, whole) if kind in KINDS else None

    def offer(self, kind: str, key: str, folder: Path | None) -> None:
        """Hands an entry's files, made here, to who keeps them. folder: None if making them failed."""
        if kind in KINDS and self.keep is not None:
            self.keep(kind, key, None if folder is None else pack(folder))


__all__ = ["KINDS", "LARGEST", "NOTHING", "Files", "Stores", "pack", "unpack", "write"]

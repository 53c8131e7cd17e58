"""One block of bytes that holds files: in, files by name; out, bytes; and from bytes the files again, each checked.

    magic, length of the header (8 bytes, most significant first), SHA-256 sum of the header (32 bytes), header,
    contents

The header is JSON: the name, size and SHA-256 sum of each file, in the order of the contents. So a sum vouches for
every byte. Nothing is unpickled, and no name leads out of the folder into which the files are written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from litz.cache import manifest

MAGIC = b"litz artifact\n"
_SUM = hashlib.sha256().digest_size
_START = len(MAGIC) + 8 + _SUM
LARGEST_HEADER = 1 << 26
"""Bytes: it has a line for each file."""


def pack(files: Mapping[str, bytes]) -> bytes:
    """Returns the files as one block of bytes."""
    rows = [[name, len(data), hashlib.sha256(data).hexdigest()] for name, data in files.items()]
    header = json.dumps(rows).encode()
    return b"".join([MAGIC, len(header).to_bytes(8), hashlib.sha256(header).digest(), header, *files.values()])


def unpack(data: bytes) -> dict[str, bytes]:
    """Returns the files in a block of bytes. Errors: ValueError for bytes that `pack` did not return, or that were
    changed since; the message says which part."""
    if not isinstance(data, (bytes, bytearray, memoryview)) or data[: len(MAGIC)] != MAGIC:
        raise ValueError("these bytes are no artifact of litz")
    size = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 8])
    header = data[_START : _START + size]
    if size > LARGEST_HEADER or hashlib.sha256(header).digest() != data[_START - _SUM : _START]:
        raise ValueError("its header is damaged")
    found, at = dict[str, bytes](), _START + size
    for name, length, wanted in _rows(bytes(header)):
        content = bytes(data[at : at + length])
        if hashlib.sha256(content).hexdigest() != wanted:
            raise ValueError(f"{name} is damaged")
        found[name], at = content, at + length
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes too many follow its last file")
    return found


def _rows(header: bytes) -> list[tuple[str, int, str]]:
    """The header's rows. ValueError for rows that `pack` does not write."""
    rows: Any = json.loads(header)
    try:
        found = [(name, length, wanted) for name, length, wanted in rows]
    except TypeError as cause:
        raise ValueError("its header has no rows") from cause
    if any(not isinstance(name, str) or type(length) is not int or length < 0 for name, length, _ in found):
        raise ValueError("its header names no files")
    if len(manifest.check_sums({name: wanted for name, _, wanted in found})) != len(found):
        raise ValueError("its header names a file twice")
    return found


def write(files: Mapping[str, bytes], folder: Path) -> None:
    """Writes what `unpack` returned into an empty folder."""
    for name, data in files.items():
        path = folder / PurePosixPath(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def read(folder: Path) -> dict[str, bytes]:
    """Returns the files in a folder and in the folders in it, by name."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}

"""The list of an entry's files and their SHA-256 sums, which vouches for them.

In: a folder of the cache. Out: whether it is what was written. Whoever can write to the cache can write a manifest too;
what this is for is damage: a disk that was full, a process that was killed, a copy that was cut short. What is not
exactly as `write` writes it is damage, and `holds` neither raises nor takes long on any content.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from litz.origins.trust import OWN, Trust

FILE = "manifest.json"
LARGEST = 1 << 20
"""Bytes of a manifest: an entry has a handful of files."""
_SUM = re.compile(r"[0-9a-f]{64}")


def sums(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 sum of every file in a folder, by its name; files in inner folders are included."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def write(folder: Path) -> None:
    """Writes the sums of a folder's files into the folder."""
    (folder / FILE).write_text(json.dumps(sums(folder), indent=1), encoding="utf-8")


def holds(folder: Path, needs: Sequence[str] = (), trust: Trust = OWN) -> bool:
    """Returns whether a folder has a manifest that names the files in `needs`, every file that it names is as it was,
    and nobody else may write there."""
    try:
        if not trust.owns(folder):
            return False
        text = plain_file(folder, FILE, LARGEST, trust).decode()
        found = check_sums(json.loads(text, object_pairs_hook=_distinct))
        return (
            bool(found) and set(needs) <= found.keys() and all(agrees(folder, *item, trust) for item in found.items())
        )
    except (OSError, ValueError, RecursionError, MemoryError):
        return False


def check_sums(sums: Any) -> dict[str, str]:
    """Returns `sums`, name -> sum. Raises ValueError for another type, or a name that leads elsewhere."""
    if not isinstance(sums, dict):
        raise ValueError("no list of sums")
    for name, value in sums.items():
        path = PurePosixPath(name)
        inside = not path.is_absolute() and ".." not in path.parts and path.as_posix() == name and path.parts
        if not inside or "\0" in name or name == FILE or not isinstance(value, str) or not _SUM.fullmatch(value):
            raise ValueError(f"no sum of a file: {name!r}")
    return sums


def agrees(folder: Path, name: str, value: str, trust: Trust = OWN) -> bool:
    """Returns whether a file is a plain file in the folder, reached by no link, that can be read and has this sum, and
    that nobody else may write."""
    try:
        inside = all(trust.owns(folder / step) for step in PurePosixPath(name).parents[:-1])
        return inside and sum_of(folder / name, trust) == value
    except OSError:
        return False


def plain_file(folder: Path, name: str, most: int, trust: Trust = OWN) -> bytes:
    """Returns the content of a file. Raises ValueError if the file is longer than `most` bytes; OSError for a link, a
    pipe, and what others may write."""
    with trust.opened(folder / name) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{name} is longer than {most} bytes")
    return data


def sum_of(path: Path, trust: Trust = OWN) -> str:
    """Returns the SHA-256 of a plain file's content, as hex digits. Errors: OSError."""
    with trust.opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _distinct(pairs: Sequence[tuple[str, Any]]) -> Mapping[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name twice")
    return found

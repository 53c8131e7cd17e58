"""The list of an entry's files and their SHA-256 sums, which vouches for them.

In: a folder of the cache. Out: whether it is what was written. Whoever can write to the cache can write a manifest too;
what this is for is damage: a disk that was full, a process that was killed, a copy that was cut short. What is not
exactly as `write` writes it is damage, and `holds` neither raises nor takes long on any content.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

FILE = "manifest.json"
LARGEST = 1 << 20
"""Bytes of a manifest: an entry has a handful of files."""
_SUM = re.compile(r"[0-9a-f]{64}")


def write(folder: Path) -> None:
    """Write the sums of all files that are in a folder, folders in it included."""
    sums = {path.relative_to(folder).as_posix(): sum_of(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    (folder / FILE).write_text(json.dumps(sums, indent=1))


def holds(folder: Path, needs: Sequence[str] = ()) -> bool:
    """Whether a folder has a manifest that names the files in `needs`, and every file that it names is as it was."""
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            return False
        sums = read_sums(plain_file(folder, FILE, LARGEST).decode())
        return bool(sums) and set(needs) <= sums.keys() and all(agrees(folder, *item) for item in sums.items())
    except (OSError, ValueError, RecursionError, MemoryError):
        return False


def read_sums(text: str) -> dict[str, str]:
    """Name -> sum. ValueError for what is not that: another type, a name that leads elsewhere, a name twice."""
    return check_sums(json.loads(text, object_pairs_hook=_distinct))


def check_sums(sums: Any) -> dict[str, str]:
    """The same for what was read already."""
    if not isinstance(sums, dict):
        raise ValueError("no list of sums")
    for name, value in sums.items():
        path = PurePosixPath(name)
        inside = not path.is_absolute() and ".." not in path.parts and path.as_posix() == name and path.parts
        if not inside or "\0" in name or name == FILE or not isinstance(value, str) or not _SUM.fullmatch(value):
            raise ValueError(f"no sum of a file: {name!r}")
    return sums


def agrees(folder: Path, name: str, value: str) -> bool:
    """Whether a file is a plain file in the folder, reached by no link, with this sum. OSError if it cannot be read."""
    steps = [folder.joinpath(*PurePosixPath(name).parts[:count]) for count in range(1, len(PurePosixPath(name).parts))]
    if any(stat.S_ISLNK(step.lstat().st_mode) for step in steps) or not stat.S_ISREG((folder / name).lstat().st_mode):
        return False
    return sum_of(folder / name) == value


def plain_file(folder: Path, name: str, most: int) -> bytes:
    """The content of a file. ValueError if it is a link, a pipe, or longer than `most` bytes."""
    found = (folder / name).lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_size > most:
        raise ValueError(f"{name} is no plain file of at most {most} bytes")
    return (folder / name).read_bytes()


def sum_of(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _distinct(pairs: Sequence[tuple[str, Any]]) -> Mapping[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name twice")
    return found

"""Which packages are here: in, a dist, a folder or a file; out, a version, or a digest of source files."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path

LARGEST_SOURCES = 64 << 20
"""Bytes of a package's source files that are read."""


class SourcesError(Exception):
    """The sources of a package cannot be read; the message says why, to follow "because"."""


def version_of(dist: str) -> str:
    """Returns the version of an installed dist; '' if it is not installed."""
    try:
        return importlib.metadata.version(dist)
    except importlib.metadata.PackageNotFoundError:
        return ""


@functools.cache
def _file_digest(file: str) -> str:
    # An archive has it within.
    found = next((each for each in (Path(file), *Path(file).parents) if each.is_file()), None)
    if found is None:
        raise SourcesError(f"the sources in {file} are no files")
    return hashlib.sha256(found.read_bytes()).hexdigest()[:32]


@functools.cache
def sources_digest(folder: str) -> str:
    """Returns the digest of all files of a package, bytecode aside, or of the archive that the package is in, as they
    were when this process first asked. Errors: SourcesError for too large a package, or one without files."""
    if not os.path.isdir(folder):
        return _file_digest(folder)
    sha, total = hashlib.sha256(), 0
    for file in sorted(_files(folder)):
        with open(os.path.join(folder, file), "rb", buffering=0) as opened:
            data = opened.read()
        total += len(data)
        if total > LARGEST_SOURCES:
            raise SourcesError(f"the sources in {folder} have more than {LARGEST_SOURCES >> 20} MiB")
        sha.update(f"{file}:{len(data)}:".encode())
        sha.update(data)
    return sha.hexdigest()[:32]


def _files(folder: str, inside: str = "") -> Iterator[str]:
    """Yields the names of the files below a folder, seen from there."""
    with os.scandir(os.path.join(folder, inside)) as found:
        entries = list(found)
    for entry in entries:
        name = f"{inside}{entry.name}"
        if not entry.is_dir():
            yield name
        elif entry.name != "__pycache__" and not entry.is_symlink():
            yield from _files(folder, f"{name}/")

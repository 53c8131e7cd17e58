"""The source files of packages, by a digest: in, a folder, a file, or names of packages with the digests that they had;
out, digests, or what was edited since. Nothing is imported.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

LARGEST_SOURCES = 64 << 20
"""Bytes of a package's source files that are read."""


class SourcesError(Exception):
    """The sources of a package cannot be read; the message says why, to follow "because"."""


def digests_of(packages: Iterable[str]) -> dict[str, str]:
    """Returns the digests of top-level packages or modules that can be imported, by name. Errors: SourcesError."""
    return {name: digest for name in packages if (digest := _digest_of(name))}


def changed_sources(known: Mapping[str, str]) -> str:
    """Returns which of the packages is here and has other sources than `digests_of` said, as text; '' for none."""
    edited = [name for name, digest in known.items() if _digest_of(name) not in ("", digest)]
    return f"it was made with other sources of {', '.join(edited)} than those that are here" if edited else ""


def _digest_of(name: str) -> str:
    spec = importlib.util.find_spec(name)
    if spec is None:
        return ""
    folders = spec.submodule_search_locations
    return " ".join(map(sources_digest, folders)) if folders else sources_digest(str(spec.origin))


@functools.cache
def _file_digest(file: str) -> str:
    found = _file_or_archive(Path(file))
    if found is None:
        raise SourcesError(f"the sources in {file} are no files")
    return hashlib.sha256(found.read_bytes()).hexdigest()[:32]


def _file_or_archive(path: Path) -> Path | None:
    """Returns the file, or the archive that has the path within; None where there is none."""
    return next((each for each in (path, *path.parents) if each.is_file()), None)


@functools.cache
def sources_digest(folder: str) -> str:
    """Returns the digest of all files of a package, bytecode aside, or of the archive that the package is in. The files
    are read once a process, as Python reads them. Errors: SourcesError for a package that is too large, or has no
    files."""
    if not os.path.isdir(folder):
        return _file_digest(folder)
    sha, total = hashlib.sha256(), 0
    for file in sorted(_files(folder)):
        data = Path(folder, file).read_bytes()
        total += len(data)
        if total > LARGEST_SOURCES:
            raise SourcesError(f"the sources in {folder} have more than {LARGEST_SOURCES >> 20} MiB")
        sha.update(f"{file}:{len(data)}:".encode())
        sha.update(data)
    return sha.hexdigest()[:32]


def _files(folder: str) -> Iterator[str]:
    for path, names, files in os.walk(folder):
        names[:] = [name for name in names if name != "__pycache__"]
        yield from (os.path.relpath(os.path.join(path, file), folder) for file in files)

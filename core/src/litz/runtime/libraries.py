"""Shared libraries, before they are loaded. In: a file. Out: what is wrong with it, or the library.

The loader maps a library and looks at what it needs. A library that ends in the middle ends the process (SIGBUS), long
after the compiler or the disk that left it so.
"""

from __future__ import annotations

import ctypes
import os
import struct
import weakref
from pathlib import Path

_ELF = b"\x7fELF"
_TOKENS = ("$ORIGIN", "$LIB", "$PLATFORM", "${ORIGIN}", "${LIB}", "${PLATFORM}")
"""Words that the loader of Linux replaces in the name of a library, and that nothing can escape."""


class Library(ctypes.CDLL):
    """A shared library that the process unloads once Python has collected the library and its functions, each of which
    holds the library. ctypes alone never unloads one. A library whose file has another length than before stays loaded:
    code runs when a library is unloaded, and the pages of a shortened file end the process (SIGBUS)."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        # At exit other threads may still run kernels.
        weakref.finalize(self, _unload, self._handle, path, _state(path)).atexit = False


def _state(path: Path) -> tuple[int, int]:
    """The number and the size of a file; 0 where there is none. A file that is gone or replaced keeps its pages."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_size


def _unload(handle: int, path: Path, loaded: tuple[int, int]) -> None:
    now = _state(path)
    if now[0] == loaded[0] and now[1] != loaded[1]:
        return
    close = ctypes.CDLL(None)["dlclose"]
    close.argtypes = [ctypes.c_void_p]
    close(handle)


def load_library(path: Path) -> Library:
    """Returns a library, loaded. Errors: OSError, which says what is wrong."""
    problem = problem_of(path)
    if problem:
        raise OSError(f"{path}: {problem}")
    return Library(path)


def problem_of(path: Path) -> str:
    """Returns why a file cannot be loaded as a library, as far as its name and its ELF headers tell; '' if it can."""
    token = next((token for token in _TOKENS if token in str(path)), "")
    if token:
        return f"the loader of libraries replaces {token} in names of folders"
    try:
        with path.open("rb") as file:
            size, start = os.fstat(file.fileno()).st_size, file.read(64)
            if not start:
                return "the file is empty"
            if start[:4] != _ELF:
                return ""  # the loader says what it thinks of it
            if len(start) < 64:
                return "the file ends in its header"
            wide, order = start[4] == 2, "<" if start[5] == 1 else ">"
            # Offset of the program headers and the section headers; size and number of each.
            programs, sections = struct.unpack_from(order + ("QQ" if wide else "II"), start, 32 if wide else 28)
            sizes = struct.unpack_from(order + "HHHH", start, 54 if wide else 42)
            file.seek(programs)
            headers = file.read(sizes[0] * sizes[1])
    except OSError as cause:
        return cause.strerror or str(cause)
    if sizes[0] < (56 if wide else 32):
        return "its headers are damaged"
    needed = [programs + sizes[0] * sizes[1], sections + sizes[2] * sizes[3]]
    for number in range(sizes[1] if len(headers) == sizes[0] * sizes[1] else 0):
        header = headers[number * sizes[0] :]
        # Offset in the file, and size there, of a segment.
        offset, length = (
            struct.unpack_from(order + "Q16xQ", header, 8) if wide else struct.unpack_from(order + "I8xI", header, 4)
        )
        needed.append(offset + length)
    return f"the file has {size} of {max(needed)} bytes" if size < max(needed) else ""

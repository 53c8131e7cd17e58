"""Shared libraries, before they are loaded. In: a file. Out: what is wrong with it, or the library.

The loader maps a library and looks at what it needs. A library that ends in the middle ends the process (SIGBUS), long
after the compiler or the disk that left it so.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

_ELF = b"\x7fELF"
_TOKENS = ("$ORIGIN", "$LIB", "$PLATFORM", "${ORIGIN}", "${LIB}", "${PLATFORM}")
"""What the loader of Linux replaces in the name of a library; there is no way to write them as they are."""


def load_library(path: Path) -> ctypes.CDLL:
    """Returns a library, loaded. Errors: OSError, which says what is wrong."""
    problem = problem_of(path)
    if problem:
        raise OSError(f"{path}: {problem}")
    return ctypes.CDLL(str(path))


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

"""A process of root's with a plain user's powers: modes of files and folders count for it, and for what it starts."""

from __future__ import annotations

import ctypes
import os
import struct

_SET_SECUREBITS, _NO_ROOT, _VERSION_3 = 28, 1, 0x20080522


def become_plain() -> None:
    """Gives up all capabilities; does nothing for who has none. Errors: OSError."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, none = struct.pack("Ii", _VERSION_3, 0), bytes(24)
    if libc.prctl(_SET_SECUREBITS, _NO_ROOT, 0, 0, 0) or libc.capset(header, none):
        raise OSError(ctypes.get_errno(), "capabilities cannot be given up")

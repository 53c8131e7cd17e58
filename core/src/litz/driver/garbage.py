"""Python's garbage collector while a compile runs, the import of the compiler included: young objects as always,
everything else afterwards.

A compile makes millions of objects that live until it ends, beside the millions of torch and of the user's model. Each
time they have grown by a quarter the collector goes through all of them, and finds next to nothing: a third of the time
that litz took for a training step of 48 layers (CPU time, 2026-11-23).
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

NEVER = 1 << 30
"""Collections of the middle generation before one of all objects."""

_lock = threading.Lock()
_within = 0
_before: tuple[int, int, int] = gc.get_threshold()


@contextmanager
def young_objects_only() -> Iterator[None]:
    """Nothing but young objects is collected within, by any thread, unless somebody asks for it. May be nested, and
    entered by several threads; a threshold that others set in between stays."""
    global _within, _before
    with _lock:
        _within += 1
        if _within == 1:
            _before = gc.get_threshold()
            gc.set_threshold(_before[0], _before[1], NEVER)
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if _within == 0 and gc.get_threshold()[2] == NEVER:
                gc.set_threshold(*_before)

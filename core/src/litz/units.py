"""Numbers for people: sizes, times and counts in a few characters."""

from __future__ import annotations


def size_text(count: float) -> str:
    """Bytes: "512 B", "1.5 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def time_text(us: float) -> str:
    """Microseconds: "3.2 µs", "1.25 ms", "2 s"."""
    if us < 1e3:
        return f"{us:.3g} µs"
    return f"{us / 1e3:.3g} ms" if us < 1e6 else f"{us / 1e6:.3g} s"


def count_text(count: int, noun: str) -> str:
    """ "1 kernel", "4 kernels"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

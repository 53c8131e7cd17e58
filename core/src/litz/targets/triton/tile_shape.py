"""Numbers that tilings are chosen with; warps, on devices that have others. Imports no torch, as `compile` does not."""

from __future__ import annotations

THREADS = 32
"""Threads that all tilings, configurations and the setting `num_warps` count as one warp."""

SIXTEEN_WARPS = 16 * 32 * 64
"""The most elements of a program of 16 warps, 64 in each thread."""

Blocks = tuple[int, int, int, bool]
"""The tile of a reduction: its extents along x and along r, the warps, and whether a row is in one block."""


def power_of_two(value: int) -> int:
    """Returns the least power of two that is not below `value`; 1 for 0."""
    return 1 << max(0, value - 1).bit_length()


def clamp(value: int, low: int, high: int) -> int:
    """Returns the value, or the nearer of `low` and `high` if it lies outside of them; `low` where they cross."""
    return max(low, min(value, high))


def warps_for(elements: int) -> int:
    """Returns the warps of a program of so many elements: 8 in each thread, 16 where there are many."""
    return clamp(elements // (THREADS * (8 if elements <= 2048 else 16)), 1, 16 if elements <= SIXTEEN_WARPS else 32)


def warps_of(count: int, threads: int) -> int:
    """Returns the warps that Triton is asked for. count: the setting `num_warps`. threads: of a warp on the device."""
    return max(1, count * THREADS // threads)

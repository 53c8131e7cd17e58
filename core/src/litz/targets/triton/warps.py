"""How many warps a program has, on devices whose warps differ in length. Imports no torch, as `compile` does not."""

from __future__ import annotations

THREADS = 32
"""Threads that all tilings, configurations and the setting `num_warps` count as one warp."""


def warps_of(count: int, threads: int) -> int:
    """Returns the warps that Triton is asked for. count: the setting `num_warps`. threads: of a warp on the device."""
    return max(1, count * THREADS // threads)

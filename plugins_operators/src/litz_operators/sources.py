"""Where nearest-neighbour resampling finds the source of each output, by eager's own arithmetic in float32.

In Python's numbers, since decompositions ask while torch traces: a product of two float32 is exact in Python's floats.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import cache


def _float32(number: float) -> float:
    found: float = struct.unpack("f", struct.pack("f", number))[0]
    return found


def step(n: int, out: int, scale: float | None) -> float:
    """Returns how far the source position moves from one output to the next, rounded to float32. n, out: elements of
    the input and of the output. scale: what the user gave, if anything."""
    return _float32(1.0 / scale if scale is not None and scale > 0 else n / out)


def sources(n: int, out: int, scale: float | None, exact: bool) -> list[int]:
    """Returns the source position of each output along one dimension. exact: of the op's "exact" variant."""
    moves, shift = step(n, out, scale), 0.5 if exact else 0.0
    return [min(math.floor(_float32(_float32(o + shift) * moves)), n - 1) for o in range(out)]


def blocks(
    sizes: Sequence[int], outs: Sequence[int], scales: Sequence[float | None], exact: bool
) -> tuple[int, ...] | None:
    """Returns for each dimension the f for which the source of each output o is o // f; None if one has none."""
    given = scales or (None,) * len(sizes)
    found = [_block(n, out, scale, exact) for n, out, scale in zip(sizes, outs, given, strict=True)]
    return tuple(found) if all(found) else None


@cache
def _block(n: int, out: int, scale: float | None, exact: bool) -> int:
    """The f of one dimension; 0 if there is none."""
    if n == 0 or out % n != 0:
        return 0
    each = out // n
    return each if sources(n, out, scale, exact) == [o // each for o in range(out)] else 0

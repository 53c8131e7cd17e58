"""How many lines of a unit's cache a load of a warp's threads touches: each of them is read by itself."""

from __future__ import annotations

from collections.abc import Iterable

from litz_plugins import Target


def warp_lines(walk: Iterable[tuple[int, float]], target: Target, together: int = 1) -> int:
    """Returns the lines that one load of each thread of the target's warp lies in, at least 1.

    walk: of each range that neighbouring elements go along, the innermost first, how many elements it has and how many
    bytes lie between neighbours. together: neighbouring elements that belong to one thread.
    """
    threads, lines, taken = 1, 1, together
    for count, apart in walk:
        inner = max(1, count // taken)  # threads along the range, were there enough
        beside = min(inner, target.warp // threads)
        lines *= min(beside, 1 + int((beside - 1) * apart * taken) // target.line_bytes)
        threads, taken = threads * beside, max(1, taken // max(count, 1))
    return lines


__all__ = ["warp_lines"]

"""What overlap costs each side. In: measured factors. Out: a `Contention` for a collective of any size.

A collective takes streaming multiprocessors and bandwidth from the kernels beside it, and they from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Contention:
    """Factors of time, 1 where overlap costs nothing.

    bytes: of the collective, counted as in `nccl.Message`. gemm, copy: how many times longer a matrix product, and a
    kernel that is bound by memory, take while such collectives run all the time. collective: how many times longer it
    takes while matrix products run all the time.
    """

    bytes: float
    gemm: float
    copy: float
    collective: float


Table = Mapping[str, Sequence[Contention]]
"""Kind of collective -> its rows, from the smallest message to the largest."""


def contention_at(table: Table, kind: str, size: float) -> Contention | None:
    """The row for `size` bytes, between rows by the logarithm of the size; of another kind where `kind` was not
    measured; None for an empty table."""
    rows = table.get(kind) or next((rows for _, rows in sorted(table.items()) if rows), None)
    if not rows:
        return None
    above = next((row for row in rows if row.bytes >= size), rows[-1])
    below = next((row for row in reversed(rows) if row.bytes <= size), rows[0])
    if above.bytes <= below.bytes:  # on a row, or outside of all
        return Contention(size, above.gemm, above.copy, above.collective)
    share = math.log(size / below.bytes) / math.log(above.bytes / below.bytes)

    def between(low: float, high: float) -> float:
        return low + share * (high - low)

    return Contention(
        size,
        between(below.gemm, above.gemm),
        between(below.copy, above.copy),
        between(below.collective, above.collective),
    )


def table_json(table: Table) -> dict[str, Any]:
    return {kind: [asdict(row) for row in rows] for kind, rows in table.items()}


def read_table(data: Any) -> dict[str, tuple[Contention, ...]]:
    """The table of a JSON object. Errors: TypeError, KeyError or ValueError saying what is wrong."""
    found = {}
    for kind, rows in data.items():
        read = [Contention(*(float(row[name]) for name in ("bytes", "gemm", "copy", "collective"))) for row in rows]
        if any(row.bytes <= 0 or min(row.gemm, row.copy, row.collective) < 1 for row in read):
            raise ValueError(f"contention of {kind}: bytes are > 0 and factors 1 or more")
        found[str(kind)] = tuple(sorted(read, key=lambda row: row.bytes))
    return found

"""What overlap costs each side. In: measured factors. Out: a `Contention` for a collective of any size.

A collective takes streaming multiprocessors and bandwidth from the kernels beside it, and they from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from .least_squares import not_negative_least_squares


@dataclass(frozen=True)
class Contention:
    """Factors of time, 1 where overlap costs nothing.

    bytes: of the collective, counted as in `nccl.Message`. gemm, copy: how many times longer a matrix product, and a
    kernel that is bound by memory, take while such collectives run all the time. collective: how many times longer it
    takes while matrix products run all the time; beside that it begins `delay_us` later, when a kernel that has all
    multiprocessors is through with them (of shorter kernels than `measure_beside.EDGE`'s product, less).
    """

    bytes: float
    gemm: float
    copy: float
    collective: float
    delay_us: float = 0.0


@dataclass(frozen=True)
class Beside:
    """The measurements of a collective of `bytes`: gemm, copy as in `Contention`; its own µs alone and beside matrix
    products."""

    bytes: float
    gemm: float
    copy: float
    alone_us: float
    beside_us: float


def contention_rows(measured: Sequence[Beside]) -> tuple[Contention, ...]:
    """Returns the rows of one kind of collective. Beside kernels it takes delay + factor * its time alone, with one
    delay and one factor for all sizes: those of least relative error."""
    points = [(one.alone_us, one.beside_us) for one in measured]
    gram = [[sum(1 / b**2 for _, b in points), sum(a / b**2 for a, b in points)]]
    gram.append([gram[0][1], sum((a / b) ** 2 for a, b in points)])
    delay, factor = not_negative_least_squares(gram, [sum(1 / b for _, b in points), sum(a / b for a, b in points)])
    if factor < 1:  # it is not faster beside others: all else is delay
        factor = 1.0
        delay = max(0.0, sum((b - a) / b**2 for a, b in points) / gram[0][0])
    factor, delay = round(factor, 3), round(delay, 1)
    rows = (
        Contention(one.bytes, round(max(1.0, one.gemm), 3), round(max(1.0, one.copy), 3), factor, delay)
        for one in measured
    )
    return tuple(sorted(rows, key=lambda row: row.bytes))


Table = Mapping[str, Sequence[Contention]]
"""Kind of collective -> its rows, from the smallest message to the largest."""


def contention_at(table: Table, kind: str, size: float) -> Contention | None:
    """Returns the row for `size` bytes, between rows by the logarithm of the size; of another kind where `kind` was not
    measured; None for an empty table."""
    rows = table.get(kind) or next((rows for _, rows in sorted(table.items()) if rows), None)
    if not rows:
        return None
    above = next((row for row in rows if row.bytes >= size), rows[-1])
    below = next((row for row in reversed(rows) if row.bytes <= size), rows[0])
    if above.bytes <= below.bytes:  # on a row, or outside of all
        return replace(above, bytes=size)
    share = math.log(size / below.bytes) / math.log(above.bytes / below.bytes)

    def between(low: float, high: float) -> float:
        return low + share * (high - low)

    return Contention(
        size,
        between(below.gemm, above.gemm),
        between(below.copy, above.copy),
        between(below.collective, above.collective),
        between(below.delay_us, above.delay_us),
    )


def table_json(table: Table) -> dict[str, Any]:
    """Returns a table of factors as JSON has it: kind of collective -> list of rows."""
    return {kind: [asdict(row) for row in rows] for kind, rows in table.items()}


def read_table(data: Any) -> dict[str, tuple[Contention, ...]]:
    """Returns a JSON object's table. Raises TypeError, KeyError or ValueError that says what is wrong."""
    found = {}
    for kind, rows in data.items():
        read = [
            Contention(
                float(row["bytes"]),
                float(row["gemm"]),
                float(row["copy"]),
                float(row["collective"]),
                float(row.get("delay_us", 0.0)),
            )
            for row in rows
        ]
        if any(row.bytes <= 0 or min(row.gemm, row.copy, row.collective) < 1 or row.delay_us < 0 for row in read):
            raise ValueError(f"contention of {kind}: bytes are > 0, factors 1 or more, and delays 0 or more")
        found[str(kind)] = tuple(sorted(read, key=lambda row: row.bytes))
    return found

"""The options `fusion` and `max_fusion_size`. In: operations that might become one kernel. Out: would it do too much?

A kernel's size is the number of nodes of the graph, after decompositions, whose work the kernel does: the `origins` of
its operations.
"""

from __future__ import annotations

from typing import Any

from litz.ir import Operation


def most_operations(options: Any) -> int | None:
    """Returns how many nodes of the graph one kernel may compute by the options: 1 where fusion is off, None for no
    limit."""
    if not getattr(options, "fusion", True):
        return 1
    limit: int | None = getattr(options, "max_fusion_size", None)
    return limit


def exceeds(most: int | None, *operations: Operation) -> bool:
    """Returns whether one kernel for all these operations would compute more than `most` nodes of the graph."""
    return most is not None and len({name for operation in operations for name in operation.origins}) > most


def too_large(most: int | None) -> str:
    """Returns the reason on record for a kernel that would be too large."""
    return f"one kernel would do more than max_fusion_size={most} operations"

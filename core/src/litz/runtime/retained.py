"""Backwards that write over what the forward saved for them: a call that may come again is given copies.

In: the entry of a compiled backward, and which inputs it writes over. Out: an entry that leaves them as they were under
`backward(retain_graph=True)`, and wherever autograd does not say that the graph is freed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .compiled_graph import Entry
from .torch_runtime import graph_is_kept


def retaining(entry: Entry, overwritten: Sequence[int]) -> Entry:
    """Returns `entry`, which copies the inputs at `overwritten` first where `graph_is_kept`."""

    def call(args: list[Any]) -> tuple[Any, ...]:
        if graph_is_kept():
            for position in overwritten:
                args[position] = args[position].clone()
        return entry(args)

    return call

"""What runs a compiled graph, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Entry = Callable[[list[Any]], tuple[Any, ...]]
"""Runs a compiled graph: takes the list of its inputs, which the call empties, and returns its outputs."""


@dataclass(frozen=True)
class EntryFacts:
    """The facts of a compiled graph's entry, for a plugin that wraps it. Inputs and outputs go by their positions.

    graph: its name. devices: of its memory, such as "cuda:0". obstacle: why its launches cannot be recorded to be
    replayed at the same addresses, '' where they can. static: inputs that do not move from call to call, such as
    parameters. mutated: inputs that the graph writes. varying: inputs that are numbers, or whose sizes or strides may
    be others in another call. made: inputs of a backward that its forward made, and whose memory is free after their
    last use on the stream that calls the backward. returned_inputs: per output, the input that it is or lies in, None
    where its memory is the graph's own and may be lent. peak: the most bytes that temporaries and outputs take at a
    time. growth: how many of these the memory of inputs that die does not have.
    """

    graph: str = ""
    devices: tuple[str, ...] = ()
    obstacle: str = ""
    static: frozenset[int] = frozenset()
    mutated: frozenset[int] = frozenset()
    varying: frozenset[int] = frozenset()
    made: frozenset[int] = frozenset()
    returned_inputs: tuple[int | None, ...] = ()
    peak: int = 0
    growth: int = 0


__all__ = ["Entry", "EntryFacts"]

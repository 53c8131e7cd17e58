"""The graph passes that core runs on every Graph, before lowering: each is a record with a pure function.

The passes remove what nobody uses, and compute what frozen parameters alone decide. None may change a value (NaN and
-0.0 included), a dtype, a stride, what an output shares storage with, or what a random generator is asked for.
litz-passes has more.
"""

from __future__ import annotations

from litz.capture.passes.dead_code import eliminate_dead_code
from litz.capture.passes.freezing import fold_frozen
from litz_plugins.records import Pass


def default_graph_passes(freezing: bool = False) -> tuple[Pass, ...]:
    """Core's graph passes. A plugin's pass finds its place with `after` and `before` and these names.

    freezing: with the one for graphs whose parameters are constants.
    """
    frozen = (Pass("fold_frozen", "graph", fold_frozen, after=("eliminate_dead_code",)),) if freezing else ()
    return (*frozen, Pass("eliminate_dead_code", "graph", eliminate_dead_code))


__all__ = ["default_graph_passes", "eliminate_dead_code", "fold_frozen"]

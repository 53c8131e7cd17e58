"""The graph passes that core runs on every Graph, before lowering: each is a record with a pure function.

They remove what later stages would only have to see through: constants known now, ops that return their input, work
done twice, work nobody uses. None may change a value (NaN and -0.0 included), a dtype, a stride, what an output shares
storage with, or what a random generator is asked for. litz-passes has more.
"""

from __future__ import annotations

from litz.capture.passes.common_subexpressions import eliminate_common_subexpressions
from litz.capture.passes.constants import fold_constants
from litz.capture.passes.dead_code import eliminate_dead_code
from litz.capture.passes.freezing import fold_frozen
from litz.capture.passes.no_ops import remove_no_ops
from litz_plugins.records import Pass


def default_graph_passes(freezing: bool = False) -> tuple[Pass, ...]:
    """Core's graph passes. A plugin's pass finds its place with `after` and `before` and these names.

    freezing: with the one for graphs whose parameters are constants.
    """
    frozen = (Pass("fold_frozen", "graph", fold_frozen, after=("eliminate_dead_code",)),) if freezing else ()
    common = "eliminate_common_subexpressions"
    return (
        *frozen,
        Pass("fold_constants", "graph", fold_constants),
        Pass("remove_no_ops", "graph", remove_no_ops, after=("fold_constants",)),
        Pass(common, "graph", eliminate_common_subexpressions, after=("remove_no_ops",)),
        Pass("eliminate_dead_code", "graph", eliminate_dead_code, after=(common,)),
    )


__all__ = [
    "default_graph_passes",
    "eliminate_common_subexpressions",
    "eliminate_dead_code",
    "fold_constants",
    "fold_frozen",
    "remove_no_ops",
]

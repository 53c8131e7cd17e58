"""The graph passes that core runs on every Graph, before lowering: each is a record with a pure function.

They remove what later stages would only have to see through: constants known now, ops that return their input, work
done twice, work nobody uses. None may change a value (NaN and -0.0 included), a dtype, a stride, what an output shares
storage with, or what a random generator is asked for; but sums with products in them are rounded less often than in
eager.
"""

from __future__ import annotations

from litz.capture.passes.bias_gradients import split_bias_gradients
from litz.capture.passes.common_subexpressions import eliminate_common_subexpressions
from litz.capture.passes.constants import fold_constants
from litz.capture.passes.dead_code import eliminate_dead_code
from litz.capture.passes.fold_affine import fold_affine
from litz.capture.passes.freezing import fold_frozen
from litz.capture.passes.no_ops import remove_no_ops
from litz.capture.passes.place_constants import place_constants
from litz.capture.passes.sum_products import sum_products
from litz.capture.passes.sum_scatters import sum_scatters
from litz_plugins.records import Pass


def default_graph_passes(freezing: bool = False) -> tuple[Pass, ...]:
    """Core's graph passes. A plugin's pass finds its place with `after` and `before` and these names.

    freezing: with those for graphs whose parameters are constants.
    """
    frozen = (
        Pass("fold_frozen", "graph", fold_frozen, after=("eliminate_dead_code",)),
        Pass("fold_affine", "graph", fold_affine, after=("fold_frozen",)),
    )
    return (
        *(frozen if freezing else ()),
        Pass("fold_constants", "graph", fold_constants),
        Pass("place_constants", "graph", place_constants, after=("fold_constants",)),
        Pass("remove_no_ops", "graph", remove_no_ops, after=("place_constants",)),
        Pass("split_bias_gradients", "graph", split_bias_gradients, after=("remove_no_ops",)),
        Pass(
            "eliminate_common_subexpressions",
            "graph",
            eliminate_common_subexpressions,
            after=("split_bias_gradients",),
        ),
        Pass("sum_scatters", "graph", sum_scatters, after=("eliminate_common_subexpressions",)),
        Pass("eliminate_dead_code", "graph", eliminate_dead_code, after=("sum_scatters",)),
        Pass("sum_products", "graph", sum_products, after=("eliminate_dead_code",)),
    )


__all__ = [
    "default_graph_passes",
    "eliminate_common_subexpressions",
    "eliminate_dead_code",
    "fold_affine",
    "fold_constants",
    "fold_frozen",
    "place_constants",
    "remove_no_ops",
    "split_bias_gradients",
    "sum_products",
    "sum_scatters",
]

"""A plugin of litz: one pass over the Graph. `(a @ b) @ c` becomes `a @ (b @ c)` where that is less work."""

from __future__ import annotations

from litz_plugins import Pass, hookimpl


@hookimpl
def litz_register_passes(options):
    # Here, since `litz plugins` and the like load the plugin and need no compiler.
    from .cheaper_order import multiply_in_cheaper_order

    return [Pass("my_graph_pass_order", "graph", multiply_in_cheaper_order, after=("eliminate_dead_code",))]

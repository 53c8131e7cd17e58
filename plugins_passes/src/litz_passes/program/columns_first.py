"""Reductions whose values are short runs in memory, beside those of other outputs: columns are reduced first.

In and out: a Program. A loop (n, g | c, p) over a tensor whose c is contiguous, and g beside it, becomes (c, n, g | p)
and (n, g | c). Groups of channels, channels last, are such runs: a program of a GPU that reduces a group alone reads
parts of sectors.
"""

from __future__ import annotations

from litz.ir import Loop, Program
from litz.ir.index import ONE
from litz.schedule.estimate import CostModel
from litz.schedule.split import Part, obstacle, split_where_cheaper
from litz_plugins import PassContext

REASON = "an output's values are short runs in memory, beside those of other outputs"


def reduce_columns_first(program: Program, context: PassContext) -> Program:
    """Splits reductions of short runs into reductions of columns and their combination, where that is cheaper (a
    pass)."""
    return split_where_cheaper(program, context, lambda loop, costs: {"columns first": _runs(loop, costs)}, REASON)


def _runs(loop: Loop, costs: CostModel) -> tuple[Part, ...]:
    """The range whose values are runs with the runs of other outputs beside them, cut into its values; () if there is
    none."""
    fast = costs.fast_variable(loop)
    found = next((r for r in loop.reduction_ranges if r.var == fast), None)
    if found is None or len(loop.reduction_ranges) < 2 or "blocks" not in costs.target(loop.device).abilities:
        return ()
    size = costs.hint(found.size)
    runs = [access for access in loop.accesses if not access.is_store and found.var in access.symbols]
    beside = all(
        any(costs.stride(loop, access, r.var, costs.hint(r.size)) == size for r in loop.ranges) for access in runs
    )
    reduces = [node for node in loop.nodes if node.op == "reduce"]
    return () if size < 2 or not beside or obstacle(loop, reduces) else (Part(found, found.size, ONE, True),)

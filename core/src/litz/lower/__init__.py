"""Lowering: a `Graph` goes in, a `Program` comes out.

`lower.lower` walks the FX nodes; each op is looked up in a table of lowerings (`registry`), which make Loops through a
`LoweringContext`; what has none becomes an Extern (`fallback`). Nothing is fused here: that is the scheduler's work.

What this module exports is what a lowering in a plugin needs, and stays (docs/plugins/lowering.md).
"""

from .access import all_of, as_node, at_least, checked, compare, extents_of, inside, less_than, masked_load, used
from .context import Indices, LoweringContext
from .elementwise import broadcast_size, device_of, elementwise, load_broadcast, operand, scalar
from .fallback import fallback
from .indexing import advanced, along
from .lower import lower
from .promotion import result_type, to_float, to_int64
from .reduction import reduce_one, reduce_over
from .registry import Lowering, core_lowerings, find_op, lowering
from .shapes import meta_size
from .view import Computed, Position, Tensor, View, combined
from .views import canonical_dim, expand, reshape, unsqueeze

__all__ = [
    "Computed",
    "Indices",
    "Lowering",
    "LoweringContext",
    "Position",
    "Tensor",
    "View",
    "advanced",
    "all_of",
    "along",
    "as_node",
    "at_least",
    "broadcast_size",
    "canonical_dim",
    "checked",
    "combined",
    "compare",
    "core_lowerings",
    "device_of",
    "elementwise",
    "expand",
    "extents_of",
    "fallback",
    "find_op",
    "inside",
    "less_than",
    "load_broadcast",
    "lower",
    "lowering",
    "masked_load",
    "meta_size",
    "operand",
    "reduce_one",
    "reduce_over",
    "reshape",
    "result_type",
    "scalar",
    "to_float",
    "to_int64",
    "unsqueeze",
    "used",
]

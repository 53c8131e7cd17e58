"""Lowering: a `Graph` goes in, a `Program` comes out.

`lower.lower` walks the FX nodes; each op is looked up in a table of lowerings (`registry`), which make Loops through a
`LoweringContext`; what has none becomes an Extern (`fallback`). Nothing is fused here: that is the scheduler's work.

What this module exports is what a lowering in a plugin needs, and stays (docs/plugins/lowering.md).
"""

from .access import checked, masked_load
from .context import LoweringContext
from .elementwise import broadcast_size, device_of, elementwise, load_broadcast, scalar
from .fallback import fallback
from .lower import lower
from .promotion import result_type, to_float, to_int64
from .reduction import reduce_one, reduce_over
from .registry import Lowering, core_lowerings, find_op, lowering
from .view import Computed, Tensor, View
from .views import canonical_dim

__all__ = [
    "Computed",
    "Lowering",
    "LoweringContext",
    "Tensor",
    "View",
    "broadcast_size",
    "canonical_dim",
    "checked",
    "core_lowerings",
    "device_of",
    "elementwise",
    "fallback",
    "find_op",
    "load_broadcast",
    "lower",
    "lowering",
    "masked_load",
    "reduce_one",
    "reduce_over",
    "result_type",
    "scalar",
    "to_float",
    "to_int64",
]

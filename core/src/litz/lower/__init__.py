"""Lowering: a `Graph` goes in, a `Program` comes out.

`lower.lower` walks the FX nodes; each op is looked up in a table of lowerings (`registry`), which make Loops through a
`LoweringContext`; what has none becomes an Extern (`fallback`). Nothing is fused here: that is the scheduler's work.
"""

from .context import LoweringContext
from .lower import lower
from .registry import Lowering, core_lowerings, lowering
from .view import Computed, Tensor, View

__all__ = ["Computed", "Lowering", "LoweringContext", "Tensor", "View", "core_lowerings", "lower", "lowering"]

"""How many instructions a GPU issues for each node of a loop: what a value costs that is computed again.

In: a node. Out: a count, of the lanes' instructions. Figures are from Triton's SASS for sm_90 (libdevice, CUDA 12):
what is run where no argument is out of the ordinary. Functions of float32 are in the table; in 64 bits everything is
two to four instructions, for lanes are 32 bits wide. A conversion between integers and floats is one instruction of a
unit that has an eighth of the lanes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from litz.ir import Node
from litz.ir.ops import OPS
from litz.ir.reductions import REDUCTIONS

LOAD = 2
"""The instructions of an access whose address is a constant's distance from another's."""
GATHER = 8
"""The instructions of an access whose address is computed from data: a multiplication, 64-bit additions, and its lanes'
own transactions."""
CONVERSION = 8

FUNCTIONS: Mapping[str, int] = {
    "div": 10,
    "reciprocal": 9,
    "sqrt": 10,
    "rsqrt": 4,
    "exp": 8,
    "exp2": 4,
    **dict.fromkeys(("expm1", "log", "log2", "log10", "log1p", "erf"), 26),
    "sigmoid": 16,
    **dict.fromkeys(("tanh", "asin", "acos", "cosh", "hypot"), 20),
    **dict.fromkeys(("sin", "cos", "sinh", "atanh", "erfc", "erfinv"), 40),
    **dict.fromkeys(("tan", "atan", "atan2", "asinh", "acosh", "pow", "fmod", "remainder", "floordiv"), 70),
    "truncdiv": 12,
    "lgamma": 200,
}
"""The instructions of functions in float32."""
DIVISIONS = frozenset({"truncdiv", "floordiv", "remainder", "fmod"})
WIDE = (torch.int64, torch.uint64, torch.float64)


def instructions(node: Node) -> int:
    """Returns the instructions of one value; for a reduction, those that add one more value to the state."""
    if node.op == "reduce":
        return 4 if REDUCTIONS[node.attrs[0]].several else 1
    if node.op == "load":
        return GATHER if node.indirect else LOAD
    if node.op == "cast":
        return _cast(node)
    if node.op in ("index", "scan"):
        return 1
    if node.op not in OPS:
        return 0
    kind = node.args[0].dtype if node.args else node.dtype
    flops = OPS[node.op].flops
    if kind.is_floating_point:
        count = FUNCTIONS.get(node.op, flops)
    elif node.op in DIVISIONS:
        count = 20
    else:
        count = flops
    return count * 2 if kind in WIDE else count


def _cast(node: Node) -> int:
    source, target = node.args[0].dtype, node.dtype
    if source.is_floating_point == target.is_floating_point or torch.bool in (source, target):
        return 1
    return CONVERSION

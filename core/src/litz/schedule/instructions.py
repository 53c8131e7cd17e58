"""How many instructions a GPU issues for each node of a loop: what a value costs that is computed again.

In: a node, and the target. Out: a count, of the lanes' instructions. Functions of float32 are in a table; in 64 bits
everything is two to four instructions, for lanes are 32 bits wide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from litz.ir import Node
from litz.ir.ops import OPS
from litz.ir.reductions import REDUCTIONS
from litz.target import Room, figures_of
from litz_plugins import Target


@dataclass(frozen=True)
class InstructionFigures(Room):
    """The instructions of accesses, conversions and functions in float32: `target/figures/gpu/instructions.toml`."""

    table = "instructions"
    load_instructions: int
    gather_instructions: int
    conversion_instructions: int
    function_instructions: tuple[tuple[str, int], ...]

    @cached_property
    def of_functions(self) -> Mapping[str, int]:
        """Returns the instructions of functions, by the op's name."""
        return dict(self.function_instructions)


DIVISIONS = frozenset({"truncdiv", "floordiv", "remainder", "fmod"})
WIDE = (torch.int64, torch.uint64, torch.float64)


def instructions(node: Node, target: Target) -> int:
    """Returns the instructions of one value; for a reduction, those that add one more value to the state.
    target: a GPU's."""
    limits = figures_of(target, InstructionFigures)
    if node.op == "reduce":
        return 4 if REDUCTIONS[node.attrs[0]].several else 1
    if node.op == "load":
        return limits.gather_instructions if node.indirect else limits.load_instructions
    if node.op == "cast":
        return _cast(node, limits)
    if node.op in ("index", "scan"):
        return 1
    if node.op not in OPS:
        return 0
    kind = node.args[0].dtype if node.args else node.dtype
    flops = OPS[node.op].flops
    if kind.is_floating_point:
        count = limits.of_functions.get(node.op, flops)
    elif node.op in DIVISIONS:
        count = 20
    else:
        count = flops
    return count * 2 if kind in WIDE else count


def _cast(node: Node, limits: InstructionFigures) -> int:
    source, target = node.args[0].dtype, node.dtype
    if source.is_floating_point == target.is_floating_point or torch.bool in (source, target):
        return 1
    return limits.conversion_instructions

"""Scales of a product's operands. In: a contraction's arguments. Out: a `Scaling` for each operand that has scales.

    result[row, column] = sum over depth of  left * scale_a[row, depth] * right * scale_b[column, depth]

A scale is shared by all of an operand, by a row of it (a column of the right one), or by a block: 1 x 128 or 128 x 128
elements along (row, depth). Scales that do not vary along the depth are factors of the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from litz.ir import Program, TensorRef
from litz.ir.index import ZERO, Expr, floordiv, to_expr

from ..module import Unsuitable

BLOCK = 128
"""Edge of a block."""
NAMES = ("scale_a", "scale_b")
_ALL, _ROW = 0, 1
"""torch's numbers of the recipes that `_scaled_mm_v2` takes (torch.nn.functional.ScalingType) and kernels do."""


@dataclass(frozen=True)
class Scaling:
    """The scales of an operand. rows: how many of its rows (the right operand's columns) share one, None: all. depth:
    how many elements along the depth do, None: all. steps: from one to the next along each, in elements of the buffer.
    """

    ref: TensorRef
    rows: int | None = None
    depth: int | None = None
    steps: tuple[Expr, Expr] = (ZERO, ZERO)

    @property
    def in_blocks(self) -> bool:
        """Returns whether scales vary along the depth."""
        return self.depth is not None

    def position(self, row: Expr, block: Expr = ZERO) -> Expr:
        """Returns the position of a row's scale in its buffer. block: the number of the block along the depth."""
        along = row if self.rows in (None, 1) else floordiv(row, to_expr(self.rows))
        return self.ref.layout.offset + self.steps[0] * along + self.steps[1] * block


def scalings(arguments: Mapping[str, Any], program: Program, rows: tuple[Expr, Expr], depth: Expr) -> list[Scaling]:
    """Returns the scales of the left operand, of `rows[0]` rows, and of the right one, of `rows[1]` columns; [] where
    there are none. Errors: Unsuitable, for scales that no kernel does."""
    found = []
    for name, extent in zip(NAMES, rows, strict=True):
        given = arguments.get(name)
        if given is None:
            continue
        recipe = arguments.get(name.replace("scale", "recipe"))
        if recipe is not None:
            if len(given) != 1 or recipe[0] not in (_ALL, _ROW):
                raise Unsuitable(f"no template for scales in blocks (recipe {list(recipe)})")
            (given,) = given
        if program.buffers[given.buffer].dtype != torch.float32:
            raise Unsuitable(f"no template for a scale of {program.buffers[given.buffer].dtype}")
        found.append(_scaling(given, extent, depth, turned=name == NAMES[1], blocks=recipe is None))
    return found


def _scaling(ref: TensorRef, rows: Expr, depth: Expr, turned: bool, blocks: bool) -> Scaling:
    size, stride = ref.layout.size, ref.layout.stride
    several = [dim for dim, extent in enumerate(size) if extent != 1]
    if not several:
        return Scaling(ref)
    if len(several) == 1 and size[several[0]] == rows:
        (dim,) = several
        if not blocks or (len(size) == 2 and dim == int(turned)):
            return Scaling(ref, 1, None, (stride[dim], ZERO))
    if blocks and len(size) == 2 and depth.is_Integer and int(depth) % BLOCK == 0:
        own, along = (1, 0) if turned else (0, 1)
        steps = stride[own], stride[along]
        if size[along] == int(depth) // BLOCK:
            if size[own] == rows:
                return Scaling(ref, 1, BLOCK, steps)
            if rows.is_Integer and size[own] == -(-int(rows) // BLOCK):
                return Scaling(ref, BLOCK, BLOCK, steps)
    raise Unsuitable(f"no template for scales of size {[str(extent) for extent in size]}")

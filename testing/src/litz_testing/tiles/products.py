"""TilePrograms of matrix products (`litz_contractions.products.lines`), verified and run with torch.

What `rules.py` and `interpret.py` say of other TilePrograms holds here: lanes that masks leave out are poison, except
in what is multiplied, where they are 0; no two programs store one element; programs run in any order.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from litz.ir.dtypes import FLOAT8, HALF, compute_dtype, short
from litz.ir.index import Symbol, product
from litz.ir.ops import OPS
from litz.tiles import program as tile
from litz.tiles.program import Inside, TileProgram
from litz_contractions.products.blocks import most_ahead
from litz_contractions.products.kernel import PART
from litz_contractions.products.lines import Between, Blocks, Lanes, Panel, Parts, Planes, Scaled, Side, Steps
from litz_contractions.products.print import UNIT

from .interpret import Memory, TileError, _Kernel, _Program
from .rules import every, verify_tiles


def verify_product(program: TileProgram) -> Iterator[str]:
    """Yields a complaint for each rule that a product's TileProgram breaks."""
    yield from verify_tiles(program)
    (blocks,) = program.lines
    if not isinstance(blocks, Blocks):
        yield "a product has blocks"
        return
    yield from _zeros(blocks)
    yield from _shared(blocks)


def _zeros(blocks: Blocks) -> Iterator[str]:
    """An element outside of the depth is 0 in both tiles that are multiplied; both have the axis k, and the sum the
    others."""
    for steps in (line for line in blocks.body if isinstance(line, Steps)):
        zero: set[str] = set()
        for line, _ in every(steps.body):
            if isinstance(line, tile.Load) and line.zero and {Inside("k"), Inside("w")} & {*line.masks}:
                zero.add(line.value.text)
            elif isinstance(line, Panel):
                (zero.add if line.masked else zero.discard)(line.value.text)
            elif isinstance(line, Lanes) and line.of.text in zero:
                zero |= {value.text for value in line.values}
            elif isinstance(line, tile.Op) and line.op == "same" and getattr(line.args[0], "text", "") in zero:
                zero.add(line.value.text)
            elif isinstance(line, tile.Dot):
                left, right = line.left.axes, line.right.axes
                if left & right != {"k"} or left ^ right != line.into.axes:
                    yield f"{line.left.text} and {line.right.text} do not make {line.into.text} along k"
                short = [each.text for each in (line.left, line.right) if each.text not in zero]
                yield from (f"{name} is multiplied outside of the depth" for name in short if not steps.whole)


def _shared(blocks: Blocks) -> Iterator[str]:
    """Programs that share a block store at different places, but for the last of them."""
    if blocks.split > 1:
        for line in blocks.body:
            if isinstance(line, tile.Store) and PART not in line.access.offset.free_symbols:
                yield f"programs of one block store {line.access.buffer} at one place"


def interpret_product(
    program: TileProgram, memory: Memory, sizes: Mapping[Symbol, int] | None = None, order: int = 0
) -> None:
    """Runs all programs of a product's kernel, in an order that `order` shuffles. See `interpret_tiles`."""
    kernel = _Kernel(program, memory, dict(sizes or {}))
    (blocks,) = program.lines
    assert isinstance(blocks, Blocks)
    row, column = program.tiling.axes
    rows = row.step * -(-kernel.size(row.size) // (row.step * row.block))
    columns = -(-(kernel.size(column.size) + most_ahead(row.step)) // column.block)
    count = rows * columns
    for r in blocks.batch:
        count *= kernel.size(r.size)
    numbers = list(range(count * blocks.split))
    random.Random(order).shuffle(numbers)
    parts: dict[int, int] = {}
    for number in numbers:
        _Product(kernel, program, blocks, (rows, columns), number, parts).run()


class _Product(_Program):
    """One program of a product; a persistent one is as many as it has blocks. parts: how many of a block are there."""

    def __init__(
        self,
        kernel: _Kernel,
        program: TileProgram,
        blocks: Blocks,
        counts: tuple[int, int],
        number: int,
        parts: dict[int, int],
    ) -> None:
        super().__init__(kernel, program, number // blocks.split, 0, number)
        self.blocks_of, self.counts, self.parts = blocks, counts, parts
        self.part, self.walk = number % blocks.split, (0, 0)
        self.steps: Steps | None = None

    def run(self) -> None:
        """Runs the body for the program's block."""
        (row, column), (rows, columns), group = self.tiling.axes, self.counts, self.blocks_of.group
        outer, number = divmod(self.column, rows * columns)
        self._unravel(torch.tensor(outer), self.blocks_of.batch)
        first = number // (group * columns) * group
        height = min(rows - first, group)
        across, down = divmod(number % (group * columns), height)
        place, ahead = first + down, 0
        self.env[PART] = self.part
        if row.step > 1:
            ahead = place % row.step * self.blocks_of.apart % self.blocks_of.units
        index = (place // row.step * row.block + self._along(row)) * row.step + place % row.step
        self._position(row, index)
        self._position(column, across * column.block + self._along(column) - ahead)
        self.lines(self.blocks_of.body)

    def mask(self, masks: Any) -> torch.Tensor:
        """The lanes where all masks hold."""
        found = super().mask([mask for mask in masks if not isinstance(mask, Between)])
        for mask in masks:
            if isinstance(mask, Between):
                at = self.position(mask.expr)
                found = found & (at >= 0) & (at < self.kernel.size(mask.size))
        return found

    def _steps(self, line: Steps) -> None:
        for value in line.values:
            self.give(value, torch.zeros(self.shape(value.axes), dtype=value.dtype))
        size, start = self.kernel.size(product(r.size for r in line.ranges)), 0
        end, split = size, self.blocks_of.split
        if split > 1:
            length = -(-size // (split * line.block)) * line.block
            start, end = self.part * length, min((self.part + 1) * length, size)
        self.lines(line.before)
        for offset in range(start, end, line.block):
            self.steps, self.walk = line, (offset, end)
            self.lines(line.body)

    def _side(self, line: Side) -> None:
        own = copy.copy(self)
        own.tiling, own.dims = line.tiling, {axis.name: dim for dim, axis in enumerate(line.tiling.axes)}
        own.env, own.masks = dict(self.env), dict(self.masks)
        (offset, end), steps = self.walk, self.steps
        for axis in line.tiling.axes:
            if axis.name == "d":
                own._position(axis, own._along(axis))
            elif axis.name in "kw" and steps is not None:
                times = axis.block // steps.block
                along = own._along(axis)
                own.masks[axis.name] = times * offset + along < times * end
                if axis.name == "k":
                    own._unravel(offset + along, steps.ranges)
                else:
                    inner = max(1, self.kernel.size(steps.ranges[-1].size))
                    first = offset % inner if steps.uniform else offset
                    own.env[axis.ranges[0].var] = times * first + along
        if steps is not None and steps.uniform:
            varying = {r.var: own.env[r.var] for r in steps.ranges if r in steps.uniform and r.var in own.env}
            others = {r.var: own.env[r.var] for r in steps.ranges if r not in steps.uniform and r.var in own.env}
            own._unravel(torch.tensor(offset), steps.ranges)
            if "k" in own.dims and any(bool((varying[var] != own.env[var]).any()) for var in varying):
                raise TileError(f"a block at {offset} has several values of {list(varying)}")
            own.env.update(others)
        own.lines(line.body)

    def _panel(self, line: Panel) -> None:
        value, dtype = self.operand(line.of).expand(self.shape(line.value.axes)), line.value.dtype
        value = value.contiguous().view(dtype) if dtype in FLOAT8 else value.to(dtype)
        if line.masked:
            mask = self.masks["w" if "w" in self.dims else "k"]
            value = torch.where(mask, value.to(compute_dtype(dtype)), 0)
        self.give(line.value, value)

    def _lanes(self, line: Lanes) -> None:
        dim, every = self.dims["w"], self.values[line.of.text]
        for lane, value in enumerate(line.values):
            places = torch.arange(lane, every.shape[dim], len(line.values))
            self.values[value.text] = every.index_select(dim, places)

    def _planes(self, line: Planes) -> None:
        dtype = line.values[0].dtype
        if line.of is not None:
            found = [self.operand(line.of)]
        else:
            assert line.access is not None
            mask = self.mask(line.masks)
            two = replace(line.access, offset=2 * line.access.offset)
            flat, places = self.kernel.flat(two.buffer), self._places(two, mask, reads=True)
            found = [torch.where(mask, flat[places + byte], 0) for byte in (0, 1)]
        if line.kind == "nibbles":
            made = [UNIT[dtype] + half.to(torch.float32) for each in found for half in (each & 15, each >> 4)]
        elif line.kind in ("signed", "unsigned"):
            made = [each.to(torch.float32) for each in found]
        else:
            (kind,) = (each for each in FLOAT8 if short(each) == line.kind or str(each).endswith(line.kind))
            made = [each.contiguous().view(kind).to(torch.float32) for each in found]
        for value, number in zip(line.values, made, strict=True):
            self.give(value, number.expand(self.shape(value.axes)))

    def _op(self, line: tile.Op) -> None:
        if "k" in line.value.axes and "k" not in self.dims:  # another name for a lane
            (lane,) = line.args
            self.values[line.value.text] = self.values[lane.text]  # type: ignore[union-attr]
            return
        if not line.near.startswith("half"):
            super()._op(line)
            return
        args, dtype, kind = [self.operand(arg) for arg in line.args], line.value.dtype, line.near[5:]
        if kind == "less" and line.args[0].dtype not in HALF:
            args[0] = args[0].to(torch.float32) + UNIT[dtype]
        if line.op == "decode":
            (float8,) = (each for each in FLOAT8 if short(each) == kind)
            found = args[0].contiguous().view(float8).to(torch.float32)
        elif line.op == "cast":
            found = args[0].to(dtype)
        else:
            found = OPS[line.op].torch(*(arg.to(torch.float32) for arg in args) if kind == "less" else args)
        found = found.to(dtype) if dtype in HALF else found
        self.give(line.value, found.expand(torch.broadcast_shapes(found.shape, *(arg.shape for arg in args))))

    def _scaled(self, line: Scaled) -> None:
        self.give(line.into, self.values[line.into.text] + self.values[line.of.text] * self.operand(line.by))

    def _reduce(self, line: tile.Reduce) -> None:
        if "d" not in self.dims:
            super()._reduce(line)
            return
        (arg,) = line.args
        value = self.operand(arg.of if isinstance(arg, tile.Filled) else arg)
        value = torch.where(self.masks["d"], value, 0) if isinstance(arg, tile.Filled) else value
        self.values[line.values[0].text] = value.sum().reshape(1, 1)

    def _parts(self, line: Parts) -> None:
        flat, total = self.kernel.flat(line.buffer), self.values[line.into.text]
        first = self.column * line.split * total.numel()
        mask = torch.ones_like(total, dtype=torch.bool)
        for axis in self.tiling.axes:
            mask = mask & self.masks[axis.name]
        places = first + torch.arange(line.split * total.numel()).reshape(line.split, *total.shape)
        if int(places.max()) >= flat.numel():
            raise TileError(f"{line.buffer} has {flat.numel()} elements, and {int(places.max())} is stored")
        flat[places[self.part][mask]] = total[mask]
        self.parts[self.column] = self.parts.get(self.column, 0) + 1
        if self.parts[self.column] == line.split:
            found = torch.where(mask, flat[places], 0)
            self.give(line.into, found.sum(0, dtype=total.dtype))
            self.lines(line.body)


__all__ = ["interpret_product", "verify_product"]

"""A matrix product's kernel: in, a `Gemm` and a `Config`; out, a `KernelSource` of Triton text.

A program makes one tile of the result: it walks along k with operands coming through shared memory, and then runs the
epilogue on its accumulator. The epilogue's text is core's own code generator's (`litz.targets.triton`): the tile's
rows are its axis y, the columns its axis x, and the batch is a scalar. Where the epilogue reduces rows, a tile has
whole rows: they are the axis x then, and the columns the axis r.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from sympy import ceiling

from litz.ir import Buffer, Loop, Node, Program, Range
from litz.ir.dtypes import short
from litz.ir.index import ONE, Expr, Symbol, stride_of
from litz.ir.index import product as product_of
from litz.ir.node import walk
from litz.ir.ops import OPS
from litz.targets.triton.dialect import ELEMENTS, FLOAT8_TYPES, POINTER_TYPES
from litz.targets.triton.text import IndexText, size_text
from litz.tiles.program import Value
from litz.tiles.shape import Axis, Tiling
from litz_plugins import KernelSource

from ..epilogue import ROW_SUM, SUMS
from ..module import write_module
from ..tile import Tile, write_axis
from . import half_tile
from .apart import most_ahead, write_apart
from .configs import Config
from .descriptors import descriptor_texts
from .gemm import Gemm, Operand, Product
from .half_tile import HalfTile
from .interleaved import WIDE, split_lines, wide_position, wide_prologue
from .plan import GemmPlan, make_plan
from .row_factor import add_row, load_row
from .tiles import tiles_of

MOST_UNROLLED = 4
"""Steps along the depth up to which a loop may be unrolled as a whole."""


def write_gemm(
    gemm: Gemm,
    config: Config,
    program: Program,
    name: str,
    partial: str | None = None,
    plan: GemmPlan | None = None,
    workspace: str | None = None,
) -> KernelSource:
    """Returns the kernel of a product. plan: of this product, if it is there already.

    Where `config` splits k, one of two buffers takes the partial sums. partial: its dimensions are (part, batch, m, n),
    and the epilogue is left to someone else. workspace: of `workspace_size` elements; the last program of a tile adds
    its parts up, in their order, and runs the epilogue.
    """
    plan = plan or make_plan(gemm, program, partial or workspace, bool(workspace))
    return _Writer(gemm, config, program, name, partial, workspace, plan).source()


def _float8(dtype: torch.dtype) -> str:
    """Triton's type."""
    return f"tl.{FLOAT8_TYPES[dtype].replace('fp8', 'float8')}"


@dataclass(frozen=True)
class _Side:
    """An operand in the text: its tile's name, its pointers', how the depth is spread over it, its own axis, and which
    of the products with this sum it is of."""

    name: str
    pointer: str
    operand: Operand
    expand: str
    shape: str
    axis: str
    lane: int = 0


@dataclass
class _Writer:
    gemm: Gemm
    config: Config
    program: Program
    name: str
    partial: str | None
    workspace: str | None
    plan: GemmPlan

    def __post_init__(self) -> None:
        gemm, config, plan = self.gemm, self.config, self.plan
        self.splits = self.partial is not None or self.workspace is not None
        self.uniform: frozenset[Symbol] = frozenset()
        self.outside: dict[str, dict[Node, Value]] = {}
        self.loop, self.row, self.column, self.names = plan.loop, plan.row, plan.column, plan.names
        self.index_type, self.limits = plan.index_type, plan.limits
        axes = Axis(self.row, gemm.rows, config.m), Axis(self.column, gemm.columns, config.n)
        self.tiling = Tiling(axes, config.warps, persistent=bool(self.loop.reduction_ranges))
        self.tile = Tile(self.loop, self.program.buffers, self.tiling, self.names, self.index_type)

    # The text.

    def source(self) -> KernelSource:
        self._write_sizes()
        if self.config.apart > 1:
            write_apart(self.tile, self.gemm, self.plan, self.config, self.program, self._precision())
        elif self.config.programs:
            self._write_persistent()
        else:
            self.tile.emit("number = tl.program_id(0)")
            self._write_part()
            self._write_place()
            row = load_row(self.gemm, self.plan, self.program, self.config.warps, self.tile)
            self._write_sum()
            self._write_finish()
            if row is not None:
                add_row(row, self.tile)
            self._write_stores()
        return write_module(
            self.name,
            self._symbol(),
            f"matrix product: {self.config}",
            self.tile.lines,
            self.names,
            self.program,
            self.loop.writes,
            (self.index_type, [*self.limits, *self.tile.limits]),
            self._launch(),
            self._pointer_type,
        )

    def _symbol(self) -> str:
        """Returns the kernel's name, which profiles show, such as "litz_gemm_bf16_128x256x64_relu"."""
        config = self.config
        ops = [node.op for node in self.loop.nodes if node.op in OPS]
        made = [o.prologue for p in self.gemm.products for o in (p.left, p.right) if o.prologue is not None]
        parts = ["litz_gemm", short(self.gemm.dtype), f"{config.m}x{config.n}x{config.k}"]
        parts += [f"split{config.split}"] if config.split > 1 else []
        parts += ["tma"] if config.programs else []
        parts += [f"apart{config.apart}"] if config.apart > 1 else []
        parts += (
            ["of", *dict.fromkeys(node.op for loop in made for node in loop.nodes if node.op in OPS)] if made else []
        )
        return "_".join([*parts, *list(dict.fromkeys(ops))[:4]])

    def _text(self, expr: Expr) -> str:
        return IndexText(self.names.index_names, {})(expr)

    def _blocks(self, size: Expr, block: int, apart: int = 1) -> str:
        whole = size.is_Integer
        return str(apart * ceiling(size / apart / block)) if whole else f"tl.cdiv({self._text(size)}, {block})"

    def _write_sizes(self) -> None:
        emit, config, gemm = self.tile.emit, self.config, self.gemm
        emit(f"{self.row.upper()}BLOCK: tl.constexpr = {config.m}")
        emit(f"{self.column.upper()}BLOCK: tl.constexpr = {config.n}")
        emit(f"KBLOCK: tl.constexpr = {config.k}")
        emit(f"rows = {self._blocks(gemm.m, config.m, config.apart)}")
        emit(f"columns = {self._blocks(gemm.n + most_ahead(config.apart), config.n)}")

    def _write_part(self) -> None:
        """Which part of the depth: programs of one tile are neighbours."""
        if self.splits:
            wide = "" if self.index_type == "tl.int32" else f".to({self.index_type})"
            self.tile.emit(f"part = (number % {self.config.split}){wide}")
            self.tile.emit(f"number = number // {self.config.split}")
        if self.workspace is not None:
            self.tile.emit("whole = number")

    def _write_finish(self) -> None:
        """Store this part of the sum; the program that is last to do so for its tile adds up all parts, in order."""
        if self.workspace is None:
            return
        emit, config, tile = self.tile.emit, self.config, self.tile
        row, column = f"{self.row.upper()}BLOCK", f"{self.column.upper()}BLOCK"
        masks = " & ".join(tile.tile_mask((self.row, self.column)))
        mask = f", mask={masks}" if masks else ""
        emit(f"inside = tl.arange(0, {row})[:, None] * {column} + tl.arange(0, {column})[None, :]")
        emit(f"parts = {self.names.buffers[self.workspace]} + whole * {config.split * config.m * config.n} + inside")
        emit(f"tl.store(parts + part * {config.m * config.n}, accumulator{mask})")
        emit("# Every thread has stored before this program is counted, and whoever counts the last sees it all.")
        emit("tl.debug_barrier()")
        emit(f'if tl.atomic_add(counters + whole, 1, sem="acq_rel") == {config.split - 1}:')
        tile.depth += 1
        self._write_zeros()
        emit(f"for part in range({config.split}):")
        other = ", other=0" if masks else ""
        emit(f'    accumulator += tl.load(parts + part * {config.m * config.n}{mask}{other}, cache_modifier=".cg")')

    def _write_place(self) -> None:
        """Which tile `number` is. Tiles are walked in groups of rows, so that both operands stay in the L2."""
        emit, config, gemm = self.tile.emit, self.config, self.gemm
        wide = "" if self.index_type == "tl.int32" else f".to({self.index_type})"
        if gemm.batch:
            emit("outer = number // (rows * columns)")
            emit("number = number % (rows * columns)")
        for position, r in reversed(list(enumerate(gemm.batch))):
            size = self._text(r.size)
            emit(f"batch{position} = {'outer' if position == 0 else f'(outer % {size})'}{wide}")
            if position > 0:
                emit(f"outer = outer // {size}")
        emit(f"first = number // ({config.group} * columns) * {config.group}")
        emit(f"height = tl.minimum(rows - first, {config.group})")
        emit(f"inside = number % ({config.group} * columns)")
        for axis, place, expand in zip(
            self.tiling.axes, ("first + inside % height", "inside // height"), ("[:, None]", "[None, :]")
        ):
            block = f"{axis.name.upper()}BLOCK"
            write_axis(self.tile, axis, f"({place}){wide} * {block} + tl.arange(0, {block}){expand}")

    def _write_persistent(self) -> None:
        """A program for each multiprocessor, which walks over tiles: the loads of the next overlap with the stores of
        the last. Operands come through descriptors, which fill with 0 what lies outside."""
        tile = self.tile
        (product,) = self.gemm.products
        texts = {side: descriptor_texts(self.gemm, self.plan, side) for side in ("left", "right")}
        for name, (descriptor, _) in texts.items():
            tile.emit(f"{name} = {descriptor}")
        count = "rows * columns" + "".join(f" * {r.size}" for r in self.gemm.batch)
        tile.emit(f"for number in tl.range(tl.program_id(0), {count}, {self.config.programs}, flatten=True):")
        tile.depth += 1
        self._write_place()
        self._write_zeros()
        tile.emit(f"top = (first + inside % height) * {self.row.upper()}BLOCK")
        tile.emit(f"side = inside // height * {self.column.upper()}BLOCK")
        tile.emit(f"for offset in range(0, {self._text(product.k)}, KBLOCK):")
        tile.depth += 1
        tile.emit(f"a = {texts['left'][1]}")
        tile.emit(f"b = {texts['right'][1]}")
        tile.emit(f"accumulator = tl.dot(a, b, accumulator{self._precision()})")
        tile.depth -= 1
        self._write_stores()
        tile.depth -= 1

    def _write_zeros(self) -> None:
        shape = self.tile.shape((self.row, self.column))
        for name in SUMS[: 1 + any(product.second for product in self.gemm.products)]:
            self.tile.emit(f"{name} = tl.zeros({shape}, {ELEMENTS[self.gemm.accumulate]})")

    def _write_sum(self) -> None:
        emit = self.tile.emit
        self._write_zeros()
        emit(f"depth = tl.arange(0, KBLOCK){'' if self.index_type == 'tl.int32' else f'.to({self.index_type})'}")
        walks: list[list[Product]] = []
        for product in self.gemm.products:
            if product.joins:
                walks[-1].append(product)
            else:
                walks.append([product])
        for number, products in enumerate(walks):
            self._write_walk(products, number)

    def _write_walk(self, products: Sequence[Product], number: int) -> None:
        """Products that share a depth, in one walk along it."""
        tile, config, first = self.tile, self.config, products[0]
        self.uniform = frozenset(r.var for r in first.depth if self._is_uniform(r, first))
        start, end = "0", self._text(first.k)
        if self.splits:
            tile.emit(f"length = tl.cdiv({end}, {config.split * config.k}) * KBLOCK")
            tile.emit("start = (part * length).to(tl.int32)")
            tile.emit(f"end = tl.minimum(start + length, {end})")
            start, end = "start", "end"
        elif first.k.is_Integer and int(first.k) > MOST_UNROLLED * config.k:
            # Always times one, which ptxas does not know: it unrolls a loop of known length for up to four seconds.
            tile.emit(f"end = {end} * tl.num_programs(1)")
            end = "end"
        whole = first.k.is_Integer and int(first.k) % config.k == 0  # each step is within the depth
        lanes = [sum(each.second == p.second for each in products[:at]) for at, p in enumerate(products)]
        pairs = [self._sides(p, number, lane) for lane, p in zip(lanes, products, strict=True)]
        firsts, shared = [p for p in products if not p.second], "b" if self.gemm.turned else "a"
        together = wide_position(firsts, self.gemm.turned)
        plain = [s for pair in pairs for s in pair if not s.operand.prologue and not (together and s.name == shared)]
        steps = {s.pointer: self._step(s.operand, first) for s in plain}
        for pair in pairs:
            for side in pair:
                if steps.get(side.pointer):
                    depth = f"depth{side.expand}" if start == "0" else f"({start} + depth{side.expand})"
                    tile.emit(f"{side.pointer} = {self._pointer(side, {first.depth[0].var: depth})}")
        if together is not None:
            expand = "[:, None]" if self.gemm.turned else "[None, :]"
            tile.emit(f"wide = tl.arange(0, {len(firsts)} * KBLOCK){expand}")
        for pair in pairs:
            for side in pair:
                self._write_outside(side, first)
        tile.emit(f"for offset in range({start}, {end}, KBLOCK):")
        tile.depth += 1
        made: dict[str, Tile] = {}
        if together is not None:
            self._write_interleaved(together, firsts, "" if whole else end)
        for lane, p, pair in zip(lanes, products, pairs, strict=True):
            for side in pair:
                if together is not None and side.name == shared:
                    tile.emit(f"{shared} = lane{side.lane}")
                    continue
                if side.operand.prologue is not None:
                    left = "" if whole else f"{end} - offset"
                    self._write_prologue(side, side.operand.prologue, first, left, made)
                    continue
                masks = [f"{side.axis}mask"] if self._masked(side.axis) else []
                masks += [] if whole else [f"(depth{side.expand} < {end} - offset)"]
                pointer = side.pointer
                if not steps[side.pointer]:
                    names = self._write_depth(side, first)
                    masks += self._inside(side.operand, names)
                    pointer = self._pointer(side, names)
                none = "0.0" if side.operand.dtype in FLOAT8_TYPES else "0"
                mask = f", mask={' & '.join(masks)}, other={none}" if masks else ""
                tile.emit(f"{side.name} = tl.load({pointer}{mask})")
            total, block, own = SUMS[p.second], f"block{'2' * p.second}", pair[-1].name
            operands = f"{own}, b" if self.gemm.turned else f"a, {own}"
            if p.scale is None:
                tile.emit(f"{total} = tl.dot({operands}, {total}{self._precision()})")
            else:
                tile.emit(f"{block} = tl.dot({operands}{f', {block}' if lane else ''})")
        for p in (p for lane, p in zip(lanes, products, strict=True) if lane == 0):
            if p.scale is not None:
                self._write_scaled(p, self._write_depth(pairs[0][0], first))
        for pointer, step in steps.items():
            if step:
                tile.emit(f"{pointer} += {step}")
        tile.depth -= 1

    def _sides(self, product: Product, number: int, lane: int) -> tuple[_Side, ...]:
        """The operands to load for a product, its own last: a product of the second sum shares the other."""
        row, column, own = f"{self.row.upper()}BLOCK", f"{self.column.upper()}BLOCK", "2" * product.second
        mark, turned = f"_{lane}{own and '_2'}", self.gemm.turned
        a = _Side("a", f"left{number}", product.left, "[None, :]", f"{row}, KBLOCK", self.row, lane)
        b = _Side("b", f"right{number}", product.right, "[:, None]", f"KBLOCK, {column}", self.column, lane)
        a, b = (replace(side, pointer=side.pointer + mark) for side in (a, b))
        shared, kept = (b, a) if turned else (a, b)
        kept = replace(kept, name=kept.name + own)
        return (kept,) if product.second else (shared, kept)

    def _write_scaled(self, product: Product, depth: Mapping[Symbol, str]) -> None:
        """Add the products of this step, which is within a block of the depth, times the scale of the block."""
        if not self.uniform:
            raise ValueError(f"steps of {self.config.k} are not within one block of scales")
        scale, own = product.scale, "2" * product.second
        assert scale is not None
        names = replace(self.names, variables={**self.names.variables, **depth})
        made = Tile(scale, self.program.buffers, self.tiling, names, self.index_type, prefix=f"scale{own}")
        made.depth = self.tile.depth
        (store,) = scale.stores
        made.compute([store.value])
        self.tile.lines += made.lines
        self.tile.limits += made.limits
        self.tile.emit(f"{SUMS[product.second]} += block{own} * {made.get(store.value).text}")

    def _write_interleaved(self, position: Expr, products: Sequence[Product], end: str) -> None:
        """The left operands of products that are walked together, by one load. end: of the depth, "" where every step
        is a whole one."""
        tile, first, count = self.tile, products[0], len(products)
        turned = self.gemm.turned
        side = replace(self._sides(first, 0, 0)[0], pointer="")
        names = self._write_depth(side, first)
        inner = first.depth[-1].size
        start = "offset" if not self.uniform else f"(offset % {inner})" if inner != self.config.k else ""
        names[WIDE] = f"({count} * {start} + wide)" if start else "wide"
        within = f"({count} * offset + wide < {count} * {end})" if end else ""
        loop = wide_prologue(products, turned)
        if loop is not None:
            self._write_wide_prologue(side, loop, names, count, within)
        else:
            text = IndexText({**self.names.index_names, **names}, {})(position)
            masks = [f"{side.axis}mask"] if self._masked(side.axis) else []
            masks += [within] if within else []
            mask = f", mask={' & '.join(masks)}, other=0" if masks else ""
            tile.emit(f"every = tl.load({self.names.buffers[side.operand.buffer]} + {text}{mask})")
        tile.emit(*split_lines("every", f"{side.axis.upper()}BLOCK", count, turned))

    def _write_wide_prologue(
        self, side: _Side, loop: Loop, names: Mapping[Symbol, str], count: int, within: str
    ) -> None:
        """The same where the operand is made on its way. within: a mask of the depth, "" where every step is whole."""
        across = self.tiling.axis(side.axis)
        assert across is not None
        wide = Axis("w", tuple(r for r in loop.ranges if r.var == WIDE), count * self.config.k)
        own = replace(self.names, variables={**self.names.variables, **names, WIDE: "w0"})
        axes = (wide, across) if self.gemm.turned else (across, wide)
        made = Tile(loop, self.program.buffers, Tiling(axes, self.config.warps), own, self.index_type, prefix="wide")
        made.depth = self.tile.depth
        made.emit(f"WBLOCK: tl.constexpr = {wide.block}", f"w0 = {names[WIDE]}")
        if within:
            made.emit(f"wmask = {within}")
        (store,) = loop.stores
        made.compute([store.value])
        value = made.full(store.value, frozenset(("w", side.axis)))
        value = f"tl.where(wmask, {value}, 0)" if within else value
        made.emit(f"every = {value}.to({ELEMENTS[side.operand.dtype]})")
        self.tile.lines += made.lines
        self.tile.limits += made.limits

    def _tile(self, side: _Side, prologue: Loop, product: Product, names: Mapping[Symbol, str], prefix: str) -> Tile:
        """A tile of its own for a prologue: its axes are the depth's and one of the result's."""
        across = self.tiling.axis(side.axis)
        assert across is not None
        depth = Axis("k", tuple(r for r in product.depth if r.var not in self.uniform), self.config.k)
        axes = (across, depth) if side.axis == self.row else (depth, across)
        tile = (HalfTile if half_tile.pays(prologue) else Tile)(
            prologue,
            self.program.buffers,
            Tiling(axes, self.config.warps),
            replace(self.names, variables=dict(names)),
            self.index_type,
            prefix=prefix,
        )
        tile.depth = self.tile.depth
        if isinstance(tile, HalfTile) and side.operand.words:
            tile.words = frozenset(name for name in prologue.reads if not self.program.is_unaligned(name))
        return tile

    def _write_outside(self, side: _Side, product: Product) -> None:
        """Which rows a prologue gathers, before the walk: they are the same at each step."""
        prologue = side.operand.prologue
        if prologue is None or not any(node.indirect for node in prologue.loads):
            return
        along = {r.var for r in product.depth}
        positions = walk(*(position for node in prologue.loads for position in node.indirect))
        outside = [node for node in positions if along.isdisjoint(prologue.variables[node]) and node.op != "const"]
        tile = self._tile(side, prologue, product, self.names.variables, f"{side.name}row")
        tile.values.update(self.outside.get(side.name, {}))
        tile.compute(outside)
        self.tile.lines += tile.lines
        self.tile.limits += tile.limits
        self.outside[side.name] = dict(tile.values)

    def _write_prologue(self, side: _Side, prologue: Loop, product: Product, left: str, made: dict[str, Tile]) -> None:
        """An operand's tile as it is made. left: how much of the depth is left, "" where every step is a whole one.
        made: the tiles of this step so far, by side: what the products of a walk share is computed once."""
        tile = made.get(side.name)
        if tile is None:
            names = {**self.names.variables, **self._write_depth(side, product)}
            tile = self._tile(side, prologue, product, names, side.name)
            tile.values.update(self.outside.get(side.name, {}))
            if left:
                tile.emit(f"kmask = depth{side.expand} < {left}")
            made[side.name] = tile
        (store,) = prologue.stores
        tile.compute([store.value])
        dtype = side.operand.dtype
        value = tile.full(store.value, frozenset(("k", side.axis)), stored=dtype in FLOAT8_TYPES)
        if left:
            value = f"tl.where(kmask, {value}, 0).to({ELEMENTS[dtype]})"
        own = "" if isinstance(tile, HalfTile) else f".to({ELEMENTS[dtype]})"
        if dtype in FLOAT8_TYPES:
            own += f".to({_float8(dtype)}, bitcast=True)"
        tile.emit(f"{side.name} = {value}{own}")
        self.tile.lines += tile.lines
        self.tile.limits += tile.limits
        tile.lines, tile.limits = [], []

    def _step(self, operand: Operand, product: Product) -> str:
        """Returns how much the pointers of an operand grow from one step along the depth to the next; '' if they have
        to be computed anew."""
        if len(product.depth) != 1 or operand.inside:
            return ""
        stride = stride_of(operand.position, product.depth[0].var)
        if stride is None:
            return ""
        return str(int(stride) * self.config.k) if stride.is_Integer else f"KBLOCK * {self._text(stride)}"

    def _is_uniform(self, r: Range, product: Product) -> bool:
        """Does a variable of the depth have one value in all of a step? Steps begin at multiples of KBLOCK."""
        inner = product_of(each.size for each in product.depth[product.depth.index(r) + 1 :])
        return r != product.depth[-1] and bool(inner.is_Integer) and int(inner) % self.config.k == 0

    def _write_depth(self, side: _Side, product: Product) -> dict[Symbol, str]:
        """The depth's variables at this step, as text."""
        names: dict[Symbol, str] = {}
        inner: Expr = ONE
        for position, r in reversed(list(enumerate(product.depth))):
            index = "offset" if r.var in self.uniform else f"(offset + depth{side.expand})"
            text = index if inner == 1 else f"({index} // {self._text(inner)})"
            if self.uniform and r == product.depth[-1] and int(r.size) % self.config.k == 0:
                # Contiguous and at a multiple of KBLOCK, which `%` hides from the compiler.
                start = "" if r.size == self.config.k else f"tl.multiple_of(offset % {r.size}, KBLOCK) + "
                text = f"({start}depth{side.expand})"
            elif position > 0:
                text = f"({text} % {self._text(r.size)})"
            name = f"{side.name}k{position}"
            self.tile.emit(f"{name} = {text}")
            names[r.var] = name
            inner = inner * r.size
        return names

    def _inside(self, operand: Operand, names: Mapping[Symbol, str]) -> list[str]:
        found = []
        for expr, size in operand.inside:
            text = IndexText({**self.names.index_names, **names}, {})(expr)
            found += [f"({text} >= 0)", f"({text} < {self._text(size)})"]
        return found

    def _masked(self, axis: str) -> bool:
        record = self.tiling.axis(axis)
        assert record is not None
        return record.masked

    def _precision(self) -> str:
        if self.gemm.accumulate == torch.int32:
            return ", out_dtype=tl.int32"
        if self.gemm.dtype == torch.float32:
            return ', input_precision="tf32"' if self.gemm.tf32 else ', input_precision="ieee"'
        return ""

    def _pointer(self, side: _Side, names: Mapping[Symbol, str]) -> str:
        """The tile of pointers of an operand, spread over the whole tile."""
        position = side.operand.position
        text = IndexText({**self.names.index_names, **names}, {})(position)
        axis = self.tiling.axis(side.axis)
        assert axis is not None
        along = [{r.var for r in axis.ranges}, set(names) - self.uniform]
        if any(position.free_symbols.isdisjoint(variables) for variables in along):
            text = f"({text} + tl.zeros([{side.shape}], {self.index_type}))"
        base, dtype = self.names.buffers[side.operand.buffer], side.operand.dtype
        if dtype in FLOAT8_TYPES and side.operand.buffer in self._as_values:
            base = f"{base}.to(tl.pointer_type({_float8(dtype)}), bitcast=True)"
        return f"{base} + {text}"

    @cached_property
    def _as_values(self) -> frozenset[str]:
        """Buffers that the code generator's loops load from or store to, where float8 are bytes."""
        operands = [o for p in self.gemm.products for o in (p.left, p.right)]
        loops = [self.loop, *(o.prologue for o in operands if o.prologue is not None)]
        return frozenset(name for loop in loops for name in (*loop.reads, *loop.writes))

    def _pointer_type(self, buffer: Buffer) -> str:
        if buffer.dtype in FLOAT8_TYPES and buffer.name not in self._as_values:
            return f"*{FLOAT8_TYPES[buffer.dtype]}"
        return POINTER_TYPES[buffer.dtype]

    def _write_stores(self) -> None:
        tile = self.tile
        for node in self.loop.loads:
            if node.buffer in SUMS:
                tile.give(node, node.buffer, (self.row, self.column))
            elif node.buffer == ROW_SUM:
                tile.give(node, node.buffer)
        tile.body()

    # For the launcher.

    def _launch(self) -> dict[str, Any]:
        grid = " * ".join(
            [f"(-(-{size_text(size, self.names.sizes)} // {block}))" for size, block in self._grid()]
            + [size_text(self.gemm.count, self.names.sizes), str(self.config.split if self.splits else 1)]
        )
        if self.config.programs:
            grid = f"min({tiles_of(self.gemm, self.config) if self.config.apart > 1 else grid}, {self.config.programs})"
        static = all(size.is_Integer for size in (self.gemm.count, self.gemm.m, self.gemm.n))
        return {
            "counters": int(tiles_of(self.gemm, self.config)) if self.workspace else 0,
            "num_warps": self.config.warps,
            "num_stages": self.config.stages,
            "grid": int(eval(grid, {})) if static else grid,
        }

    def _grid(self) -> tuple[tuple[Expr, int], ...]:
        return (self.gemm.m, self.config.m), (self.gemm.n, self.config.n)


__all__ = ["write_gemm"]

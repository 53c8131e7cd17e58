"""A matrix product's kernel: in, a `Gemm` and a `Config`; out, its TileProgram, and the `KernelSource` printed from it.

A program makes one tile of the result: it walks along k with operands coming through shared memory, and then runs the
epilogue on its accumulator. The epilogue's lines are core's own (`litz.tiles.make`): the tile's rows are its axis y,
the columns its axis x, and the batch is a scalar. Where the epilogue reduces rows, a tile has whole rows: they are the
axis x then, and the columns the axis r. An operand's tile has the axis k and one of the result's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import sympy
import torch

from litz.ir import Buffer, Layout, Loop, Node, Program, Range, Store
from litz.ir.dtypes import short
from litz.ir.index import ONE, ZERO, Expr, Symbol, flat_index, to_expr
from litz.ir.index import product as product_of
from litz.ir.node import walk
from litz.ir.ops import OPS
from litz.targets.triton.dialect import FLOAT8_TYPES, POINTER_TYPES
from litz.targets.triton.text import size_text
from litz.targets.triton.tile_shape import power_of_two
from litz.tiles import program as tile
from litz.tiles.make import Maker
from litz.tiles.program import Access, Const, Inside, Line, Load, Mask, TileProgram, Value
from litz.tiles.shape import Axis, Tiling
from litz_plugins import KernelSource

from ..epilogue import ACCUMULATOR, ROW_SUM, STAND_INS, SUMS
from ..module import Naming, name_kernel, write_module
from . import half_tile
from .blocks import tiles_of, units_of
from .configs import Config
from .gemm import Gemm, Operand, Product
from .half_tile import HalfMaker
from .lanes import WIDE, wide_operand
from .lines import Between, Blocks, Lanes, Panel, Parts, Scaled, Side, Steps
from .print import ProductPrinter

PART = sympy.Symbol("part", integer=True, nonnegative=True)
"""Which part of the depth a program has."""


@dataclass(frozen=True)
class GemmPlan:
    """The plan that all configurations of a kernel share: the flat loop of its stores, the names of its two axes, and
    all names."""

    loop: Loop
    row: str
    column: str
    naming: Naming


def make_plan(gemm: Gemm, program: Program, parts: str | None = None, finishes: bool = False) -> GemmPlan:
    """Returns the plan of a product's kernels. parts: the buffer of partial sums, if there is one. finishes: does the
    kernel add them up itself?"""
    loop = _stored(gemm, program, None if finishes else parts)
    # A row that is reduced lies along core's axis r, whole.
    row, column = ("x", "r") if loop.reduction_ranges else ("y", "x")
    loaded = [node.buffer for node in loop.loads if node.buffer not in STAND_INS]
    read = [name for p in gemm.products for name in p.reads]
    read += () if gemm.row_terms is None else gemm.row_terms.reads
    touched = [*read, *loaded, *(store.buffer for store in loop.stores), *([parts] if parts else [])]
    exprs = [*(e for p in gemm.products for e in p.expressions), *loop.expressions]
    variables: dict[Symbol, str] = {PART: "part"}
    for prefix, ranges in ((row, gemm.rows), (column, gemm.columns), ("batch", gemm.batch)):
        variables |= {r.var: f"{prefix}{number}" for number, r in enumerate(ranges)}
    for product in gemm.products:
        variables |= {r.var: f"k{number}" for number, r in enumerate(product.depth)}
    return GemmPlan(loop, row, column, name_kernel(program, touched, variables, gemm.sizes, exprs))


def _stored(gemm: Gemm, program: Program, partial: str | None) -> Loop:
    """Returns what is done with the accumulator, in flat form: the epilogue, or the store of a partial sum."""
    loop = gemm.epilogue.flat(program)
    if partial is None:
        return loop
    ranges = (Range(PART, ONE), *gemm.batch, *gemm.rows, *gemm.columns)
    steps = Layout.contiguous(tuple(r.size for r in ranges)).stride
    position = flat_index(tuple(r.var for r in ranges), steps, ZERO)
    value = next(node for node in loop.loads if node.buffer == ACCUMULATOR)
    return replace(loop, stores=(Store(partial, (position,), value),))


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
    made = _Maker(gemm, config, program, workspace, plan, partial is not None or workspace is not None)
    tiles = made.tiles()
    return write_module(
        name,
        made.symbol(),
        f"matrix product: {config}",
        lambda *given: ProductPrinter(*given, as_values=made.as_values),
        tiles,
        program,
        plan.loop.writes,
        config,
        made.grid(),
        int(tiles_of(gemm, config)) if workspace else 0,
        made.pointer_type,
    )


class _Maker:
    def __init__(
        self, gemm: Gemm, config: Config, program: Program, workspace: str | None, plan: GemmPlan, splits: bool
    ) -> None:
        self.gemm, self.config, self.program, self.workspace, self.plan = gemm, config, program, workspace, plan
        self.split = config.split if splits else 1
        self.uniform: tuple[Range, ...] = ()
        self.outside: dict[str, dict[Node, Value]] = {}
        self.limits: list[Expr] = []
        self.extents = {**plan.loop.extents, **{r.var: r.size for p in gemm.products for r in p.depth}}
        self.extents[PART] = to_expr(config.split)
        self.loop, self.names = plan.loop, plan.naming.names
        axes = Axis(plan.row, gemm.rows, config.m, step=config.apart), Axis(plan.column, gemm.columns, config.n)
        self.row, self.column = axes
        self.tiling = Tiling(axes, config.warps, bool(self.loop.reduction_ranges), gemm.batch)
        self.positions = plan.naming.positions
        seconds = any(product.second for product in gemm.products)
        axes_of = frozenset((plan.row, plan.column))
        self.sums = tuple(Value(name, gemm.accumulate, axes_of) for name in SUMS[: 1 + seconds])
        self.precision = ("tf32" if gemm.tf32 else "ieee") if gemm.dtype == torch.float32 else ""
        operands = [o for p in gemm.products for o in (p.left, p.right)]
        loops = [self.loop, *(o.prologue for o in operands if o.prologue is not None)]
        self.as_values = frozenset(name for loop in loops for name in (*loop.reads, *loop.writes))
        """Buffers that loops load from or store to, where float8 are bytes."""

    def tiles(self) -> TileProgram:
        """Returns the product's TileProgram."""
        gemm, config = self.gemm, self.config
        main = Maker(self.loop, self.program.buffers, self.tiling, self.positions)
        for node in self.loop.loads:
            if node.buffer in (*SUMS, ROW_SUM):
                axes = frozenset[str]() if node.buffer == ROW_SUM else self.sums[0].axes
                main.values[node] = Value(node.buffer, node.dtype, axes)
        row, row_sum = self._row()
        body: list[Line] = [*row, *self._walks()]
        last = [*row_sum(), *main.block(main.body)]
        units, apart = 1, 0
        if config.apart > 1:  # tiles begin ahead of their rows, and reach beyond them
            units, apart = units_of(gemm, self.loop, self.program)
            masks = tuple(map(Inside, (self.row.name, self.column.name)))
            last = [replace(line, masks=masks) if isinstance(line, tile.Store) else line for line in last]
        body += last if self.workspace is None else [Parts(self.workspace, self.sums[0], config.split, tuple(last))]
        lines = (Blocks(gemm.batch, config.group, self.split, config.programs, units, apart, tuple(body)),)
        limits = (*self.limits, *main.limits)
        return self.plan.naming.tiles(self.tiling, self.program, self.extents, lines, limits)

    def symbol(self) -> str:
        """Returns the kernel's name, which profiles show, such as "litz_gemm_bf16_128x256x64_relu"."""
        config = self.config
        ops = [node.op for node in self.loop.nodes if node.op in OPS]
        made = [o.prologue for p in self.gemm.products for o in (p.left, p.right) if o.prologue is not None]
        parts = ["litz_gemm", short(self.gemm.dtype), f"{config.m}x{config.n}x{config.k}"]
        parts += [f"split{config.split}"] if config.split > 1 else []
        parts += ["tma"] if config.programs else []
        parts += [f"apart{config.apart}"] if config.apart > 1 else []
        parts += ["of"] * bool(made)
        parts += dict.fromkeys(node.op for loop in made for node in loop.nodes if node.op in OPS)
        return "_".join([*parts, *list(dict.fromkeys(ops))[:4]])

    # The walks along k.

    def _walks(self) -> list[Line]:
        products = self.gemm.products
        starts = [*(n for n, product in enumerate(products) if not product.joins), len(products)]
        return [self._walk(products[start:end], start == 0) for start, end in pairwise(starts)]

    def _walk(self, products: Sequence[Product], first: bool) -> Steps:
        """Products that share a depth, in one walk along it."""
        depth, turned = products[0].depth, self.gemm.turned
        self.uniform = tuple(r for r in depth if self._is_uniform(r, products[0]))
        steps = Steps(self.sums if first else (), depth, self.config.k, self.uniform, (), ())
        lanes = [sum(each.second == p.second for each in products[:at]) for at, p in enumerate(products)]
        firsts, shared = [p for p in products if not p.second], "b" if turned else "a"
        together = wide_operand(self.gemm, firsts)
        makers: dict[str, Maker] = {}
        operands = [self._operands(p) for p in products]
        before = [line for each in operands for name in each for line in self._before(name, each[name], steps)]
        body: list[Line] = [] if together is None else [self._interleaved(together, firsts, shared, steps)]
        for lane, p, sides in zip(lanes, products, operands, strict=True):
            for name, operand in sides.items():
                if together is not None and name == shared:
                    value = self._panel(name, operand.dtype)
                    body.append(tile.Op(value, "same", (replace(value, text=f"lane{lane}"),)))
                elif operand.prologue is None:
                    body.append(self._loaded(name, operand, steps, lane))
                else:
                    body.append(self._made(name, operand, operand.prologue, steps, makers))
            own = list(sides)[-1]
            left, right = (own, "b") if turned else ("a", own)
            values = self._panel(left, p.left.dtype), self._panel(right, p.right.dtype)
            if p.scale is None:
                body.append(tile.Dot(self.sums[p.second], *values, self.precision))
            else:
                body.append(tile.Dot(self._block(p), *values, new=not lane))
        for lane, p in zip(lanes, products, strict=True):
            if p.scale is not None and lane == 0:
                body += self._scaled(p, p.scale, shared)
        return replace(steps, before=tuple(before), body=tuple(body))

    def _operands(self, product: Product) -> dict[str, Operand]:
        """The operands to load for a product, its own last: a product of the second sum shares the other."""
        sides = {"a": product.left, "b": product.right}
        shared, kept = ("b", "a") if self.gemm.turned else ("a", "b")
        return {f"{kept}2": sides[kept]} if product.second else {shared: sides[shared], kept: sides[kept]}

    def _block(self, product: Product) -> Value:
        return replace(self.sums[product.second], text=f"block{'2' * product.second}")

    def _is_uniform(self, r: Range, product: Product) -> bool:
        """Returns whether a variable of the depth has one value in a whole step. Steps begin at multiples of KBLOCK."""
        inner = product_of(each.size for each in product.depth[product.depth.index(r) + 1 :])
        return r != product.depth[-1] and bool(inner.is_Integer) and int(inner) % self.config.k == 0

    # Operands.

    def _across(self, name: str) -> Axis:
        return self.row if name.startswith("a") else self.column

    def _panel(self, name: str, dtype: torch.dtype) -> Value:
        return Value(name, dtype, frozenset((self._across(name).name, "k")))

    def _tiling(self, name: str, along: Axis) -> Tiling:
        axes = (self.row, along) if name.startswith("a") else (along, self.column)
        return Tiling(axes, self.config.warps)

    def _variables(self, name: str, depth: Sequence[Range]) -> dict[Symbol, str]:
        return {**self.names.variables, **{r.var: f"{name}k{n}" for n, r in enumerate(depth)}}

    def _side(self, name: str, maker: Maker, variables: Mapping[Symbol, str], opens: bool = True) -> Side:
        """Returns what a maker has made since the last time, as lines of a side."""
        lines, maker.made = tuple(maker.made), []
        self.limits += maker.limits
        maker.limits = []
        halves = isinstance(maker, HalfMaker)
        return Side(name, maker.tiling, variables, maker.loop.extents, lines, opens, halves=halves)

    def _loaded(self, name: str, operand: Operand, steps: Steps, lane: int) -> Side:
        """An operand that lies in memory."""
        across, value = self._across(name), self._panel(name, operand.dtype)
        along = {r.var for r in across.ranges}, {r.var for r in steps.ranges} - {r.var for r in self.uniform}
        spread = any(operand.position.free_symbols.isdisjoint(variables) for variables in along)
        masks: list[Mask] = [Inside(across.name)] if across.masked else []
        masks += [] if steps.whole else [Inside("k")]
        masks += [Between(expr, size) for expr, size in operand.inside]
        load = Load(value, Access(operand.buffer, operand.position, (), value.axes, spread), tuple(masks), zero=True)
        tiling = self._tiling(name, Axis("k", steps.ranges, steps.block))
        return Side(name, tiling, self._variables(name, steps.ranges), self.extents, (load,), lane=lane)

    def _maker(self, name: str, operand: Operand, prologue: Loop, steps: Steps, prefix: str) -> Maker:
        """A maker of its own for a prologue: its axes are the depth's and one of the result's."""
        depth = Axis("k", tuple(r for r in steps.ranges if r not in self.uniform), steps.block)
        kind = HalfMaker if half_tile.pays(prologue) else Maker
        maker = kind(prologue, self.program.buffers, self._tiling(name, depth), self.positions, prefix)
        if isinstance(maker, HalfMaker) and operand.words:
            maker.words = frozenset(name for name in prologue.reads if not self.program.is_unaligned(name))
        maker.values.update(self.outside.get(name, {}))
        return maker

    def _before(self, name: str, operand: Operand, steps: Steps) -> list[Side]:
        """Returns the side that finds the rows that a prologue gathers, before the walk: each step has the same."""
        prologue = operand.prologue
        if prologue is None or not any(node.indirect for node in prologue.loads):
            return []
        along = {r.var for r in steps.ranges}
        positions = walk(*(position for node in prologue.loads for position in node.indirect))
        outside = [node for node in positions if along.isdisjoint(prologue.variables[node]) and node.op != "const"]
        maker = self._maker(name, operand, prologue, steps, f"{name}row")
        maker.compute(outside)
        self.outside[name] = dict(maker.values)
        return [self._side(name, maker, self.names.variables, opens=False)]

    def _made(self, name: str, operand: Operand, prologue: Loop, steps: Steps, makers: dict[str, Maker]) -> Side:
        """An operand's tile as it is made. makers: of this step so far, by side: what the products of a walk share is
        computed once."""
        opens = name not in makers
        maker = makers[name] = makers.get(name) or self._maker(name, operand, prologue, steps, name)
        (store,) = prologue.stores
        maker.compute([store.value])
        value = self._panel(name, operand.dtype)
        held = maker.held(store.value) if operand.dtype in FLOAT8_TYPES else maker.operand(store.value)
        maker.put(Panel(value, _spread(held, value), not steps.whole))
        return self._side(name, maker, self._variables(name, steps.ranges), opens)

    def _interleaved(self, loop: Loop, products: Sequence[Product], name: str, steps: Steps) -> Side:
        """The shared operands of products that are walked together, made by one load. loop: what makes them all."""
        operand, across, count = self._operands(products[0])[name], self._across(name), len(products)
        every = Value("every", operand.dtype, frozenset(("w", across.name)))
        values = (Value(f"lane{n}", operand.dtype, frozenset((across.name, "k"))) for n in range(count))
        (store,), (wide,) = loop.stores, (r for r in loop.ranges if r.var == WIDE)
        tiling = self._tiling(name, Axis("w", (wide,), count * steps.block))
        lies = store.value.op == "load"
        maker = (HalfMaker if lies else Maker)(loop, self.program.buffers, tiling, self.positions, "wide")
        if lies:
            access, masks = maker.loaded(store.value)
            maker.put(Load(every, access, masks, zero=bool(masks)))
        else:
            maker.compute([store.value])
            maker.put(Panel(every, _spread(maker.operand(store.value), every), not steps.whole))
        maker.put(Lanes(tuple(values), every))
        return self._side(name, maker, {**self._variables(name, steps.ranges), WIDE: "w0"})

    def _scaled(self, product: Product, scale: Loop, name: str) -> list[Line]:
        """The products of a step, which is within a block of the depth, times the scale of the block."""
        if not self.uniform:
            raise ValueError(f"steps of {self.config.k} are not within one block of scales")
        maker = Maker(scale, self.program.buffers, self.tiling, self.positions, f"scale{'2' * product.second}")
        (store,) = scale.stores
        maker.compute([store.value])
        by = maker.operand(store.value)
        into = self.sums[product.second]
        return [self._side(name, maker, self._variables(name, product.depth)), Scaled(into, self._block(product), by)]

    # A row that the kernel sums for its epilogue: loaded before the walk, summed behind it.

    def _row(self) -> tuple[list[Line], Any]:
        if self.gemm.row_terms is None:
            return [], list
        loop = self.gemm.row_terms
        axis = Axis("d", loop.ranges, power_of_two(int(loop.ranges[0].size)))
        variables = {**self.names.variables, loop.ranges[0].var: "d0"}
        maker = HalfMaker(loop, self.program.buffers, Tiling((axis,), self.config.warps), self.positions, "row")
        maker.compute([node for node in loop.nodes if node.op == "load"])
        first = self._side("row", maker, variables)

        def last() -> list[Line]:
            (store,) = loop.stores
            maker.compute([store.value])
            found = maker.operand(store.value)
            arg = tile.Filled(found, Const(0.0, torch.float32), found.dtype) if axis.masked else found
            maker.put(tile.Reduce((Value(ROW_SUM, torch.float32),), "sum", "plain", (arg,)))
            return [self._side("row", maker, variables, opens=False)]

        return [first], last

    # For the launcher.

    def pointer_type(self, buffer: Buffer) -> str:
        """Returns Triton's type of a buffer's argument."""
        if buffer.dtype in FLOAT8_TYPES and buffer.name not in self.as_values:
            return f"*{FLOAT8_TYPES[buffer.dtype]}"
        return POINTER_TYPES[buffer.dtype]

    def grid(self) -> int | str:
        """Returns how many programs a launch has."""
        gemm, config, sizes = self.gemm, self.config, self.names.sizes
        tiles = tiles_of(gemm, config) * self.split
        if tiles.is_Integer:
            return min(int(tiles), config.programs or int(tiles))
        blocks = ((gemm.m, config.m), (gemm.n, config.n))
        counts = [f"(-(-{size_text(size, sizes)} // {block}))" for size, block in blocks]
        return " * ".join([*counts, size_text(gemm.count, sizes), str(self.split)])


def _spread(value: tile.Operand, like: Value) -> tile.Operand:
    return value if value.axes >= like.axes else tile.Spread(value, like.axes, value.dtype)

"""What all kernels of attention have in common: a program's tile of rows, its operands and results, and the walk along
what the rows meet. In: a plan and `Tiles`. Out: a TileProgram, and the `KernelSource` that is printed from it.

The walk is over the blocks that a mask lists, between the bounds that its comparisons say (`masks.py`), over a part of
the keys, or over all there is; with the mask where it leaves something out, and with a mask of positions where a tile
may reach beyond the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

import sympy
import torch

from litz.ir import Range, TensorRef
from litz.ir.index import ZERO, Symbol, floordiv, to_expr
from litz.targets.triton.text import size_text
from litz.tiles.program import Access, Dot, Inside, Line, Load, Op, Operand, Store, Value
from litz.tiles.shape import Axis, Tiling
from litz_plugins import KernelSource

from ..module import Naming, write_module
from ..products.lines import Side
from . import lines as own
from .arithmetic import ScoreMaker, apart_positions
from .bodies import AT, BATCH, HEAD, KEY, QUERY
from .lines import PART, SHARED, TILE
from .masks import Bounds
from .near import near_forms
from .operation import Blocks
from .plan import SharedPlan, access_of
from .print import AttentionPrinter
from .tiles import Tiles

NOWHERE = Bounds()
Sizes = Sequence[Sequence[int]]


def head_parts(name: str, width: int, sizes: Sequence[int]) -> tuple[own.Part, ...]:
    """Returns the parts of a head of `width` elements, of these sizes; their names begin with `name`."""
    found = enumerate(zip(accumulate(sizes, initial=0), sizes))

    def part(number: int, start: int, block: int) -> own.Part:
        var = Symbol(f"{name}{number}", integer=True, nonnegative=True)
        return own.Part(f"{name}{number}", (Range(var, to_expr(min(block, width - start))),), block, start=start)

    return tuple(part(number, start, block) for number, (start, block) in found)


class AttentionMaker:
    """The lines of a kernel. holds: "query" or "key", what a program has a tile of. apart, hides: see `lines.Over` and
    `lines.Limits`. shares: are the batches no programs of their own, as all share the keys?"""

    holds = "query"
    apart = hides = shares = False

    def __init__(self, plan: SharedPlan, tiles: Tiles, blocks: Blocks | None, naming: Naming, widths: Sizes):
        """blocks: of the mask that is walked. widths: the sizes of the parts of a key, and then of a value."""
        self.plan, self.attention, self.bodies, self.config = plan, plan.attention, plan.bodies, tiles
        self.blocks, self.names = blocks, naming.names
        attention, loop = plan.attention, plan.bodies.loop
        self.batches, self.heads, queries, keys = attention.size
        grains = (None, None) if blocks is None else (blocks.queries, blocks.keys)
        ranges = {"query": (Range(QUERY, queries), tiles.rows), "key": (Range(KEY, keys), tiles.keys)}
        sides = {
            which: own.Cut("y" if which == self.holds else "x", (r,), block, grain=grain)
            for (which, (r, block)), grain in zip(ranges.items(), grains, strict=True)
        }
        self.rows = sides.pop(self.holds)
        (self.walked,) = sides.values()
        head = Range(HEAD, self.heads) if self.holds == "query" else Range(SHARED, attention.key.layout.size[1])
        if tiles.parts:  # all heads that share one of the key are rows
            self.rows = replace(self.rows, ranges=(Range(HEAD, attention.group), *self.rows.ranges))
        batches = () if self.shares else (Range(BATCH, self.batches),)
        self.pieces = batches if tiles.parts else (*batches, head)
        self.programs = attention.key.layout.size[1] if tiles.parts else head.size
        """The heads that programs share out."""
        self.depth, self.across = (
            head_parts(name, width, sizes) for name, width, sizes in zip("de", plan.widths, widths, strict=True)
        )
        parts = (*self.depth, *self.across)
        self.maker = ScoreMaker(loop, plan.program.buffers, self._tiling(), naming.positions)
        self.maker.near = near_forms(plan.dtype, plan.bodies.score, plan.bodies.factor, plan.bodies.gradient)
        self.maker.apart = apart_positions(loop, self.walked.ranges[0].var)
        self.put, self.late = self.maker.put, plan.bodies.late
        own_heads = {SHARED: attention.key.layout.size[1], PART: to_expr(max(1, tiles.parts))}
        self.extents = {**dict(zip(AT, attention.size, strict=True)), **own_heads}
        self.extents |= {part.var: to_expr(part.end) for part in parts}
        self.variables = {**self.names.variables, SHARED: "shared", PART: "part", **{e.var: e.name for e in parts}}
        self.naming = replace(naming, names=replace(self.names, variables=self.variables))

    def kernel(
        self, name: str, symbol: str, note: str, written: Sequence[str], counters: int | None = None
    ) -> KernelSource:
        """Returns the kernel. written: the buffers that it writes. symbol, note, counters: see `write_module`."""
        config, maker, names = self.config, self.maker, self.names
        group, back = self.attention.group, self.holds == "query"
        line = own.Programs(maker.block(self.lines), self.programs, group, back, config.parts)
        made = self.naming.tiles(maker.tiling, self.plan.program, self.extents, (line,), maker.limits)
        batches = to_expr(1) if self.shares else self.batches
        grid = [self.rows.tiles, self.programs, batches, to_expr(max(1, config.parts))]
        texts = " * ".join(f"({size_text(size, names.sizes)})" for size in grid)
        count = int(sympy.prod(grid)) if all(size.is_Integer for size in grid) else texts
        program = self.plan.program
        return write_module(name, symbol, note, AttentionPrinter, made, program, written, config, count, counters)

    def lines(self) -> None:
        """Adds the lines."""
        raise NotImplementedError

    # Operands and results.

    def _tiling(self, *axes: Axis) -> Tiling:
        return Tiling(axes or (self.rows, self.walked), self.config.warps, pieces=self.pieces)

    def _access(self, ref: TensorRef, axes: Sequence[Axis], *outer: Symbol) -> Access:
        """The elements of (batch, head, row, element of a head) along axes: of the key's heads for its rows."""
        along = next(axis for axis in axes if not isinstance(axis, own.Part)).ranges[-1].var
        inner = (along, *(axis.var for axis in axes if isinstance(axis, own.Part)))
        head = SHARED if along == KEY else HEAD
        return access_of(ref, (*outer, BATCH, head), inner, frozenset(axis.name for axis in axes))

    def _begins(self, name: str, ref: TensorRef, head: Symbol, *outer: Symbol) -> None:
        """Adds where an operand or a result begins, for the head of a program."""
        inner = (ZERO,) * (len(ref.layout.size) - 2 - len(outer))
        self.put(own.Begins(name, access_of(ref, (*outer, BATCH, head), inner)))

    def _masks(self, axes: Sequence[Axis]) -> tuple[Inside, ...]:
        return tuple(Inside(axis.name) for axis in sorted(axes, key=lambda axis: axis.name not in TILE) if axis.masked)

    def _side(self, name: str, axes: Sequence[Axis], *lines: Line) -> None:
        self.put(Side(name, self._tiling(*axes), self.variables, self.extents, lines))

    def _load(self, name: str, ref: TensorRef, *axes: Axis) -> Value:
        """Adds the load of a tile of an operand, in the type that is multiplied in. Of a part of a head the name has
        the number."""
        access, stored = self._access(ref, axes), self.plan.program.buffers[ref.buffer].dtype
        value = Value(name, stored, access.axes)
        lines: list[Line] = [Load(value, access, self._masks(axes), zero=True)]
        if stored != self.plan.dtype:
            lines.append(Op(replace(value, dtype=self.plan.dtype), "cast", (value,)))
        self._side(name.rstrip("0123456789"), axes, *lines)
        return replace(value, dtype=self.plan.dtype)

    def _store(self, name: str, ref: TensorRef, value: Value, *axes: Axis, outer: Sequence[Symbol] = ()) -> None:
        """Adds the store of a tile of a result, or of a number for each row, of what the program has a tile of."""
        access = self._access(ref, axes, *outer)
        masks = tuple(self._stored if mask == Inside("y") else mask for mask in self._masks(axes))
        line = Store(access, value, masks, "set", access.axes)
        self._side(name, axes, line) if len(axes) > 1 else self.put(line)

    @property
    def _stored(self) -> Inside:
        """The mask of the rows that this program stores."""
        return own.InBlock("y") if self.rows.is_cut else Inside("y")

    def _product(self, name: str, left: Value, right: Value, turned: bool = False, new: bool = True) -> Value:
        """Adds the product of a tile of rows and one of what is walked. turned: whose axes change places before."""
        if turned:
            given, right = right, replace(right, text=f"{right.text}turned")
            self.put(Op(right, "same", (given,), "turned"))
        value = Value(name, torch.float32, TILE)
        self.put(Dot(value, left, right, self.plan.precision, new=new))
        return value

    # The walk.

    def _hoist(self, *fixed: Symbol) -> None:
        self.maker.hoist((self.bodies.mask, self.bodies.score, self.bodies.gradient), self.late, fixed)

    def _walk(
        self,
        step: Callable[[bool], None],
        bounds: Bounds = NOWHERE,
        seen: Bounds = NOWHERE,
        state: tuple[Value, ...] = (),
    ) -> None:
        """Over what is walked, with the lines of `step(masked)`. bounds: of what the mask shows. seen: of what weighs
        anything beside what these show; beyond them a walk goes where a row of `state` has seen nothing."""
        masked, over = self.bodies.mask is not None, partial(self._over, step)
        if self.blocks is not None:
            for counts, indices, every in self.blocks.lists:
                over("listed", masked and not every, counts=counts, indices=indices)
        elif self.config.parts:
            self.put(own.Limits("parts"))
            over("within", masked)
        elif bounds:
            self.put(own.Limits("between", bounds.lower, bounds.upper, bounds.exact))
            # In the order of keys, ptxas would wait after each instruction of the tensor cores (CUDA 12.8, causal
            # masks).
            if not bounds.exact:
                over("within", masked)
                return
            if bounds.lower:
                over("enter", masked)
            if bounds.upper or self.walked.masked:
                over("leave", masked)
            over("open", False, inner=True)
        elif seen.upper:
            # What is masked weighs nothing beside any other score, but in a row of nothing else all keys count.
            self.put(own.Limits("seen", upper=seen.upper))
            over("seen", masked)
            over("unseen", masked, state=state)
        else:
            self.put(own.Limits("all", hides=self.hides))
            if floordiv(self.walked.size, sympy.Integer(self.walked.block)) != 0:
                over("whole", masked, inner=True)
            if self.walked.masked:
                over("rest", masked)

    def _over(
        self,
        step: Callable[[bool], None],
        which: str,
        masked: bool,
        inner: bool = False,
        state: tuple[Value, ...] = (),
        **lists: TensorRef,
    ) -> None:
        kept, self.walked = self.walked, replace(self.walked, inner=inner)
        self.maker.tiling = self._tiling()
        body = self.maker.inner(partial(step, masked))
        self.put(own.Over(which, self.maker.tiling, body, state, **lists, apart=self.apart))
        self.walked = kept
        self.maker.tiling = self._tiling()

    def _shown(self, masked: bool, outside: bool = True) -> tuple[Operand | Inside, ...]:
        """Returns the conditions under which an element of the tile counts. outside: whether what lies beyond the end
        must be told from the rest."""
        found: list[Operand | Inside] = []
        if masked and self.bodies.mask is not None:
            self.maker.compute([self.bodies.mask])
            found.append(self.maker.spread(self.bodies.mask, TILE))
        found += [own.InBlock("x")] * self.walked.is_cut
        found += [Inside("x")] * (self.walked.masked and outside)
        return tuple(found)

    def _next(self, into: Value, of: Operand) -> None:
        """Adds that a tile is another one from here on."""
        self.put(own.Next(into, of))

"""Makes the TileProgram of a loop: what a program computes and stores, in walks over the row where there is one.

In: a flat loop and its tiling. Out: lines. A value that varies along one axis only is computed once for each position
of that axis. A row in one block needs one pass, and its values stay in registers. A longer row is walked once per level
of reductions (softmax: the maximum, the sum, the result), and each walk loads what it needs anew; what a walk will need
again is asked to stay in the cache, and the walk that writes begins at the row's end, which was read last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from litz.codegen.dialect import COMPARISONS
from litz.codegen.kernel_plan import KernelPlan
from litz.codegen.sizes import INT32
from litz.ir import Buffer, Loop, Node, Store
from litz.ir.build import empty_sizes
from litz.ir.dtypes import FLOAT8, HALF, ROUNDED, compute_dtype, survives
from litz.ir.index import ZERO, Expr, bounds, placeholder
from litz.ir.node import walk
from litz.ir.ops import AS_HALF
from litz.ir.stages import Stages, find_stages

from . import program as tile
from .names import Names
from .program import Access, Axes, Const, Inside, Line, Mask, Operand, Position, Positive, TileProgram, Value
from .reduce import Reducer
from .shape import VECTOR, Axis, Tiling


def make_program(
    plan: KernelPlan,
    loop: Loop,
    tiling: Tiling,
    names: Names,
    positions: str,
    near: Callable[[Loop], Mapping[Node, str]],
) -> TileProgram:
    """Returns what one program does of a loop of the plan. near: returns the less exact forms of a loop's nodes."""
    maker = Maker(loop, plan.buffers, tiling, positions)
    maker.near = near(loop)
    maker.body(plan.stages(loop, one_walk=not tiling.persistent))
    return TileProgram(
        tiling, plan.buffers, names, loop.extents, positions, tuple(maker.made), tuple(dict.fromkeys(maker.limits))
    )


class Maker:
    """The lines of a loop so far, and the values of its nodes."""

    def __init__(
        self, loop: Loop, buffers: Mapping[str, Buffer], tiling: Tiling, positions: str, prefix: str = ""
    ) -> None:
        """positions: see `TileProgram`. prefix: of the names of values, where a kernel has several makers."""
        self.loop, self.buffers, self.tiling, self.positions = loop, buffers, tiling, positions
        self.made: list[Line] = []
        self.values: dict[Node, Value] = {}
        self.stored: dict[Node, Operand] = {}
        """The bits of float8 values, as memory holds them."""
        self.limits: list[Expr] = []  # each must be at most INT32, or this kernel needs 64-bit positions
        self.axis_of = {r.var: axis.name for axis in tiling.axes for r in axis.ranges}
        self.hints: Mapping[Node, str] = {}
        self.whole = False
        """Are the lines for programs whose block along x lies in the range?"""
        self.near: Mapping[Node, str] = {}
        """Forms of nodes that are less exact."""
        self._counter, self._prefix = 0, prefix

    # Lines, names, axes.

    def put(self, line: Line) -> None:
        """Adds a line."""
        self.made.append(line)

    def fresh(self, stem: str = "tmp") -> str:
        """Returns a name that the loop has not used yet."""
        self._counter += 1
        return f"{self._prefix}{stem}{self._counter - 1}"

    def op(self, op: str, args: Sequence[Operand], dtype: torch.dtype, near: str = "", stem: str = "tmp") -> Value:
        """Adds a line for an op, and returns its value."""
        axes = frozenset[str]().union(*(arg.axes for arg in args))
        value = Value(self.fresh(stem), dtype, axes)
        self.put(tile.Op(value, op, tuple(args), near))
        return value

    def block(self, write: Callable[[], None]) -> tuple[Line, ...]:
        """Returns the lines that a function adds, and leaves them out here."""
        outer, self.made = self.made, []
        write()
        outer, self.made = self.made, outer
        return tuple(outer)

    def level_axes(self, inner: bool) -> Axes:
        """Returns the axes of the output ranges, and of the reduction ranges as well if `inner`."""
        return frozenset(axis.name for axis in self.tiling.axes if inner or axis.name != "r")

    def masks(self, axes: Iterable[str]) -> list[Mask]:
        """Returns the masks that keep a tile along `axes` within the ranges."""
        chosen = set(axes)
        return [Inside(axis.name) for axis in self.tiling.axes if axis.name in chosen and self.is_masked(axis)]

    def is_masked(self, axis: Axis) -> bool:
        """Returns whether an axis has lanes that are none of its range."""
        if self.whole and axis.name == "x":
            return False
        return axis.masked or (axis.name == "r" and self.tiling.frame is not None)

    def axes_of(self, expr: Expr, indirect: Iterable[Operand] = ()) -> Axes:
        """Returns the axes that an index expression varies along. indirect: values that stand for its placeholders."""
        found = {self.axis_of[s] for s in expr.free_symbols if s in self.axis_of}
        if "r" in found and self.tiling.frame is not None and not self.tiling.begins_alike:
            found.add("x")  # each row has lanes of its own before it
        return frozenset(found.union(*(value.axes for value in indirect)))

    # Values.

    def compute(self, roots: Iterable[Node]) -> None:
        """Adds the nodes that the roots need and that have no value yet. Reductions must have theirs."""
        for node in self.missing(roots):
            self.values[node] = self.value(node)

    def missing(self, roots: Iterable[Node]) -> list[Node]:
        """Returns the nodes that the roots need and that have no value yet, arguments before users, constants left
        out."""
        return list(walk(*roots, into=lambda node: node not in self.values and node.op != "const"))

    def operand(self, node: Node) -> Value | Const:
        """Returns the value of a node; a constant has a type of its own."""
        return Const(node.attrs[0], node.dtype) if node.op == "const" else self.values[node]

    def spread(self, node: Node, axes: Axes) -> Operand:
        """Returns the value of a node, repeated along all of `axes`."""
        value = self.operand(node)
        return value if value.axes >= axes else tile.Spread(value, axes, value.dtype)

    def value(self, node: Node) -> Value:
        """Adds what computes a node whose arguments have values, and returns its value."""
        if node.dtype in FLOAT8:
            self.stored.pop(node, None)  # of an earlier walk
            return self.op("decode", [self.held(node)], node.dtype)
        near = self.near.get(node)
        if near is not None and node.op != "reduce":
            return self._near(node, near)
        if node.op == "load":
            return self.load(node)
        if node.op == "index":
            expr = node.attrs[0]
            return self.op("index", [Position(expr, self.axes_of(expr), self.narrow(expr))], node.dtype)
        if node.op == "bounded":
            return self._bounded(node)
        args = [self.operand(arg) for arg in node.args]
        if node.op == "cast" or node.op in AS_HALF.values():
            target = node.dtype if node.op == "cast" else torch.float32
            return replace(self._cast(node.args[0], args[0], target), dtype=node.dtype)
        if node.op == "bitcast":
            return self.op("bitcast", [self.held(node.args[0])], node.dtype)
        if node.op in COMPARISONS and any(arg.op == "index" for arg in node.args):
            short = [found for found in map(self._short, node.args) if found is not None]
            if len(short) == len(node.args):  # in 32 bits, though an `index` node is int64
                return self.op(node.op, short, node.dtype)
        if node.op == "sign" and node.dtype == torch.bool and isinstance(args[0], Value):
            return args[0]  # as it is
        near = "times_reciprocal" if node.op == "div" and divides_by_sum_of_exp(node, self.loop) else ""
        return self.op(node.op, args, node.dtype, near)

    def _near(self, node: Node, near: str) -> Value:
        args = [self.operand(arg) for arg in node.args]
        if near == "same" and isinstance(args[0], Value):
            return replace(args[0], dtype=node.dtype)
        if near == "part":
            return self.op("mul", [args[0], Const(1 / node.args[1].attrs[0], compute_dtype(node.dtype))], node.dtype)
        return self.op(node.op, args, node.dtype, near)

    def _cast(self, arg: Node, value: Value | Const, target: torch.dtype) -> Value:
        source = arg.dtype
        if arg.op == "index" and target in (torch.float32, torch.int32) and self.narrow(arg.attrs[0]):
            return self.op("cast", [Position(arg.attrs[0], value.axes)], target)
        same = source == target and arg.op in ("load", "cast")  # rounded already
        same = same or (target == torch.float32 and source in ROUNDED)  # as a tile of the type has it
        same = same or (target in HALF and source in FLOAT8 and survives(source, target))
        if same and isinstance(value, Value):
            return replace(value, dtype=target)
        return self.op("cast", [value], target)

    def _short(self, node: Node) -> Const | Position | None:
        """A constant, or a position in the type of positions; None for what 32 bits have no room for."""
        (value,) = node.attrs if node.op in ("const", "index") else (None,)
        if node.op == "const":
            return Const(value, node.dtype) if isinstance(value, int) and abs(value) <= INT32 else None
        return Position(value, self.axes_of(value)) if value is not None and self.narrow(value) else None

    def narrow(self, expr: Expr) -> bool:
        """Returns whether the expression stays within 32 bits. Where sizes decide, the launcher is to check that."""
        if self.positions == "i64":
            return False
        low, high = bounds(expr, self.loop.extents)
        if low is None or high is None:
            return False
        for bound in (-low, high):
            if bound.is_Integer:
                if int(bound) > INT32:
                    return False
            else:
                self.limits.append(bound)
        return True

    # Float8: a copy moves bits, so that NaN keeps them.

    def held(self, node: Node) -> Operand:
        """Returns what memory holds for a node's value: the bits of a float8 node, else the value."""
        if node.dtype not in FLOAT8:
            return self.operand(node)
        if node not in self.stored and (node.op == "const" or node in self.values):
            return tile.Coded(self.operand(node), node.dtype)
        if node not in self.stored:
            self.stored[node] = self._made_bits(node)
        return self.stored[node]

    def _made_bits(self, node: Node) -> Value:
        if node.op == "load":
            return self.load(node, "bits")
        if node.op == "where":
            condition, *both = node.args
            args = [self.operand(condition), *(self.held(arg) for arg in both)]
            return self.op("where", args, torch.uint8, stem="bits")
        (arg,) = node.args
        if node.op == "bitcast":
            return self.op("byte", [self.held(arg)], torch.uint8, stem="bits")
        return self.op("same", [tile.Coded(self.operand(arg), node.dtype)], torch.uint8, stem="bits")

    # Memory.

    def _bounded(self, node: Node) -> Value:
        position, *masked = [self.operand(arg) for arg in node.args]
        size, what = node.attrs
        axes = position.axes.union(*(mask.axes for mask in masked))
        held = Value(self.fresh(), torch.bool, position.axes)
        value = Value(self.fresh(), node.dtype, position.axes)
        self.put(tile.Check(value, held, position, size, (*masked, *self.masks(axes)), what))
        return value

    def _not_empty(self, indirect: Iterable[Node]) -> list[Mask]:
        """The masks for accesses at checked positions: where a size is 0, no position is in the buffer."""
        sizes = empty_sizes(indirect)
        return [*(Positive(size) for size in sizes if size != 0), *[Positive(ZERO)] * any(s == 0 for s in sizes)]

    def load(self, node: Node, stem: str = "tmp") -> Value:
        """Adds a load, of a float8's bits if that is what memory has."""
        access, masks = self.loaded(node)
        value = Value(self.fresh(stem), torch.uint8 if node.dtype in FLOAT8 else node.dtype, access.axes)
        self.put(tile.Load(value, access, masks, node.mask is not None, self.hints.get(node, "")))
        return value

    def loaded(self, node: Node) -> tuple[Access, tuple[Mask, ...]]:
        """Returns what a load reads, and where."""
        indirect = [self.operand(arg) for arg in node.indirect]
        access = self._framed(node, node.buffer, node.index[0], node.mask is not None)
        if access is not None:
            return access, (*self.masks("x"), Inside("rload"), *self._within(node))
        own: list[Mask] = []
        spread: Axes = frozenset()
        if node.mask is not None:
            mask = self.operand(node.mask)
            own, spread = [mask], mask.axes
        access = self.access(node.buffer, node.index[0], indirect, spread)
        return access, (*self.masks(access.axes), *own, *self._not_empty(node.indirect))

    def access(self, buffer: str, offset: Expr, indirect: Sequence[Operand], spread: Axes = frozenset()) -> Access:
        """Returns the elements of a buffer at an offset, at least along the axes `spread`."""
        # Along a dimension of stride 0 an index does not count.
        used = [value for n, value in enumerate(indirect) if placeholder(n) in offset.free_symbols]
        axes = self.axes_of(offset, used)
        return Access(buffer, offset, tuple(indirect), axes | spread, not axes >= spread)

    def _framed(self, site: Node | Store, buffer: str, offset: Expr, masked: bool) -> Access | None:
        """An access in whole groups of the frame's lanes; None if the frame does not hold the access."""
        frame = self.tiling.frame
        if frame is None or not frame.holds(site, buffer, offset, masked):
            return None
        return Access(buffer, frame.rest(buffer, offset) or ZERO, (), self.level_axes(True), framed=True)

    def _within(self, node: Node) -> list[Mask]:
        """A mask for a load of groups that are longer than 16 bytes: they may reach further beyond a buffer's end."""
        frame, span = self.tiling.frame, int(self.buffers[node.buffer].layout.span)
        lanes = VECTOR // node.dtype.itemsize
        if frame is None or lanes >= frame.lanes:
            return []
        return [tile.Below(frame.rest(node.buffer, node.index[0]) or ZERO, -(-span // lanes) * lanes)]

    def store(self, store: Store, inner: bool = False) -> None:
        """Adds a store whose values are computed already. inner: the store runs once per point of the reduction ranges
        too."""
        level = self.level_axes(inner)
        indirect = [self.operand(node) for node in store.indirect]
        access = self._framed(store, store.buffer, store.index[0], store.mask is not None) if inner else None
        if access is None:  # spread over the level: each point stores, wherever to
            access = self.access(store.buffer, store.index[0], indirect, level)
        masks = self.masks(level)
        if store.mask is not None:
            masks.append(self.operand(store.mask))
        masks += self._not_empty(store.indirect)
        self.put(tile.Store(access, self.held(store.value), tuple(masks), store.mode, level))

    # Bodies.

    def body(self, stages: Stages | None = None) -> None:
        """Adds what the loop computes and stores. stages: found here if not given."""
        if self.loop.reduction_ranges:
            _Walks(self, stages or find_stages(self.loop)).write()
            return
        if not self.tiling.whole:
            self._points()
            return
        (axis,), given, bodies = self.tiling.axes, dict(self.values), []
        for self.whole in (True, False):
            self.values, self.stored = dict(given), {}
            bodies.append(self.block(self._points))
        self.put(tile.Whole(int(axis.size) // axis.block, *bodies))

    def _points(self) -> None:
        self.compute([root for store in self.loop.stores for root in store.roots])
        for store in self.loop.stores:
            self.store(store)


class _Walks:
    """The walks over a row, each with its reductions and stores, and the walks' lines."""

    def __init__(self, maker: Maker, stages: Stages) -> None:
        self.maker, self.loop = maker, maker.loop
        self.stages, self.online = stages, stages.together
        self.last = len(stages.walks) - 1

    def write(self) -> None:
        """Adds all walks over the row, and the stores of the results."""
        if self.maker.tiling.persistent:
            self._write_persistent()
        else:
            for number in range(self.last + 1):
                self._write_walk(number)
        self.maker.compute([root for store in self.stages.final for root in store.roots])
        for store in self.stages.final:
            self.maker.store(store)

    def _write_persistent(self) -> None:
        for stage in self.stages.walks:
            self._compute([arg for node in stage.reduces for arg in node.args], Reducer(self.maker, [], []))
            Reducer(self.maker, stage.reduces, []).close()
        # Every value first, then every store: a store may overwrite what another value is read from.
        self._compute([root for store in self.loop.stores for root in store.roots], Reducer(self.maker, [], []))
        for store in filter(self.loop.at_reduction_level, self.loop.stores):
            self.maker.store(store, inner=True)

    def _compute(self, roots: list[Node], reducer: Reducer) -> None:
        for node in self.maker.missing(roots):
            if node.op == "scan":
                self.maker.values[node] = reducer.scan(node)
            else:
                self.maker.compute([node])

    def _write_walk(self, number: int) -> None:
        maker, reduces, stores = self.maker, self.stages.walks[number].reduces, self.stages.walks[number].stores
        if not reduces and not stores:
            return
        roots = [arg for node in reduces for arg in self.online.get(node, node).args]
        roots += [root for store in stores for root in store.roots]
        missing = maker.missing(roots)
        # What does not vary along the row is computed once, before the loop over it.
        maker.compute([node for node in missing if not self.loop.levels[node] and node.op != "reduce"])
        if number == self.last:
            # Before this walk stores anything, read what is read once per row.
            once = [node for node in self.loop.loads if not self.loop.levels[node]]
            maker.compute([node for node in once if self.stages.depths[node] <= number])
        reducer = Reducer(maker, reduces, [node for node in missing if node.op == "scan"], self.online)
        reducer.open()
        maker.hints, outside = self._hints(number), dict(maker.values)

        def body() -> None:
            self._compute(roots, reducer)
            reducer.step()
            for store in stores:
                maker.store(store, inner=True)

        lines = maker.block(body)
        maker.put(tile.Walk(maker.tiling.stages, self._walks_back(number), lines))
        maker.values, maker.hints = outside, {}
        reducer.close()

    def _walks_back(self, number: int) -> bool:
        """Returns whether a walk begins where the one before ended. What was read last is still in the caches, of a row
        that is longer than a program's share of them. Only where the order of the blocks decides nothing: a walk that
        stores and reduces nothing."""
        stage = self.stages.walks[number]
        if number == 0 or stage.reduces or self.loop.has_scan:
            return False
        return any(self.loop.levels[node] and self.stages.depths[node] < number for node in self.loop.loads)

    def _hints(self, number: int) -> Mapping[Node, str]:
        """Keep what a later walk reads again, let go of what the last walk has read."""
        if self.last == 0:
            return {}
        outer = {r.var for r in self.loop.ranges}
        hints: dict[Node, str] = {}
        for node in self.loop.loads:
            if self.loop.levels[node] and not node.indirect:
                # What all rows share (weights) stays for the next row too.
                shared = not outer & node.index[0].free_symbols
                hints[node] = "last" if shared or number < self.last else "first"
        return hints


def divides_by_sum_of_exp(node: Node, loop: Loop) -> bool:
    """Returns whether a division is that of a softmax by its row's sum: then one division a row is enough, and one
    multiplication an element.

    A division is ten times as much, enough to slow down a kernel of half types. The product differs by the last
    bit at most; the sum of a softmax is at least 1, so its reciprocal does not overflow.
    """
    top, bottom = node.args
    if bottom.op != "reduce" or bottom.attrs[0] != "sum" or bottom.args[0].op != "exp":
        return False
    return node.dtype in (torch.float32, *HALF) and bool(loop.levels[top])

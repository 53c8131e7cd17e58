"""A tile of scores in a Triton kernel: what an attention's bodies do with it, and which blocks a program walks.

In: the bodies of an attention (loops over b, h, q and k) and the buffers that its kernel touches. Out: a `ScoreTile`,
which has core's code generator write the bodies, and the text around them: the place of the program's own tile (its
axis y), the walk along the other axis (x), pointers into strided operands, and at last the `KernelSource`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import sympy
import torch

from litz.ir import Buffer, Layout, Loop, Node, Program, Range, Store, TensorRef
from litz.ir.index import Expr, Min, Symbol, floordiv, loop_var
from litz.ir.node import rewrite
from litz.ir.transform import flatten, map_stores, rename
from litz.targets.triton.indices import index_type_of
from litz.targets.triton.text import IndexText, size_text
from litz.tiles.names import name_all
from litz.tiles.shape import Axis, Tiling
from litz_plugins import KernelSource

from ..module import write_module
from ..tile import Tile, write_axis
from .arithmetic import lighter, peeled
from .operation import GRADIENT, SCORE, Blocks

BATCH, HEAD, QUERY, KEY = (loop_var(position) for position in range(4))
"""The variables of every body here."""


@dataclass(frozen=True)
class Bodies:
    """The bodies of an attention as values of one flat loop over (BATCH, HEAD, QUERY, KEY), so that what they have in
    common is computed once. score, mask, gradient: what the bodies store, None for a body that is not there. factor:
    what a score is to be multiplied by (`arithmetic.py`)."""

    loop: Loop
    factor: float
    score: Node | None = None
    mask: Node | None = None
    gradient: Node | None = None

    def load_of(self, name: str) -> Node | None:
        """Returns the node that loads a stand-in (`SCORE`, `GRADIENT`); None if no body loads it."""
        return next((node for node in self.loop.loads if node.buffer == name), None)

    @property
    def late(self) -> frozenset[Node]:
        """Returns the nodes that depend on a stand-in. No tile can compute them before it has scores."""
        found: set[Node] = set()
        for node in self.loop.nodes:
            if (node.op == "load" and node.buffer in (SCORE, GRADIENT)) or not found.isdisjoint(node.args):
                found.add(node)
        return frozenset(found)


def make_bodies(
    sizes: tuple[Expr, ...], program: Program, device: torch.device, scale: float, **bodies: Loop | None
) -> Bodies:
    """Returns the bodies by name (score, mask, gradient), each None or a Loop of four ranges, of the extents `sizes`.
    scale: of the product of query and key, for which the stand-in `SCORE` is afterwards."""
    ranges = tuple(Range(var, size) for var, size in zip((BATCH, HEAD, QUERY, KEY), sizes, strict=True))
    extents = {r.var: r.size for r in ranges}
    given = {name: loop for name, loop in bodies.items() if loop is not None}
    stores: list[Store] = []
    for name, loop in given.items():
        mapping = {old.var: new.var for old, new in zip(loop.ranges, ranges, strict=True)}

        def change(node: Node, args: tuple[Node, ...], mapping: Mapping[Symbol, Expr] = mapping) -> Node:
            return rename(node, args, mapping, extents)

        (store,) = loop.stores
        stores.append(Store(name, (BATCH, HEAD, QUERY, KEY), rewrite((store.value,), change)[0]))
    stand_ins = (*given, SCORE, GRADIENT)
    buffers = {name: Buffer(name, torch.float32, device, Layout.contiguous(sizes)) for name in stand_ins}
    flat = flatten(Loop("scores", device, ranges, (), tuple(stores)), {**program.buffers, **buffers})
    values = {store.buffer: store for store in map_stores(flat.stores, lighter(scale))}
    exponent = peeled(values["score"].value if "score" in values else None, scale)
    if exponent.node is not None:
        values["score"] = replace(values["score"], value=exponent.node)
    found = {name: store.value for name, store in values.items()}
    return Bodies(replace(flat, stores=tuple(values.values())), exponent.factor, **found)


@dataclass(frozen=True)
class Side(Axis):
    """An axis of the tile, of one range. grain: elements of a block of the block mask along it, None without one.
    inner: is the tile known to lie inside?"""

    grain: Expr | None = None
    inner: bool = False

    @property
    def is_cut(self) -> bool:
        """Returns whether blocks of the mask may end within tiles."""
        if self.grain is None or self._divides(self.block, self.grain):
            return False
        return not (self.grain.is_Integer and self.size.is_Integer and self.size <= self.grain)

    @property
    def masked(self) -> bool:
        """Returns whether a tile may reach beyond the end of this side, or of a block of the mask."""
        if self.inner:
            return False
        if self.is_cut or not self._divides(self.block, self.size):
            return True
        return self.grain is not None and not (self._divides(self.grain, self.size) or self.size <= self.grain)

    @property
    def parts(self) -> Expr:
        """Returns the number of tiles of a block of the mask, or of all there is, where a block is longer than that: a
        tile that lies wholly beyond the end has no mask (`masked`). A short block of an unknown size is walked to its
        end, masked."""
        assert self.grain is not None
        return self._tiles(self.grain if self._is_short and not self.size.is_Integer else Min(self.grain, self.size))

    @property
    def tiles(self) -> Expr:
        """Returns how many tiles there are along the range."""
        if not self.is_cut:
            return self._tiles(self.size)
        assert self.grain is not None
        return floordiv(self.size + self.grain - 1, self.grain) * self.parts

    @property
    def _is_short(self) -> bool:
        """Is a block short for sure, so that there are several, or as good as?"""
        return self.grain is not None and self.grain.is_Integer and int(self.grain) <= SHORT

    def _tiles(self, size: Expr) -> Expr:
        return floordiv(size + self.block - 1, sympy.Integer(self.block))

    @staticmethod
    def _divides(divisor: int | Expr, size: Expr) -> bool:
        known = size.is_Integer and (isinstance(divisor, int) or divisor.is_Integer)
        return bool(known) and int(size) > 0 and int(size) % int(divisor) == 0


SHORT = 4096
"""Elements of a block of a mask that need not be compared with how many there are."""


@dataclass
class ScoreTile:
    """The text of a kernel whose programs have a tile of `own` (axis y) and walk along `walked` (axis x).

    batches, heads: of the query. refs: every operand, result and table of blocks, whose buffers are the kernel's
    arguments. written: the buffers that the kernel writes.
    """

    bodies: Bodies
    program: Program
    batches: Expr
    heads: Expr
    own: Side
    walked: Side
    warps: int
    stages: int
    refs: Sequence[TensorRef]
    written: Collection[str] = ()
    tile: Tile = field(init=False)

    def __post_init__(self) -> None:
        loop, buffers = self.bodies.loop, self.program.buffers
        inside = [node.buffer for node in loop.loads if node.buffer not in (SCORE, GRADIENT)]
        touched = list(dict.fromkeys([*(ref.buffer for ref in self.refs), *inside]))
        spans = [*(buffers[name].layout.span for name in touched), *(ref.layout.span for ref in self.refs)]
        sizes = [self.own.size, self.walked.size]
        layouts = [e for ref in self.refs for e in (*ref.layout.size, *ref.layout.stride, ref.layout.offset)]
        grains = [side.grain for side in (self.own, self.walked) if side.grain is not None]
        exprs = [*spans, *sizes, *grains, *layouts, *loop.expressions, self.batches, self.heads]
        variables = {BATCH: "batch", HEAD: "head", self.own.ranges[0].var: "y0", self.walked.ranges[0].var: "x0"}
        self.names = name_all(touched, variables, exprs)
        self.index_type, self.limits = index_type_of([*spans, *sizes], bool(self.names.sizes))
        tiling = Tiling((self.own, self.walked), self.warps)
        self.tile = Tile(loop, buffers, tiling, self.names, self.index_type)
        self.late = self.bodies.late
        self.sizes = IndexText(self.names.index_names, {})

    # Small texts.

    def emit(self, *lines: str) -> None:
        """Appends lines to the kernel, at the present depth."""
        self.tile.emit(*lines)

    @property
    def wide(self) -> str:
        """Makes an index of what is an int32."""
        return "" if self.index_type == "tl.int32" else f".to({self.index_type})"

    @contextmanager
    def indented(self, line: str) -> Iterator[None]:
        """Emits `line`, and indents what is written inside as its body. Values made inside are forgotten afterwards."""
        self.emit(line)
        self.tile.depth += 1
        kept = dict(self.tile.values)
        yield
        self.tile.values = kept
        self.tile.depth -= 1

    def named(self, name: str, expr: Expr) -> str:
        """Returns a size as a number, or emits a variable `name` of that size and returns its name."""
        if not expr.is_Integer:
            self.emit(f"{name} = {self.sizes(expr)}")
        return str(expr) if expr.is_Integer else name

    def element(self, ref: TensorRef, *indices: str) -> str:
        """Returns the text of a pointer to an element of a reference, or to a tile of them. indices: "" for index 0."""
        terms = [] if ref.layout.offset == 0 else [self.sizes(ref.layout.offset)]
        for index, stride in zip(indices, ref.layout.stride):
            if index and stride != 0:
                terms.append(index if stride == 1 else f"{index}*{self.sizes(stride)}")
        return " + ".join([self.names.buffers[ref.buffer], *terms])

    def matrix(self, ref: TensorRef, start: str, rows: str, columns: str, shape: str) -> str:
        """Returns the text of the pointers to a matrix: a reference's last two dimensions, which begin at `start`."""
        terms = [start]
        for index, stride in zip((rows, columns), ref.layout.stride[2:], strict=True):
            if stride != 0:
                terms.append(index if stride == 1 else f"{index}*{self.sizes(stride)}")
        if 0 in ref.layout.stride[2:]:
            terms.append(f"tl.zeros({shape}, tl.int32)")
        return " + ".join(terms)

    def row(self, ref: TensorRef, start: str, index: str) -> str:
        """Returns the text of the pointers to a vector, a reference's last dimension of three. index: a name."""
        step = ref.layout.stride[2]
        if step == 0:
            return f"{start} + tl.zeros({index}.shape, tl.int32)"
        return f"{start} + {index}" if step == 1 else f"{start} + {index}*{self.sizes(step)}"

    # Places.

    def write_blocks(self, **blocks: int) -> None:
        """Emits the edges of tiles as constants: YBLOCK, XBLOCK, and others by name."""
        for name, block in {"y": self.own.block, "x": self.walked.block, **blocks}.items():
            self.emit(f"{name.upper()}BLOCK: tl.constexpr = {block}")

    def write_own(self, tile: str) -> None:
        """Emits the place of the program's tile, number `tile` along its axis: `ystart`, `yindex` and, under a mask of
        blocks, `yrow` (its row of blocks)."""
        own = self.own
        if own.is_cut:
            assert own.grain is not None
            parts, grain = self.named("yparts", own.parts), self.sizes(own.grain)
            self.emit(f"yrow = {tile} // {parts}", f"ystart = (yrow * {grain} + {tile} % {parts} * YBLOCK){self.wide}")
        else:
            self.emit(f"ystart = ({tile} * YBLOCK){self.wide}")
            if own.grain is not None:
                self.emit(f"yrow = ystart // {self.sizes(own.grain)}")
        write_axis(self.tile, own, "ystart + tl.arange(0, YBLOCK)[:, None]")
        if own.is_cut:
            assert own.grain is not None
            end = f"tl.minimum((yrow + 1) * {self.sizes(own.grain)}, {self.sizes(own.size)})"
            self.emit(f"ystored = yindex < {end}")

    @property
    def own_mask(self) -> str:
        """Returns the mask of the rows that this program loads; '' for all rows."""
        return "ymask" if self.own.masked else ""

    @property
    def stored_mask(self) -> str:
        """Returns the mask of the rows that this program stores; '' for all rows."""
        return "ystored" if self.own.is_cut else self.own_mask

    def write_walk(self, blocks: Blocks | None, body: Callable[[bool], None]) -> None:
        """Loops over what is walked, with the text of `body(masked)` inside. masked: does the mask say more than the
        lists of blocks? Within, `xindex` (and `xmask`) are there, and the same as a column: `column`, `columnmask`."""
        walked, masked = self.walked, self.bodies.mask is not None
        if blocks is None:
            self._write_all(masked, body)
            return
        assert walked.grain is not None
        lists = [(masked, blocks.counts, blocks.indices)]
        if blocks.full_counts is not None and blocks.full_indices is not None:
            lists.append((False, blocks.full_counts, blocks.full_indices))
        grain, parts = self.sizes(walked.grain), self.named("parts", walked.parts)
        last = self.named("last", floordiv(walked.size - 1, walked.grain))
        for is_masked, counts, indices in lists:
            self._write_list(counts, indices)
            # A step ahead, so that Triton's pipeline holds a stage more of what is walked instead of the list.
            first, following = (self._listed(indices, parts, step) for step in ("0", "(step + 1)"))
            self.emit(f"following = tl.load({first}, mask=count > 0, other=0)")
            with self.indented(f"for step in range(0, count * {parts}):"):
                # Whatever the list says, what is read lies in the operands.
                self.emit(f"block = tl.minimum(tl.maximum(following, 0), {last})", f"following = tl.load({following})")
                rest = "" if parts == "1" else f" + step % {parts} * XBLOCK"
                self._write_walked(f"(block * {grain}{rest})")
                if walked.is_cut:
                    self.emit(f"xinside = xindex < (block + 1) * {grain}")
                body(is_masked)

    def _write_all(self, masked: bool, body: Callable[[bool], None]) -> None:
        """Over whole tiles, and one that reaches beyond the end where there is one."""
        walked, start, end = self.walked, "0", self.sizes(self.walked.size)
        if walked.masked:
            start = self.named("whole", floordiv(walked.size, sympy.Integer(walked.block)) * walked.block)
            if start != "0":
                self._use(replace(walked, inner=True))
                with self.indented(f"for start in range(0, {start}, XBLOCK):"):
                    self._write_walked("start")
                    body(masked)
                self._use(walked)
        with self.indented(f"for start in range({start}, {end}, XBLOCK):"):
            self._write_walked("start")
            body(masked)

    def _use(self, walked: Side) -> None:
        """Write for this walked axis from here on."""
        self.walked = walked
        self.tile.tiling = replace(self.tile.tiling, axes=(self.own, walked))

    def _write_list(self, counts: TensorRef, indices: TensorRef) -> None:
        """`count`: how many blocks the list has for this row, at most as many as it has room for."""
        rows, room = counts.layout.size[2], indices.layout.size[3]
        pointer = self.element(counts, *self._outer(counts), "yrow")
        self.emit(f"count = tl.load({pointer}, mask=yrow < {self.sizes(rows)}, other=0)")
        self.emit(f"count = tl.minimum(count, {self.sizes(room)})")

    def _listed(self, indices: TensorRef, parts: str, step: str) -> str:
        """A pointer to the block of a step; to the last one that there is room for, of steps beyond."""
        number = step if parts == "1" or step == "0" else f"{step} // {parts}"
        if step != "0":
            number = f"tl.minimum({number}, {self.sizes(indices.layout.size[3])} - 1)"
        return self.element(indices, *self._outer(indices), "yrow", number)

    def _outer(self, table: TensorRef) -> tuple[str, str]:
        """The first two indices into a table of blocks, which may be the same for all."""
        found = []
        for size, name, full in zip(table.layout.size, ("batch", "head"), (self.batches, self.heads)):
            found.append("" if size == 1 else name if size == full else f"({name} % {self.sizes(size)})")
        return found[0], found[1]

    def _write_walked(self, start: str) -> None:
        self.emit(f"walked = {start} + tl.arange(0, XBLOCK){self.wide}", "column = walked[:, None]")
        write_axis(self.tile, self.walked, "walked[None, :]")
        if self.walked.masked:
            self.emit(f"columnmask = column < {self.sizes(self.walked.size)}")

    # Bodies.

    def hoist(self, roots: Iterable[Node | None], fixed: Collection[Symbol]) -> None:
        """Computes here what the roots need and what depends on the variables `fixed` alone, and not on scores."""
        variables, allowed = self.bodies.loop.variables, set(fixed)
        missing = self.tile.missing([root for root in roots if root is not None])
        self.tile.compute([node for node in missing if node not in self.late and variables[node] <= allowed])

    def give(self, name: str, text: str) -> None:
        """Makes the load of a stand-in mean the tile whose name in the kernel is `text`."""
        node = self.bodies.load_of(name)
        if node is not None:
            self.tile.give(node, text, "yx")

    def value(self, node: Node) -> str:
        """Returns Triton text for a node of a body, as a tile of queries by keys."""
        self.tile.compute([node])
        return self.tile.full(node, frozenset("yx"))

    # The whole.

    def source(self, name: str, symbol: str, grid: Sequence[Expr], note: str) -> KernelSource:
        """Returns the kernel's text and settings. grid: factors of its programs. note: the header's first line."""
        programs = " * ".join(f"({size_text(size, self.names.sizes)})" for size in grid)
        static = all(size.is_Integer for size in grid)
        launch = {
            "num_warps": self.warps,
            "num_stages": self.stages,
            "grid": int(sympy.prod(grid)) if static else programs,
        }
        index = self.index_type, [*self.limits, *self.tile.limits]
        return write_module(name, symbol, note, self.tile.lines, self.names, self.program, self.written, index, launch)

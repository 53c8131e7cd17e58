"""A kernel's text: header, indices of the tile, body, stores.

In: a flat loop, its tiling and names. Out: `KernelText`: the Triton module and what the launcher has to know.

A loop with reductions is written in passes over the row. A row in one block needs one pass, and its values stay in
registers. A longer row is walked once per level of reductions (softmax: the maximum, the sum, the result), and each
pass loads what it needs anew; what a pass will need again is asked to stay in the cache.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from litz.ir import Loop, Node, Program, Range, Store
from litz.ir.dtypes import short
from litz.ir.index import Expr, known_nonnegative
from litz.ir.ops import OPS

from .names import Names
from .reductions import Reducer
from .stores import store_lines
from .text import size_text
from .tiling import Axis, Tiling
from .values import INT32_MAX, Tile

LIMIT = INT32_MAX - 2**17
"""Offsets and positions up to here may be 32 bits wide: beyond the end of a range lies at most one block."""


@dataclass(frozen=True)
class KernelText:
    """text: the module. symbol: the kernel in it. grid: how many programs, as Python text over the sizes. limits:
    Python texts of what must not exceed LIMIT where the kernel takes its INDEX type as an argument, else empty.
    asserts: does it hold assertions? counters: how many zeros the programs count in, 0 for a kernel of one loop."""

    text: str
    symbol: str
    grid: str
    limits: tuple[str, ...]
    asserts: bool
    counters: int = 0


@dataclass(frozen=True)
class Part:
    """One loop of a kernel, flat. `late_stores` are buffers that must not be written before everything is read."""

    loop: Loop
    tiling: Tiling
    names: Names
    late_stores: frozenset[str] = frozenset()


def late_stores(loop: Loop) -> set[str]:
    """Buffers that a loop both reads and writes."""
    return {store.buffer for store in loop.stores if store.buffer in loop.reads}


def write_kernel(program: Program, index: tuple[str, list[Expr]], first: Part, *finish: Part) -> KernelText:
    """The text of a kernel: of one loop, and of those that the last programs of it run. `index` is what
    `choose_index_type` says."""
    index_type, limits = index
    names, tiling = first.names, first.tiling
    tiles = [Tile(part.loop, program, part.tiling, part.names, index_type) for part in (first, *finish)]
    _write_indices(tiles[0], counted=bool(finish))
    for tile in tiles[1:]:
        _write_indices(tile, "column")
    for tile, part in zip(tiles, (first, *finish), strict=True):
        write_body(tile, part.late_stores)
    wanted = dict.fromkeys([*limits, *(limit for tile in tiles for limit in tile.limits)])
    limit_texts = tuple(size_text(expr, names.sizes) for expr in wanted)
    index_argument = ["INDEX"] if limit_texts else []
    if index_type == "INDEX" and not limit_texts:
        for tile in tiles:
            tile.lines.insert(0, "    INDEX: tl.constexpr = tl.int32")
    calls, functions = [], []
    for number, (part, tile) in enumerate(zip(finish, tiles[1:], strict=True)):
        used = dict.fromkeys(names.buffers[name] for name in (*part.loop.reads, *part.loop.writes))
        passed = [*used, *names.sizes.values(), "column", *index_argument]
        functions += [*_function(f"litz_finish{number}", passed, tile), "", ""]
        calls.append(f"litz_finish{number}({', '.join(passed)})")
    if finish:
        _write_finish(tiles[0], calls)
    symbol = _symbol(first.loop)
    counters = ["counters"] if finish else []
    functions += _function(
        symbol, [*names.buffers.values(), *counters, *names.sizes.values(), *index_argument], tiles[0]
    )
    body = "\n".join(functions)
    lines = [*_header(first, finish, program), "import triton", "import triton.language as tl"]
    helpers = sorted(set(re.findall(r"(?<![\w.])_[a-z]\w*", body)))
    if "libdevice." in body:
        helpers.append("libdevice")
    if helpers:
        lines.append(f"from litz.runtime.triton_helpers import {', '.join(helpers)}")
    text = "\n".join([*lines, "", "", body, ""])
    blocks = int(_blocks(tiling, names)) if finish else 0
    return KernelText(text, symbol, _grid(tiling, names), limit_texts, "device_assert" in body, blocks)


def _function(name: str, parameters: Sequence[str], tile: Tile) -> list[str]:
    listed = ", ".join(f"{name}: tl.constexpr" if name == "INDEX" else name for name in parameters)
    return ["@triton.jit", f"def {name}({listed}):", "\n".join(tile.lines)]


def _write_finish(tile: Tile, calls: Sequence[str]) -> None:
    """Count this program; the last one of its outputs sees what all others have stored, and combines it."""
    pieces = "*".join(tile.index_text(r.size) for r in tile.tiling.pieces) or "1"
    tile.emit("# Every thread has stored before this program is counted, and whoever counts the last sees it all.")
    tile.emit("tl.debug_barrier()")
    tile.emit(f'if tl.atomic_add(counters + column, 1, sem="acq_rel") == {pieces} - 1:')
    for call in calls:
        tile.emit(f"    {call}")


def write_body(tile: Tile, late_stores: frozenset[str] = frozenset()) -> None:
    """What a loop computes and stores, for a tile whose indices are there, and perhaps some of its values."""
    if tile.loop.reduction_ranges:
        _Passes(tile, late_stores).write()
        return
    tile.compute([root for store in tile.loop.stores for root in store.roots])
    for store in tile.loop.stores:
        store_lines(tile, store)


def choose_index_type(loops: Sequence[Loop], program: Program) -> tuple[str, list[Expr]]:
    """The type of indices: 32 bits where every offset and position fits. Symbolic sizes leave it to the launcher:
    then it is the kernel's parameter INDEX, and the second result has what must not exceed LIMIT."""
    spans = [program.buffers[name].layout.span for loop in loops for name in (*loop.reads, *loop.writes)]
    spans += [size for loop in loops for size in (loop.numel, loop.reduction_numel)]
    return index_type_of(spans, any(loop.free_symbols for loop in loops))


def index_type_of(spans: Sequence[Expr], symbolic: bool) -> tuple[str, list[Expr]]:
    """As `choose_index_type`, by how far offsets and positions reach, and whether any size is a symbol."""
    open_ones: list[Expr] = []
    for span in dict.fromkeys(spans):
        if span.is_Integer:
            if int(span) > LIMIT:
                return "tl.int64", []
        elif not known_nonnegative(LIMIT - span):
            open_ones.append(span)
    return ("INDEX", open_ones) if open_ones or symbolic else ("tl.int32", [])


_DULL = frozenset({"const", "index", "load", "cast", "bitcast", "where", "bitwise_and", "ge", "lt", "le", "gt", "eq"})


def _ops(loop: Loop) -> list[str]:
    """The names of what a loop computes, each once, in order."""
    names = []
    for node in loop.nodes:
        names.append(node.attrs[0] if node.op in ("reduce", "scan") else node.op)
    return list(dict.fromkeys(name for name in names if name not in _DULL))


def _symbol(loop: Loop) -> str:
    """A name for profiles: what the kernel computes, not where it stands in a graph."""
    if loop.reduction_ranges:
        kind = "reduce" if any(node.op == "reduce" for node in loop.nodes) else "row"
    else:
        kind = "scatter" if any(store.mode != "set" for store in loop.stores) else "pointwise"
    shown = [name for name in _ops(loop) if name in OPS or name.startswith("welford")][:6]
    return "_".join(["litz", kind, *shown])


def _header(first: Part, finish: Sequence[Part], program: Program) -> list[str]:
    parts = [first, *finish]
    lines = []
    for part in parts:
        tiling = part.tiling
        tile = " x ".join(f"{axis.name.upper()}BLOCK={axis.block}" for axis in tiling.axes)
        how = ", the row in registers" if tiling.persistent else ""
        warps = f"{tiling.num_warps} warp{'s' if tiling.num_warps > 1 else ''}"
        then = "" if part is first else "then, by the last program: "
        lines.append(f"# {then}{' + '.join(_ops(part.loop)) or 'copy'}: {tile}{how}, {warps}")
    for name, short_name in first.names.buffers.items():
        reads = any(name in part.loop.reads for part in parts)
        writes = any(name in part.loop.writes for part in parts)
        use = "read and written" if reads and writes else "written" if writes else "read"
        lines.append(f"#   {short_name}: {short(program.buffers[name].dtype)}, {use}")
    return lines


def _grid(tiling: Tiling, names: Names) -> str:
    pieces = [size_text(r.size, names.sizes) for r in tiling.pieces]
    text = " * ".join([*pieces, _blocks(tiling, names)])
    symbolic = any(r.size.free_symbols for axis in tiling.grid_axes for r in (*axis.ranges, *tiling.pieces))
    return text if symbolic else str(eval(text, {}))


def _blocks(tiling: Tiling, names: Names) -> str:
    """How many blocks of outputs there are: a number if the sizes are."""
    parts = [f"-(-{size_text(axis.size, names.sizes)} // {axis.block})" for axis in tiling.grid_axes]
    text = " * ".join(f"({part})" for part in parts)
    return text if any(axis.size.free_symbols for axis in tiling.grid_axes) else str(eval(text, {}))


# Indices.


def _write_indices(tile: Tile, program: str = "tl.program_id(0)", counted: bool = False) -> None:
    """The tile's place. program: the text of which block of the outputs it is; if `counted`, of a piece of them."""
    wide = "" if tile.index_type == "tl.int32" else f".to({tile.index_type})"
    for axis in tile.tiling.axes:
        tile.emit(f"{axis.name.upper()}BLOCK: tl.constexpr = {axis.block}")
    grid = tile.tiling.grid_axes
    if counted:
        # Neighbouring programs take neighbouring columns of one piece.
        (axis,) = grid
        tile.emit(f"columns = tl.cdiv({tile.index_text(axis.size)}, {axis.name.upper()}BLOCK)")
        tile.emit(f"column = {program} % columns")
        tile.emit(f"piece = ({program} // columns){wide}")
        _write_variables(tile, "piece", tile.tiling.pieces)
        program = "column"
    if len(grid) == 2:
        blocks = f"tl.cdiv({tile.index_text(grid[1].size)}, {grid[1].name.upper()}BLOCK)"
        tile.emit(f"columns = {blocks}")
        signs = zip(grid, ("//", "%"), strict=True)
        programs = {axis.name: f"(tl.program_id(0) {sign} columns){wide}" for axis, sign in signs}
    else:
        programs = {grid[0].name: f"{program}{wide}"}
    for axis in grid:
        block = f"{axis.name.upper()}BLOCK"
        start = "" if _single_block(axis) else f"{programs[axis.name]} * {block} + "
        write_axis(tile, axis, f"{start}tl.arange(0, {block}){_expand(tile, axis)}")


def _single_block(axis: Axis) -> bool:
    return bool(axis.size.is_Integer) and int(axis.size) <= axis.block


def _expand(tile: Tile, axis: Axis) -> str:
    if len(tile.tiling.axes) == 1:
        return ""
    return "[:, None]" if tile.tiling.axes[0] is axis else "[None, :]"


def write_axis(tile: Tile, axis: Axis, index: str) -> None:
    """Emit `xindex`, its mask, and the loop variables that it is made of."""
    name = f"{axis.name}index"
    tile.emit(f"{name} = {index}")
    if axis.masked:
        tile.emit(f"{axis.name}mask = {name} < {tile.index_text(axis.size)}")
    _write_variables(tile, name, axis.ranges)


def _write_variables(tile: Tile, name: str, ranges: Sequence[Range]) -> None:
    """Emit the loop variables that a joint index of the ranges is made of."""
    inner: list[str] = []
    for position, r in reversed(list(enumerate(ranges))):
        text = name if not inner else f"{name} // {inner[0] if len(inner) == 1 else '(' + '*'.join(inner) + ')'}"
        size = tile.index_text(r.size)
        if position > 0:
            text = f"{text} % {size}" if not inner else f"({text}) % {size}"
        tile.emit(f"{tile.names.variables[r.var]} = {text}")
        inner.insert(0, size)


# Passes over the row.


def find_online(loop: Loop) -> dict[Node, Node]:
    """Sums of exp(x - max(x)), each with its maximum: both are found in one pass over the row (Milakov and
    Gimelshein, "Online normalizer calculation for softmax", 2018)."""
    found: dict[Node, Node] = {}
    for node in loop.nodes:
        if node.op != "reduce" or node.attrs[0] != "sum" or node.args[0].op != "exp":
            continue
        shifted = node.args[0].args[0]
        if shifted.op != "sub":
            continue
        value, top = shifted.args
        if top.op == "reduce" and top.attrs[0] == "max" and top.args == (value,) and value.dtype.is_floating_point:
            found[node] = top
    return found


class _Passes:
    """Which reduction and which store belongs to which pass, and the text of the passes."""

    def __init__(self, tile: Tile, late_stores: frozenset[str]) -> None:
        self.tile, self.loop = tile, tile.loop
        axis = tile.tiling.axis("r")
        assert axis is not None
        self.axis = axis
        self.online = {} if tile.tiling.persistent else find_online(self.loop)
        self.stage = self._stages()
        self.inner_stores = [store for store in self.loop.stores if self.loop.at_reduction_level(store)]
        self.outer_stores = [store for store in self.loop.stores if not self.loop.at_reduction_level(store)]
        self.reduces = [node for node in self.loop.nodes if node.op == "reduce"]
        last = max([self.stage[node] - 1 for node in self.reduces] + [self._ready(s) for s in self.inner_stores])
        # What a later pass still reads must not be overwritten before: such stores wait for the last pass.
        self.store_pass = {
            id(store): last if store.buffer in late_stores else self._ready(store) for store in self.inner_stores
        }
        self.last = last

    def _stages(self) -> Mapping[Node, int]:
        """How many reductions lie one upon the other below each node, itself included."""
        stage: dict[Node, int] = {}
        for node in self.loop.nodes:
            if node in self.online:
                stage[node] = stage[self.online[node]]
            else:
                stage[node] = max((stage[arg] for arg in node.args), default=0) + (node.op == "reduce")
        return stage

    def _ready(self, store: Store) -> int:
        return max(self.stage[root] for root in store.roots)

    def write(self) -> None:
        if self.tile.tiling.persistent:
            self._write_persistent()
        else:
            self.tile.emit(f"rbase = tl.arange(0, RBLOCK){_expand(self.tile, self.axis)}")
            for number in range(self.last + 1):
                self._write_pass(number)
        self.tile.compute([root for store in self.outer_stores for root in store.roots])
        for store in self.outer_stores:
            store_lines(self.tile, store)

    def _write_persistent(self) -> None:
        write_axis(self.tile, self.axis, f"tl.arange(0, RBLOCK){_expand(self.tile, self.axis)}")
        for level in range(1, self.last + 2):
            reduces = [node for node in self.reduces if self.stage[node] == level]
            self._compute([arg for node in reduces for arg in node.args], Reducer(self.tile, [], []))
            Reducer(self.tile, reduces, []).close()
        # Every value first, then every store: a store may overwrite what another value is read from.
        self._compute([root for store in self.loop.stores for root in store.roots], Reducer(self.tile, [], []))
        for store in self.inner_stores:
            store_lines(self.tile, store, inner=True)

    def _compute(self, roots: list[Node], reducer: Reducer) -> None:
        """Values of the row, scans among them."""
        for node in self.tile.missing(roots):
            if node.op == "scan":
                self.tile.values[node] = reducer.scan(node)
            else:
                self.tile.compute([node])

    def _write_pass(self, number: int) -> None:
        tile = self.tile
        reduces = [node for node in self.reduces if self.stage[node] == number + 1]
        stores = [store for store in self.inner_stores if self.store_pass[id(store)] == number]
        if not reduces and not stores:
            return
        roots = [arg for node in reduces for arg in self.online.get(node, node).args]
        roots += [root for store in stores for root in store.roots]
        missing = tile.missing(roots)
        # What does not vary along the row is computed once, before the loop over it.
        tile.compute([node for node in missing if not self.loop.levels[node] and node.op != "reduce"])
        if number == self.last:
            # Before this pass stores anything, read what is read once per row.
            once = [node for node in self.loop.loads if not self.loop.levels[node]]
            tile.compute([node for node in once if self.stage[node] <= number])
        reducer = Reducer(tile, reduces, [node for node in missing if node.op == "scan"], self.online)
        reducer.open()
        tile.eviction = self._eviction(number)
        size = tile.index_text(self.axis.size)
        outside = dict(tile.values)
        tile.emit(f"for roffset in range(0, {size}, RBLOCK):")
        tile.depth += 1
        wide = "" if tile.index_type == "tl.int32" else f".to({tile.index_type})"
        write_axis(tile, self.axis, f"roffset + rbase{wide}")
        self._compute(roots, reducer)
        reducer.step()
        for store in stores:
            store_lines(tile, store, inner=True)
        tile.depth -= 1
        tile.values = outside
        tile.eviction = {}
        reducer.close()

    def _eviction(self, number: int) -> Mapping[Node, str]:
        """Cache hints: keep what a later pass reads again, let go of what the last pass has read."""
        if self.last == 0:
            return {}
        outer = {r.var for r in self.loop.ranges}
        hints: dict[Node, str] = {}
        for node in self.loop.loads:
            if self.loop.levels[node] and not node.indirect:
                # What all rows share (weights) stays for the next row too.
                shared = not outer & node.index[0].free_symbols
                hints[node] = "evict_last" if shared or number < self.last else "evict_first"
        return hints


__all__ = ["LIMIT", "KernelText", "choose_index_type", "index_type_of", "write_axis", "write_body", "write_kernel"]

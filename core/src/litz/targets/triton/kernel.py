"""A kernel's text: header, the functions of its loops, and how the programs of one find out who finishes.

In: a plan, its tilings and names. Out: `KernelText`: the Triton module and what the launcher has to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litz.codegen.kernel_plan import KernelPlan
from litz.ir import Loop
from litz.ir.dtypes import short
from litz.ir.index import Expr
from litz.ir.ops import OPS
from litz.ir.reductions import REDUCTIONS
from litz.ir.stages import Stages

from .imports import import_lines
from .indices import write_indices
from .names import Names
from .passes import write_body
from .rounded import rounded_texts
from .text import size_text
from .tile_shape import Tiling
from .values import Tile


@dataclass(frozen=True)
class KernelText:
    """text: the module. symbol: the kernel in it. grid: how many programs, as Python text over the sizes. limits:
    Python texts of what must not exceed LIMIT where the kernel takes its INDEX type as an argument, else empty.
    counters: how many zeros the programs count in, 0 for a kernel of one loop."""

    text: str
    symbol: str
    grid: str
    limits: tuple[str, ...]
    counters: int = 0


@dataclass(frozen=True)
class Part:
    """The part of a kernel that one loop makes."""

    loop: Loop
    tiling: Tiling
    names: Names
    stages: Stages


def write_kernel(plan: KernelPlan, index: tuple[str, list[Expr]], first: Part, *finish: Part) -> KernelText:
    """Returns the text of a kernel: of one loop, and of the loops that the last programs of it run. index: what
    `choose_index_type` returns."""
    index_type, limits = index
    names, tiling = first.names, first.tiling
    tiles = [Tile(part.loop, plan.buffers, part.tiling, part.names, index_type) for part in (first, *finish)]
    for tile in tiles:
        tile.texts = rounded_texts(tile.loop)
    write_indices(tiles[0], counted=bool(finish))
    for tile in tiles[1:]:
        write_indices(tile, "column")
    for tile, part in zip(tiles, (first, *finish), strict=True):
        write_body(tile, part.stages)
    wanted = dict.fromkeys([*limits, *(limit for tile in tiles for limit in tile.limits)])
    limit_texts = tuple(size_text(expr, names.sizes) for expr in wanted)
    index_argument = ["INDEX"] if limit_texts else []
    if index_type == "INDEX" and not limit_texts:
        for tile in tiles:
            tile.lines.insert(0, "    INDEX: tl.constexpr = tl.int32")
    calls, functions = [], [text for tile in tiles for text in tile.functions.values()]
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
    text = "\n".join([*_header(first, finish, plan), *import_lines(body), "", "", body, ""])
    blocks = int(_blocks(tiling, names)) if finish else 0
    return KernelText(text, symbol, _grid(tiling, names), limit_texts, blocks)


def _function(name: str, parameters: Sequence[str], tile: Tile) -> list[str]:
    listed = ", ".join(f"{name}: tl.constexpr" if name == "INDEX" else name for name in parameters)
    return ["@triton.jit", f"def {name}({listed}):", "\n".join(tile.lines)]


def _write_finish(tile: Tile, calls: Sequence[str]) -> None:
    """Count this program; the last one of its outputs sees what all others have stored, and combines it."""
    pieces = "*".join(tile.index_text(r.size) for r in tile.tiling.pieces) or "1"
    tile.emit("# Every thread has stored before this program is counted, and whoever counts the last sees it all.")
    tile.emit("tl.debug_barrier()")
    tile.emit(f'if tl.atomic_add(counters + column, 1, sem="acq_rel") == {pieces} - 1:')
    tile.emit(*(f"    {call}" for call in calls))


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
    shown = [name for name in _ops(loop) if name in OPS or (name in REDUCTIONS and REDUCTIONS[name].several)][:6]
    return "_".join(["litz", kind, *shown])


def _header(first: Part, finish: Sequence[Part], plan: KernelPlan) -> list[str]:
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
        lines.append(f"#   {short_name}: {short(plan.buffers[name].dtype)}, {use}")
    return lines


def _grid(tiling: Tiling, names: Names) -> str:
    pieces = [size_text(r.size, names.sizes) for r in tiling.pieces]
    text = " * ".join([*pieces, _blocks(tiling, names)])
    symbolic = any(r.size.free_symbols for axis in tiling.grid_axes for r in (*axis.ranges, *tiling.pieces))
    return text if symbolic else str(eval(text, {}))


def _blocks(tiling: Tiling, names: Names) -> str:
    """How many blocks of outputs there are: a number if the sizes are."""
    parts = [
        f"(-(-{size_text(axis.size, names.sizes)} // {axis.block * axis.step}){f' * {axis.step}' * (axis.step > 1)})"
        for axis in tiling.grid_axes
    ]
    text = " * ".join(parts)
    return text if any(axis.size.free_symbols for axis in tiling.grid_axes) else str(eval(text, {}))

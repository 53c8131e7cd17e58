"""A kernel's text: the header, the functions of its loops, and what the launcher has to know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from litz.codegen.kernel_plan import KernelPlan
from litz.ir import Loop
from litz.ir.dtypes import short
from litz.ir.ops import OPS
from litz.ir.reductions import REDUCTIONS
from litz.tiles.make import make_program
from litz.tiles.names import Names, make_names
from litz.tiles.program import TileProgram
from litz.tiles.shape import Tiling

from .imports import import_lines
from .indices import choose_index_type
from .print import POSITIONS, Printer, print_program
from .rounded import near_forms
from .text import size_text


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


def make_tiles(plan: KernelPlan, tilings: Sequence[Tiling]) -> TileProgram:
    """Returns what one program of a kernel does; its `finish` is what the last one does then."""
    index = choose_index_type(plan)
    positions = next(name for name, text in POSITIONS.items() if text == index[0])
    names = make_names(plan, tilings, index[1])
    first, *finish = (
        make_program(plan, loop, tiling, own, positions, near_forms)
        for loop, tiling, own in zip(plan.loops, tilings, names, strict=True)
    )
    return replace(first, finish=tuple(finish), limits=(*index[1], *first.limits))


def write_kernel(plan: KernelPlan, first: TileProgram) -> KernelText:
    """Returns the text of a kernel: of one loop, and of the loops that the last programs of it run."""
    names, finish = first.names, first.finish
    printed = [print_program(first), *(print_program(last, "column") for last in finish)]
    wanted = dict.fromkeys(limit for program in (first, *finish) for limit in program.limits)
    limit_texts = tuple(size_text(expr, names.sizes) for expr in wanted)
    index_argument = ["INDEX"] if limit_texts else []
    calls, functions = [], [text for each in printed for text in each.functions.values()]
    for number, (loop, each) in enumerate(zip(plan.loops[1:], printed[1:], strict=True)):
        used = dict.fromkeys(names.buffers[name] for name in (*loop.reads, *loop.writes))
        passed = [*used, *names.sizes.values(), "column", *index_argument]
        functions += [*function_lines(f"litz_finish{number}", passed, each), "", ""]
        calls.append(f"litz_finish{number}({', '.join(passed)})")
    if finish:
        printed[0].write_finish(calls)
    symbol = _symbol(plan.loops[0])
    counters = ["counters"] if finish else []
    functions += function_lines(
        symbol, [*names.buffers.values(), *counters, *names.sizes.values(), *index_argument], printed[0]
    )
    body = "\n".join(functions)
    text = "\n".join([*_header(plan, first), *import_lines(body), "", "", body, ""])
    blocks = int(_blocks(first.tiling, names)) if finish else 0
    return KernelText(text, symbol, _grid(first.tiling, names), limit_texts, blocks)


def function_lines(name: str, parameters: Sequence[str], printed: Printer) -> list[str]:
    """Returns the lines of a function. Positions whose type no parameter says have 32 bits."""
    listed = ", ".join(f"{name}: tl.constexpr" if name == "INDEX" else name for name in parameters)
    fixed = printed.positions == "INDEX" and "INDEX" not in parameters
    body = ["    INDEX: tl.constexpr = tl.int32"] * fixed + printed.lines
    return ["@triton.jit", f"def {name}({listed}):", "\n".join(body)]


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


def _header(plan: KernelPlan, first: TileProgram) -> list[str]:
    lines = []
    for loop, program in zip(plan.loops, (first, *first.finish), strict=True):
        tiling = program.tiling
        tile = " x ".join(f"{axis.name.upper()}BLOCK={axis.block}" for axis in tiling.axes)
        how = ", the row in registers" if tiling.persistent else ""
        warps = f"{tiling.num_warps} warp{'s' if tiling.num_warps > 1 else ''}"
        then = "" if program is first else "then, by the last program: "
        lines.append(f"# {then}{' + '.join(_ops(loop)) or 'copy'}: {tile}{how}, {warps}")
    for name, short_name in first.names.buffers.items():
        reads = any(name in loop.reads for loop in plan.loops)
        writes = any(name in loop.writes for loop in plan.loops)
        use = "read and written" if reads and writes else "written" if writes else "read"
        lines.append(f"#   {short_name}: {short(plan.buffers[name].dtype)}, {use}")
    return lines


def _grid(tiling: Tiling, names: Names) -> str:
    pieces = [size_text(r.size, names.sizes) for r in tiling.pieces]
    text = " * ".join([*pieces, _blocks(tiling, names)])
    symbolic = any(r.size.free_symbols for axis in tiling.grid_axes for r in (*axis.ranges, *tiling.pieces))
    return text if symbolic else str(eval(text, {}))


def _blocks(tiling: Tiling, names: Names) -> str:
    """Returns how many blocks of outputs there are: a number if the sizes are."""
    parts = [
        f"(-(-{size_text(axis.size, names.sizes)} // {axis.block * axis.step}){f' * {axis.step}' * (axis.step > 1)})"
        for axis in tiling.grid_axes
    ]
    text = " * ".join(parts)
    return text if any(axis.size.free_symbols for axis in tiling.grid_axes) else str(eval(text, {}))

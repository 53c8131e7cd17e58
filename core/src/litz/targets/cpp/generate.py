"""The C++ of one kernel: in, a `KernelPlan` and its target; out, a `KernelSource`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from litz.codegen.kernel_plan import KernelPlan, sizes_of
from litz.errors import CodegenError
from litz.ir import Loop
from litz.ir.index import Expr, may_be_empty, to_expr
from litz.target import figures_of
from litz.tiles.names import Names
from litz.tiles.program import Leave, Nest
from litz_plugins.records import CodegenContext, KernelSource, Target

from .body import Body
from .codegen import SYMBOL
from .column import write_column
from .constructs import constructs_in, find_construct
from .dialect import ELEMENTS
from .figures import CppFigures
from .jammed import write_jammed
from .loops import Writer, joined
from .pointwise import write_pointwise
from .prelude import prelude
from .print import Lines, Printer
from .reduction import write_row, write_small
from .segments import segments
from .text import IndexText
from .tiling import Mode, Tiling, tile_kernel


def generate(kernel: KernelPlan, context: CodegenContext) -> KernelSource:
    """Returns the C++ source of one kernel. Errors: CodegenError."""
    limits = figures_of(context.target, CppFigures)
    tiling, nest, parts = make_nest(kernel, context.target)
    sizes, lines = nest.names.sizes, Lines()
    printer = Printer(nest, lines, limits.parallel_values, limits.long_values)
    printer.whole()
    written = set(tiling.loop.writes)
    parameters = [
        f"{'' if name in written else 'const '}{ELEMENTS[kernel.buffers[name].dtype]}* {pointer}"
        for name, pointer in nest.names.buffers.items()
    ]
    numbers = (*kernel.values(tuple(sizes)), *map(to_expr, nest.starts.values()))
    parameters += [f"i64 s{number}" for number in range(len(numbers))]
    function = [f'extern "C" int {SYMBOL}({", ".join(parameters)}) {{', *lines.text, "}", ""]
    text = "\n".join(function)
    forms = _safe_forms(kernel.name, text, context)
    return KernelSource(
        name=kernel.name,
        language="cpp",
        text=f"// {_summary(tiling, parts)}\n{prelude(text)}\n{text}",
        symbol=SYMBOL,
        arguments=(*nest.names.buffers, *numbers),
        settings={
            "bounds": [[printer.index.text(size), what] for size, what in nest.checks],
            "sizes": len(numbers),
            "threads": "omp parallel" in text,
            **({"forms": forms} if forms else {}),
        },
    )


def _safe_forms(kernel: str, text: str, context: CodegenContext) -> list[str]:
    """The safe forms that a kernel is to be built in, sorted. CodegenError if the compiler has none for a construct."""
    constructs = constructs_in(text)
    known = context.safe_forms(constructs)
    forms = {name: known[name] for name in constructs if name in known}
    for name, form in forms.items():
        if form is None:
            raise CodegenError(
                kernel,
                f"the C++ compiler builds wrong code for {name!r} ({find_construct(name).about}), even unoptimized",
                device="cpu",
                todo="name another compiler: CXX=/path/to/g++ or options={'cpp.compiler': ...}; `litz doctor` tests it",
            )
    return sorted(set(filter(None, forms.values())))


def make_nest(kernel: KernelPlan, target: Target) -> tuple[Tiling, Nest, int]:
    """Returns how a kernel runs, its lines as data, and in how many segments."""
    limits = figures_of(target, CppFigures)
    tiling = tile_kernel(kernel, limits)
    groups = segments(tiling, kernel, limits)
    used = [name for name in kernel.buffers if name in tiling.loop.reads or name in tiling.loop.writes]
    starts = {name: kernel.starts[name] for name in used if name in kernel.starts}
    pointers = {name: f"p{number}" for number, name in enumerate(used)}
    size_texts = {size: f"s{n}" for n, size in enumerate(sizes_of((tiling.loop,)))}

    def names_of(loop: Loop) -> Names:
        return Names(pointers, {r.var: str(r.var) for r in loop.all_ranges}, size_texts)

    def made(tiling: Tiling, count: int = 0) -> tuple[Nest, int]:
        loop, names = tiling.loop, names_of(tiling.loop)
        body = Body(loop, IndexText(names.index_names, loop.extents), count)
        writer = Writer(tiling, body, target)
        checks: tuple[tuple[Expr, str], ...] = ()
        if all(r.size != 0 for r in loop.ranges):
            checks, leaves = _checks(loop)
            body.put(*leaves)
            (write_jammed if tiling.jam is not None else _WRITERS[tiling.mode])(writer)
        lines, atomic = tuple(body.made), body.atomic and writer.combines
        nest = Nest(kernel.buffers, names, loop.extents, lines, starts, checks, atomic, writer.threaded, tiling.work)
        return nest, body.count

    def whole(group: Sequence[Tiling]) -> Nest:
        nest, count = made(group[0])
        for tiling in group[1:]:
            other, count = made(tiling, count)
            extents = {var: max(size, other.extents[var]) for var, size in nest.extents.items()}
            nest = replace(nest, extents=extents, lines=joined(nest.lines, other.lines))
        return nest

    if len(groups) == 1:
        return tiling, whole(groups[0]), len(groups[0])
    parts, loop = tuple(map(whole, groups)), tiling.loop
    threaded = any(part.threaded for part in parts)
    nest = Nest(kernel.buffers, names_of(loop), loop.extents, (), starts, (), False, threaded, tiling.work, parts)
    return tiling, nest, sum(map(len, groups))


_WRITERS: Mapping[Mode, Callable[[Writer], None]] = {
    "pointwise": write_pointwise,
    "row": write_row,
    "column": write_column,
    "small": write_small,
}


def _checks(loop: Loop) -> tuple[tuple[tuple[Expr, str], ...], tuple[Leave, ...]]:
    """Returns the checks of a loop's positions, and the places where the kernel ends at once because sizes are 0."""
    nodes = [node for node in loop.nodes if node.op == "bounded"]
    checks = tuple(dict.fromkeys(node.attrs for node in nodes))
    empty = tuple(r.size for r in loop.ranges if may_be_empty(r.size))
    leaves = {Leave(empty): None} if nodes and empty else {}
    walked = tuple(r.size for r in loop.reduction_ranges if may_be_empty(r.size))
    # Nothing is within a size of 0, and element 0, which stands in for what is not, does not exist. Under a mask the
    # loads see to that (build.guard).
    for node in nodes:
        if may_be_empty(node.attrs[0]) and len(node.args) == 1:
            number = checks.index(node.attrs) + 1
            leaves[Leave(node.attrs[:1], walked if loop.levels[node] else (), number)] = None
    return checks, tuple(leaves)


def _summary(tiling: Tiling, parts: int) -> str:
    """Returns the kernel's work, for a reader: `row kernel [64 | 1000]: reduce max, sub, exp, reduce sum, div`."""
    ops: dict[str, None] = {}
    for node in tiling.loop.nodes:
        if node.op in ("reduce", "scan"):
            ops[f"{node.op} {node.attrs[0]}"] = None
        elif node.op not in ("const", "load", "index"):
            ops[node.op] = None
    # Symbols differ from graph to graph, and the text must not.
    outer, inner = (
        ", ".join(str(r.size) if r.size.is_Integer else "?" for r in ranges)
        for ranges in (tiling.loop.ranges, tiling.loop.reduction_ranges)
    )
    shape = f"[{outer} | {inner}]" if inner else f"[{outer}]"
    kind = f"{tiling.mode} kernel" + (f" in {parts} segments" if parts > 1 else "")
    return f"{kind} {shape}: {', '.join(ops) or 'copy'}"

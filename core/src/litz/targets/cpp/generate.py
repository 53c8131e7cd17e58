"""The C++ of one kernel: in, a `KernelPlan` and its target; out, a `KernelSource`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from litz.codegen.kernel_plan import KernelPlan, sizes_of
from litz.errors import CodegenError
from litz.ir import Loop
from litz.ir.index import may_be_empty, to_expr
from litz.target import figures_of
from litz_plugins.records import CodegenContext, KernelSource, Target

from .body import Body, Lines
from .codegen import SYMBOL
from .column import write_column
from .constructs import constructs_in, find_construct
from .dialect import ELEMENTS
from .figures import CppFigures
from .jammed import write_jammed
from .loops import Writer
from .pointwise import write_pointwise
from .prelude import prelude
from .reduction import write_row, write_small
from .segments import segments
from .text import IndexText
from .tiling import Mode, Tiling, join_short, tile_kernel


def generate(kernel: KernelPlan, context: CodegenContext) -> KernelSource:
    """Returns the C++ source of one kernel. Errors: CodegenError."""
    target = context.target
    limits = figures_of(target, CppFigures)
    tiling = tile_kernel(kernel, limits)
    parts = tuple(map(join_short, segments(tiling, kernel, limits)))
    tiling = parts[0] if len(parts) == 1 else tiling
    loop, sizes = tiling.loop, sizes_of((tiling.loop,))
    names = [name for name in kernel.buffers if name in loop.reads or name in loop.writes]
    pointers = {name: f"p{number}" for number, name in enumerate(names)}
    size_texts = {size: f"s{n}" for n, size in enumerate(sizes)}
    lines = Lines()
    starts = {name: kernel.starts[name] for name in names if name in kernel.starts}
    for number, name in enumerate(starts, len(sizes)):
        lines.add(f"{pointers[name]} += s{number};")

    def body_of(loop: Loop) -> Body:
        texts = {r.var: str(r.var) for r in loop.all_ranges} | size_texts
        return Body(loop, pointers, IndexText(texts, loop.extents), lines)

    body = body_of(loop)
    if len(parts) == 1:
        _write(tiling, body, target)
    else:
        writers = [Writer(part, body_of(part.loop), target, team=True) for part in parts]
        _write_segments(Writer(tiling, body, target), writers)
    written = set(loop.writes)
    parameters = [
        f"{'' if name in written else 'const '}{ELEMENTS[kernel.buffers[name].dtype]}* {pointers[name]}"
        for name in names
    ]
    numbers = (*kernel.values(sizes), *map(to_expr, starts.values()))
    parameters += [f"i64 s{number}" for number in range(len(numbers))]
    function = [f'extern "C" int {SYMBOL}({", ".join(parameters)}) {{', *lines.text, "}", ""]
    text = "\n".join(function)
    forms = _safe_forms(kernel.name, text, context)
    return KernelSource(
        name=kernel.name,
        language="cpp",
        text=f"// {_summary(tiling, len(parts))}\n{prelude(text)}\n{text}",
        symbol=SYMBOL,
        arguments=(*names, *numbers),
        settings={
            "bounds": [[body.index.text(size), what] for size, what in body.bounds],
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


def _write(tiling: Tiling, body: Body, target: Target) -> None:
    loop, lines = tiling.loop, body.lines
    if any(r.size == 0 for r in loop.ranges):
        lines.add("return 0;  // no elements")
        return
    checks = [node for node in loop.nodes if node.op == "bounded"]
    if checks:
        lines.add("int bad = 0;")
        empty = [f"{body.index.text(r.size)} == 0" for r in loop.ranges if may_be_empty(r.size)]
        if empty:
            lines.add(f"if ({' || '.join(empty)}) return 0;")
        walked = [f" && {body.index.text(r.size)}" for r in loop.reduction_ranges if may_be_empty(r.size)]
        # Nothing is within a size of 0, and element 0, which stands in for what is not, does not exist. Under a mask
        # the loads see to that (build.guard).
        impossible: dict[str, None] = {}
        for node in checks:
            number = body.bound_number(node)
            if may_be_empty(node.attrs[0]) and len(node.args) == 1:
                points = "".join(walked) if loop.levels[node] else ""
                impossible[f"if ({body.index.text(node.attrs[0])} == 0{points}) return {number};"] = None
        lines.add(*impossible)
    _writer(tiling)(Writer(tiling, body, target))
    lines.add("return bad;" if checks else "return 0;")


_WRITERS: Mapping[Mode, Callable[[Writer], None]] = {
    "pointwise": write_pointwise,
    "row": write_row,
    "column": write_column,
    "small": write_small,
}


def _writer(tiling: Tiling) -> Callable[[Writer], None]:
    return write_jammed if tiling.jam is not None else _WRITERS[tiling.mode]


def _write_segments(whole: Writer, parts: Sequence[Writer]) -> None:
    """Writes the segments one after the other; threads share each of them, all within one parallel region."""
    region = f"#pragma omp parallel{whole.worth_it()}"
    with whole.lines.block(*((region, "") if whole.threaded else ("",))):
        for part in parts:
            with whole.lines.block(""):
                _writer(part.tiling)(part)
    whole.lines.add("return 0;")


def _summary(tiling: Tiling, parts: int) -> str:
    """What the kernel computes, for a reader: `row kernel [64 | 1000]: reduce max, sub, exp, reduce sum, div`."""
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

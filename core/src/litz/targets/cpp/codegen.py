"""CppCodegen: a KernelPlan in, C++ source out, and a function that launches it.

The text names neither buffers nor the kernel, so that kernels that differ only in those are built once. Its arguments
are p0, p1, ... (buffers in order of first use) and s0, s1, ... (sizes, then the elements that some of the buffers are
counted from).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from litz.codegen.kernel_plan import KernelPlan, sizes_of
from litz.errors import CodegenError
from litz.ir import Loop
from litz.ir.index import may_be_empty, to_expr
from litz_plugins.errors import describe
from litz_plugins.records import CodegenContext, KernelSource

from .body import Body, Lines
from .column import write_column
from .constructs import constructs_in, find_construct
from .dialect import ELEMENTS
from .jammed import write_jammed
from .loops import Writer
from .pointwise import write_pointwise
from .prelude import prelude
from .reduction import write_row, write_small
from .segments import segments
from .text import IndexText
from .tiling import Mode, Tiling, join_short, tile_kernel

SYMBOL = "kernel"
Load = Callable[[KernelSource, CodegenContext], Callable[..., Any]]


@dataclass(frozen=True)
class CppCodegen:
    """The code generator for the CPU. `loader` builds and loads; by default `litz.targets.cpp.build.load_kernel`."""

    loader: Load | None = None
    language: str = "cpp"
    loads_from_source: bool = True
    names_nothing: bool = True

    def generate(self, kernel: KernelPlan, context: CodegenContext) -> KernelSource:
        """Returns the C++ of one kernel, the same text for the same kernel. Errors: CodegenError if the kernel has no
        C++."""
        try:
            return generate(kernel, context)
        except (NotImplementedError, KeyError) as error:
            problem = f"no C++ for {' + '.join(kernel.origins)}: {describe(error)}"
            raise CodegenError(kernel.name, problem, device="cpu") from error

    def load(self, source: KernelSource, context: CodegenContext) -> Callable[..., Any]:
        """Builds the kernel's library, or takes it from the cache, and loads it. Returns the function that runs the
        kernel, whose arguments are addresses and sizes as ints."""
        # By name: code generation does not import the runtime.
        loader = self.loader or import_module("litz.targets.cpp.build").load_kernel
        launch: Callable[..., Any] = loader(source, context)
        return launch


def generate(kernel: KernelPlan, context: CodegenContext) -> KernelSource:
    """Returns the C++ source of one kernel. Errors: CodegenError."""
    tiling = tile_kernel(kernel)
    parts = tuple(map(join_short, segments(tiling, kernel)))
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

    body, threads = body_of(loop), context.target.units
    if len(parts) == 1:
        _write(tiling, body, threads)
    else:
        writers = [Writer(part, body_of(part.loop), threads, team=True) for part in parts]
        _write_segments(Writer(tiling, body, threads), writers)
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


def _write(tiling: Tiling, body: Body, threads: int) -> None:
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
    _writer(tiling)(Writer(tiling, body, threads))
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

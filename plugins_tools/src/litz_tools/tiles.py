"""For `litz explain --tiles` and the report's page: what one program of each kernel does, as a TileProgram's text
(docs/tiles.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from litz.codegen.kernel_plan import plan_kernel
from litz.targets.cpp.generate import make_nest
from litz.targets.triton.codegen import TritonCodegen
from litz.tiles.program import Nest
from litz_plugins import CodegenContext

from .nest_text import nest_text
from .tile_text import program_text

if TYPE_CHECKING:
    from litz.execution import ExecutionPlan
    from litz.report import CompileReport


def tiles_of(report: CompileReport) -> dict[str, str]:
    """Returns the text of the TileProgram of each kernel, by the kernel's name."""
    if report.plan is None:
        return {}
    found = {}
    for kernel in report.plan.kernels:
        texts = [text for _, text in _programs(kernel, report.plan) if text is not None]
        if texts:
            found[kernel.name] = "\n".join(texts)
    return found


def _programs(kernel: Any, plan: ExecutionPlan) -> Iterator[tuple[Any, str | None]]:
    """Yields each part of a kernel with the text of its TileProgram, None where it has none."""
    for part in getattr(kernel, "parts", ()):
        target: Any = plan.targets.get(part.device)
        if target is None:
            yield part, None
            continue
        kernel_plan = plan_kernel(part, plan.program)
        if part.device.type == "cpu":
            yield part, nest_text(make_nest(kernel_plan, target)[1])
            continue
        context = CodegenContext(None, target, plan.program)  # type: ignore[arg-type]
        yield part, program_text(TritonCodegen().tiles(kernel_plan, context))


def tile_lines(reports: Sequence[CompileReport]) -> Iterator[str]:
    """Yields the lines for each graph: its name, then each kernel with its TileProgram, or why there is none."""
    for report in reports:
        yield f"{report.name}:"
        if report.plan is None:
            yield "  it came from the graph cache: options={'graph_cache': False} or another LITZ_CACHE_DIR compiles it"
            continue
        for call in report.plan.program.operations:
            for made in getattr(getattr(call, "source", None), "tiles", ()):  # a template's
                yield f"  {call.name}:"
                shown = nest_text(made) if isinstance(made, Nest) else program_text(made)
                yield from (f"    {line}" for line in shown.splitlines())
        for kernel in report.plan.kernels:
            for part, text in _programs(kernel, report.plan):
                if text is None:
                    yield f"  {part.name}: nothing is known of the target {part.device}"
                    continue
                yield f"  {part.name}: {' + '.join(part.fused)}"
                yield from (f"    {line}" for line in text.splitlines())

"""`litz explain --tiles`: what one program of each kernel does, as the text of a TileProgram (docs/tiles.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from litz.codegen.kernel_plan import plan_kernel
from litz.targets.triton.codegen import TritonCodegen
from litz_plugins import CodegenContext

from .tile_text import program_text

if TYPE_CHECKING:
    from litz.report import CompileReport


def tile_lines(reports: Sequence[CompileReport]) -> Iterator[str]:
    """Yields the lines for each graph: its name, then each kernel with its TileProgram, or why there is none."""
    for report in reports:
        yield f"{report.name}:"
        if report.plan is None:
            yield "  it came from the graph cache: options={'graph_cache': False} or another LITZ_CACHE_DIR compiles it"
            continue
        for kernel in report.plan.kernels:
            for part in getattr(kernel, "parts", ()):
                target: Any = report.plan.targets.get(part.device)
                if part.device.type == "cpu" or target is None:
                    yield f"  {part.name}: kernels for {part.device.type} are not made of TilePrograms yet"
                    continue
                plan = plan_kernel(part, report.plan.program)
                context = CodegenContext(None, target, report.plan.program)  # type: ignore[arg-type]
                yield f"  {part.name}: {' + '.join(part.fused)}"
                yield from (f"    {line}" for line in program_text(TritonCodegen().tiles(plan, context)).splitlines())

"""A report in a few lines, for logs: in, a report; out, text."""

from __future__ import annotations

from collections.abc import Iterator

from litz.logs.units import count_text, size_text, time_text

from .groups import considered_text, group_decisions, group_steps, origin_in_short
from .report import CompileReport

FUSING = ("program", "schedule")
"""Stages whose decisions are about what is in one kernel."""
NOTHING = "nothing"


def summary_line(report: CompileReport) -> str:
    """Returns one line, such as "graph0_forward: 50 loops in 22 kernels, 19 library calls; 1.8 MiB; compiled in 2.85
    s"; a graph from the graph cache was "found in the graph cache in 0.02 s"."""
    done = "found in the graph cache" if report.graph_cache.startswith("hit") else "compiled"
    parts = [
        f"{count_text(report.loops_before, 'loop')} in {count_text(report.kernels_after, 'kernel')}, "
        f"{count_text(sum(report.externs.values()), 'library call')}",
        f"about {time_text(report.total_us)}" if report.timed else f"{size_text(report.total_bytes)} read and written",
        f"{done} in {report.compile_seconds:.2f} s",
    ]
    parts += [f"{count_text(report.cache_hits, 'kernel')} from the cache"] if report.cache_hits else []
    return f"{report.name}: {'; '.join(parts)}"


def fusion_text(report: CompileReport) -> str:
    """Returns what was fused and what was not, equal decisions together, each with its weighed costs."""
    lines: list[str] = []
    for group in group_decisions(report):
        if group.stage in FUSING:
            lines.append(f"{group.chosen} x{len(group.decisions)}: {group.reason}")
            lines += [f"  {considered_text(decision, report.timed)}" for decision in group.decisions]
    return "\n".join(lines) or NOTHING


def hints_text(report: CompileReport) -> str:
    """Returns what may make the graph slower than it could be, as text."""
    return "\n".join(_hints(report)) or NOTHING


def _hints(report: CompileReport) -> Iterator[str]:
    """What the library does that is no contraction: a kernel would read and write less, as it can be fused."""
    for alike in group_steps([step for step in report.steps if step.kind == "extern"]):
        origin = origin_in_short(alike)
        times = f" x{len(alike)}" if len(alike) > 1 else ""
        yield f"{alike[0].what}{times} is left to the library, {size_text(alike[0].bytes)} each" + (
            f": {origin}" if origin else ""
        )
    for group in group_decisions(report):
        if group.chosen == "written to a buffer":
            yield f"{group.chosen} x{len(group.decisions)}: {group.reason}"

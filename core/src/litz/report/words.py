"""A report in a few lines: in, a report; out, text. litz-tools has more of it."""

from __future__ import annotations

from litz.logs.units import count_text, size_text, time_text

from .report import CompileReport


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


def brief_text(report: CompileReport) -> str:
    """Returns a line on the graph, and one for each step and decision, in order."""
    lines = [summary_line(report)]
    for step in report.steps:
        cost = "" if step.estimate is None or not report.timed else f"{time_text(step.us)}, "
        does = step.title if step.title == step.what else f"{step.title} {step.what}"
        lines.append(f"  {step.name}: {does}; {cost}{size_text(step.bytes)}" + (step.origin and f"; {step.origin}"))
    lines += [f"  {one.subject}: {one.chosen}, because {one.reason} ({one.plugin})" for one in report.decisions]
    return "\n".join(lines) + "\n"

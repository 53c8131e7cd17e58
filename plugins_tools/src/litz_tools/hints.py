"""What the logs say of a report: what was fused, and what may be slow. In: a report. Out: text.

`TORCH_LOGS=fusion,perf_hints` shows both.
"""

from __future__ import annotations

from collections.abc import Iterator

from litz import logs
from litz.logs.units import size_text
from litz.report import CompileReport

FUSING = ("program", "schedule")
"""Stages whose decisions are about what is in one kernel."""
NOTHING = "nothing"


def log_hints(report: CompileReport) -> None:
    """Logs both texts, for whoever asked for them."""
    logs.show("fusion", report.name, lambda: fusion_text(report))
    logs.show("perf_hints", report.name, lambda: hints_text(report))


def fusion_text(report: CompileReport) -> str:
    """Returns what was fused and what was not, equal decisions together, each with its weighed costs."""
    from .groups import considered_text, group_decisions  # here: most have asked for no text

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
    """Yields what the library does that is no contraction: a kernel would read and write less, as it can be fused."""
    from .groups import group_decisions, group_steps, origin_in_short  # here: most have asked for no text

    for alike in group_steps([step for step in report.steps if step.kind == "extern"]):
        origin = origin_in_short(alike)
        times = f" x{len(alike)}" if len(alike) > 1 else ""
        yield f"{alike[0].what}{times} is left to the library, {size_text(alike[0].bytes)} each" + (
            f": {origin}" if origin else ""
        )
    for group in group_decisions(report):
        if group.chosen == "written to a buffer":
            yield f"{group.chosen} x{len(group.decisions)}: {group.reason}"


__all__ = ["fusion_text", "hints_text", "log_hints"]

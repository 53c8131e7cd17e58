"""Where the time of first calls went: a table of stages. In: the reports of a run, and what torch took. Out: rich."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from litz.logs.units import count_text
from litz.report import CompileReport

from .torch_seconds import TorchSeconds

DOES = {
    "dynamo": "torch: traces Python, makes guards",
    "AOTAutograd": "torch: traces operations and gradients",
    "graph cache": "looks for a graph that was compiled before",
    "start": "plugins and options are read",
    "traced passes": "plugins change what dynamo traced",
    "joint passes": "what a gradient reads, before it is decided what is saved",
    "partition": "what the forward saves for the backward",
    "graph passes": "layouts, constants, common subexpressions",
    "lower": "operations become loops",
    "program passes": "inlining, splits, choice of contractions",
    "schedule": "fusion and order",
    "plan": "memory, names, times",
    "generate": "text of kernels and wrapper",
    "build": "compilers run, or the cache is read",
    "keep": "writes the graph to the cache",
    "report": "records what each pass changed",
}
"""What happens in each stage, in order."""


@dataclass(frozen=True)
class Stage:
    """The wall time of one stage, over all graphs."""

    name: str
    seconds: float
    own: bool
    """Is the stage litz's?"""


def stages_of(reports: Sequence[CompileReport], torch: TorchSeconds | None) -> list[Stage]:
    """Returns the stages that the reports' graphs went through, torch's first. Within the backend's time, what is not
    in a stage of litz is AOTAutograd's (with the imports of both). torch: over the same compiles; None leaves its
    out."""
    own: dict[str, float] = dict.fromkeys(DOES, 0.0)
    for report in reports:
        for name, seconds in report.stage_seconds.items():
            own[name] = own.get(name, 0.0) + seconds
    found = [Stage(name, seconds, True) for name, seconds in own.items() if seconds]
    if torch is None:
        return found
    rest = torch.backend - sum(own.values())
    return [Stage("dynamo", torch.dynamo, False), Stage("AOTAutograd", max(rest, 0.0), False), *found]


def render_stages(reports: Sequence[CompileReport], torch: TorchSeconds | None, console: Console) -> None:
    """Returns a table with a row for each stage, its seconds and its share, then litz's stages and everything
    together."""
    stages = stages_of(reports, torch)
    total, own = sum(s.seconds for s in stages), sum(s.seconds for s in stages if s.own)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage", no_wrap=True)
    for name in ("seconds", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what is done", overflow="fold")

    def row(name: str, seconds: float, what: str, style: str = "") -> None:
        table.add_row(name, f"{seconds:.2f}", f"{seconds / total:.0%}" if total else "", what, style=style)

    for stage in stages:
        row(stage.name, stage.seconds, DOES.get(stage.name, ""))
    row("litz", own, "all stages of litz together", "bold")
    if torch is not None:
        row("all", total, "all torch.compile calls, without first runs", "bold")
    kernels, hits = sum(r.kernels_after for r in reports), sum(r.cache_hits for r in reports)
    console.print(table)
    made = f"{count_text(len(reports), 'graph')}, {count_text(kernels, 'kernel')}"
    console.print(f"{made}, {hits} of them from the cache; wall time.")

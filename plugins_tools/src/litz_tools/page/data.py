"""What the page of a graph carries as JSON. In: a report. Out: blocks of JSON-able data by name, which page.js reads.
`litz report` reads the blocks of a page that is there, and puts others in their place.

Each block is read when a reader comes to what it shows, so that a page with thousands of steps is there at once.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from litz.logs.units import count_text, size_text, time_text
from litz.report.report import CompileReport
from litz.report.step import Step
from litz.report.streams import COMMUNICATION

from ..contractions import group_contractions
from ..errors import ReportFileError
from ..groups import considered_text, group_decisions
from ..pass_notes import changes_of
from ..trace import spans_of
from .lines import function_of, line_of
from .repeats import layers_of, step_repeats

if TYPE_CHECKING:
    from ..measured import Measured
    from ..resources import Resources


@dataclass(frozen=True)
class More:
    """The part of a page that the report does not say. guards: of the graph (`guards`). resources: of each CUDA kernel.
    tiles: the text of each kernel's TileProgram. machine: where the machine code of each CUDA kernel lies, counted
    from the page. memory: the planned memory of the graph (`held.memory_of_one`), of a backward after that of its
    forward."""

    guards: Sequence[Sequence[str]] = ()
    resources: Mapping[str, Resources] = field(default_factory=dict)
    tiles: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)
    memory: Sequence[Mapping[str, Any]] = ()


def page_data(report: CompileReport, more: More) -> dict[str, Any]:
    """Returns the page's blocks of data, by name."""
    return {
        "facts": _facts(report),
        "measured": {},
        "beside": {},
        "guards": [list(row) for row in more.guards],
        "steps": _steps(report, more.resources),
        "time": _time(report),
        "decisions": _decisions(report),
        "contractions": _contractions(report),
        "passes": [_change(change) for change in changes_of(report)],
        "code": _code(report, more),
    }


_BLOCK = re.compile(r'(<script type="application/json" id="data-(\w+)">)(.*?)(</script>)', re.DOTALL)


def read_blocks(page: Path) -> dict[str, Any]:
    """Returns the blocks of a graph's page. Errors: ReportFileError."""
    try:
        found = {name: json.loads(text) for _, name, text, _ in _BLOCK.findall(page.read_text(encoding="utf-8"))}
    except (OSError, ValueError) as error:
        raise ReportFileError(f"the page cannot be read: {error}", path=str(page)) from error
    if not {"facts", "measured", "beside", "steps"} <= set(found):
        raise ReportFileError("this is no page of a graph, or one of another version of litz-tools", path=str(page))
    return found


def write_blocks(page: Path, new: Mapping[str, Any]) -> None:
    """Puts blocks into a page in place of those of the same names. Errors: OSError."""
    text = page.read_text(encoding="utf-8")
    page.write_text(
        _BLOCK.sub(lambda found: f"{found[1]}{_safe(new[found[2]]) if found[2] in new else found[3]}{found[4]}", text),
        encoding="utf-8",
    )


def measured_block(found: Measured, date: str) -> dict[str, Any]:
    """Returns the block of measured times."""
    return asdict(found) | {"date": date}


def _facts(report: CompileReport) -> dict[str, Any]:
    """The graph's name, when the page was written, figures to lay beside another graph's, and what the device reaches
    at most, where that is known."""
    rows = {
        "kernels": count_text(report.kernels_after, "kernel"),
        "library calls": str(sum(report.externs.values())),
        "estimated": time_text(report.total_us) if report.timed else "",
        "read and written": size_text(report.total_bytes),
        "memory at its peak": size_text(report.memory_peak_bytes),
        "to compile": f"{report.compile_seconds:.2f} s",
    }
    targets = [] if report.plan is None else [one for one in report.plan.targets.values() if str(one.type) != "meta"]
    known = [one for one in targets if not one.rough and not one.assumed]
    peak = {}
    if len(known) == 1:
        rates = (*known[0].matrix.values(), *known[0].vector.values())
        peak = {"gb_s": known[0].bandwidth / 1e3, "tflops": max(rates, default=0.0) / 1e6, "source": known[0].source}
    written = time.strftime("%Y-%m-%d %H:%M")
    return {"name": report.name, "function": report.frame.function, "written": written, "rows": rows, "peak": peak}


def as_scripts(blocks: Mapping[str, Any]) -> str:
    """Returns the blocks as script elements of the page. No text in a block can end its element."""
    return "\n".join(
        f'<script type="application/json" id="data-{name}">{_safe(block)}</script>' for name, block in blocks.items()
    )


def _safe(block: Any) -> str:
    text = json.dumps(block, separators=(",", ":"), ensure_ascii=False, default=str)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _steps(report: CompileReport, resources: Mapping[str, Resources]) -> dict[str, Any]:
    """Each step as page.js shows it; the repeats; the texts of the user's lines, and the functions that they are in."""
    steps = report.steps
    repeats = [
        [found.start, found.period, found.count, layers_of(steps[found.start : found.end])]
        for found in step_repeats(steps)
    ]
    places = sorted({place for step in steps for place in step.places})
    return {
        "timed": report.timed,
        "steps": [_step(step, report, resources.get(step.name)) for step in steps],
        "repeats": repeats,
        "lines": {place: line_of(place) for place in places},
        "functions": {place: name for place in places if (name := function_of(place))},
    }


def _step(step: Step, report: CompileReport, takes: Resources | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": step.name,
        "kind": step.kind,
        "title": step.title,
        "what": step.what,
        "cost": report.cost(step),
        "bytes": step.bytes,
        "flops": step.flops,
    }
    if step.estimate is not None and report.timed:
        found |= {"low": step.estimate.low_us, "high": step.estimate.high_us, "why": step.estimate.why}
    more = {
        "origin": step.origin,
        "modules": step.modules,
        "places": step.places,
        "fused": step.fused,
        "reads": step.reads,
        "writes": step.writes,
        "waits": step.waits_for,
        "takes": None if takes is None else asdict(takes),
    }
    return found | {name: value for name, value in more.items() if value}


def _time(report: CompileReport) -> dict[str, Any]:
    """Returns each step's place on its stream, in µs (bytes of a report without times), and the memory during each."""
    numbers = {step.name: number for number, step in enumerate(report.steps)}
    spans = [
        [numbers[span.step.name], int(span.stream == COMMUNICATION), round(span.start, 3), round(span.us, 3)]
        for span in spans_of(report)
    ]
    return {"spans": spans, "held": report.memory_held, "peak": report.memory_peak_bytes}


def _decisions(report: CompileReport) -> list[dict[str, Any]]:
    return [
        {
            "stage": group.stage,
            "chosen": group.chosen,
            "reason": group.reason,
            "plugin": group.plugin,
            "items": [considered_text(decision, report.timed) for decision in group.decisions],
        }
        for group in group_decisions(report)
    ]


def _contractions(report: CompileReport) -> list[dict[str, Any]]:
    """Equal ones once: what is fused into it, what runs, and why nothing else does."""
    found = []
    for group in group_contractions(report.contractions):
        ways = (group.first.chosen, *group.rejected(None))
        facts = {
            "from": group.origin(report.program),
            "nodes": group.subjects(len(group.records)),
            "fused into it": group.fused(100),
        }
        found.append(
            {
                "title": group.title,
                "runs": group.first.chosen.name,
                "facts": [[name, text] for name, text in facts.items() if text],
                "ways": [[way.name, way.us if report.timed else None, way.verdict] for way in ways],
                "subjects": [record.subject for record in group.records],
            }
        )
    return found


def _change(change: Any) -> dict[str, Any]:
    return {
        "name": change.name,
        "stage": change.stage,
        "plugin": change.plugin,
        "ms": change.seconds * 1e3,
        "lines": [change.before, change.after],
        "removed": change.removed,
        "added": change.added,
        "more": [change.more_removed, change.more_added],
    }


def _code(report: CompileReport, more: More) -> list[dict[str, str]]:
    """Texts that were generated, the wrapper first: kernels of one text once, under all their names; beside a kernel's
    text its TileProgram, and where its machine code lies."""
    texts: list[tuple[str, str, Any]] = []
    if report.wrapper_source:
        texts.append(("wrapper", report.wrapper_source, report.wrapper_path))
    texts += [(name, text, report.kernel_paths.get(name)) for name, text in report.kernel_sources.items()]
    if report.plan is not None:
        texts.append(("schedule", str(report.plan), None))
    first: dict[str, str] = {}
    found = []
    for name, text, path in texts:
        row = {"name": name, "path": "" if path is None else str(path)}
        earlier = first.setdefault(text, name)
        own = {"text": text}
        own |= {key: known[name] for key, known in (("tiles", more.tiles), ("machine", more.machine)) if name in known}
        found.append(row | (own if earlier == name else {"same": earlier}))
    return found


__all__: Sequence[str] = ["More", "as_scripts", "measured_block", "page_data", "read_blocks", "write_blocks"]

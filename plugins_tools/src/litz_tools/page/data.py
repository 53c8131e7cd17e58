"""What the page of a graph carries as JSON. In: a report. Out: blocks of JSON-able data by name, which page.js reads.

Each block is read when a reader comes to what it shows, so that a page with thousands of steps is there at once.
"""

from __future__ import annotations

import json
import linecache
from collections.abc import Mapping, Sequence
from typing import Any

from litz.report.report import CompileReport
from litz.report.step import Step
from litz.report.streams import COMMUNICATION

from ..contractions import group_contractions
from ..groups import considered_text, group_decisions
from ..pass_notes import changes_of
from ..trace import spans_of
from .repeats import layers_of, step_repeats


def page_data(report: CompileReport) -> dict[str, Any]:
    """Returns the page's blocks of data, by name."""
    return {
        "steps": _steps(report),
        "time": _time(report),
        "decisions": _decisions(report),
        "contractions": _contractions(report),
        "passes": [_change(change) for change in changes_of(report)],
        "code": _code(report),
    }


def as_scripts(blocks: Mapping[str, Any]) -> str:
    """Returns the blocks as script elements of the page. No text in a block can end its element."""
    return "\n".join(
        f'<script type="application/json" id="data-{name}">{_safe(block)}</script>' for name, block in blocks.items()
    )


def _safe(block: Any) -> str:
    text = json.dumps(block, separators=(",", ":"), ensure_ascii=False, default=str)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _steps(report: CompileReport) -> dict[str, Any]:
    """Each step as page.js shows it; the repeats; the texts of the user's lines."""
    steps = report.steps
    repeats = [
        [found.start, found.period, found.count, layers_of(steps[found.start : found.end])]
        for found in step_repeats(steps)
    ]
    places = sorted({place for step in steps for place in step.places})
    return {
        "timed": report.timed,
        "steps": [_step(step, report) for step in steps],
        "repeats": repeats,
        "lines": {place: _line(place) for place in places},
    }


def _step(step: Step, report: CompileReport) -> dict[str, Any]:
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
    }
    return found | {name: value for name, value in more.items() if value}


def _line(place: str) -> str:
    """The text of a line "/home/me/model.py:41"; '' where the file is not there any more."""
    file, _, number = place.rpartition(":")
    return linecache.getline(file, int(number)).strip() if number.isdecimal() else ""


def _time(report: CompileReport) -> dict[str, Any]:
    """Where each step lies on its stream, in µs (bytes of a report without times), and the memory during each."""
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


def _code(report: CompileReport) -> list[dict[str, str]]:
    """Texts that were generated, the wrapper first: kernels of one text once, under all their names."""
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
        known = first.setdefault(text, name)
        found.append(row | ({"text": text} if known == name else {"same": known}))
    return found


__all__: Sequence[str] = ["as_scripts", "page_data"]

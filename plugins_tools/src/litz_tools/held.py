"""The planned memory of compiled graphs, step by step. In: reports. Out: data of each graph, and lines of at most 80
columns.

What a plan counts is what the graph makes, and what the forward saved for the backward. What stands all the while
(parameters, the batch, results) comes from an attachment of litz-passes for training, or from the program's inputs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from litz.logs.units import size_text
from litz.schedule.lifetimes import Lifetimes

if TYPE_CHECKING:
    from litz.report import CompileReport

ABOVE = 1.005
"""Of eager's planned peak, the most that a planned peak may be: what is more is above eager."""
PARTS = {
    "standing": "inputs; in a backward results, too",
    "saved": "saved for the backward",
    "others": "temporaries and gradients",
}
"""What a peak is made of."""
SHOWN = 10
"""Tensors that are shown of a peak."""
ROWS = 16
"""Rows of a timeline: of a longer one each row has several steps, and shows the most of them."""
NOTES = "memory.json", "standing_memory.json"
"""Attachments of litz-passes to the report of a forward: eager's peak and the budget, and what stands all the while."""
BAR = 30
WIDTH = 80


def memory_of(reports: Sequence[CompileReport]) -> list[dict[str, Any]]:
    """Returns the planned memory of each graph. "bytes" of a step is what is alive while the step runs. "tensors" are
    the largest at the peak, and "known" says whether the plan was there: a graph from the graph cache has none."""
    by_name = {report.name: report for report in reports}
    return [memory_of_one(report, by_name.get(forward_of(report.name), report).attachments) for report in reports]


def forward_of(name: str) -> str:
    """Returns the name of the forward of a graph that is a backward; of another graph one that nothing has."""
    return f"{name.removesuffix('_backward')}_forward"


def memory_of_one(report: CompileReport, notes: Mapping[str, str]) -> dict[str, Any]:
    """Returns the planned memory of one graph. notes: what is attached to its forward's report, or to its own."""
    facts, noted = (json.loads(notes.get(name, "{}")) for name in NOTES)
    standing = _standing(report, noted.get(report.kind))
    held = [standing + nbytes for nbytes in report.memory_held] or [standing]
    peak = max(held)
    steps = [
        {"step": step.name, "op": step.what, "origin": step.origin, "bytes": nbytes}
        for step, nbytes in zip(report.steps, held, strict=False)
    ]
    results = noted.get("results") if report.kind == "forward" else None
    tensors = [] if report.plan is None else _alive(report.plan, held.index(peak), results)
    tensors.append(_tensor("inputs, results and constants", standing))
    tensors.sort(key=lambda each: -each["bytes"])
    saved = sum(each["bytes"] for each in tensors if each["saved"])
    eager = facts.get("eager_bytes")
    return {
        "name": report.name,
        "kind": report.kind,
        "peak_bytes": peak,
        "peak_step": held.index(peak),
        "standing_bytes": standing,
        "parts": {"standing": standing, "saved": saved, "others": peak - standing - saved},
        "eager_bytes": eager,
        "eager_parts": facts.get("eager_parts"),
        "eager_origin": facts.get("eager_origin", ""),
        "above_eager": eager is not None and peak > ABOVE * eager,
        "budget": facts.get("budget"),
        "budget_bytes": facts.get("budget_bytes"),
        "known": report.plan is not None,
        "steps": steps,
        "tensors": [each for each in tensors if each["bytes"]][:SHOWN],
    }


def _standing(report: CompileReport, nbytes: int | None) -> int:
    """Returns the bytes that stand while a graph runs. nbytes: what a forward's report has noted of it."""
    program = report.program
    if program is None:
        return int(nbytes or 0)
    kinds = ("constant",) if nbytes is not None else ("constant", "input")
    own = [each for name, each in program.buffers.items() if each.kind in kinds and name not in program.dying_inputs]
    return int(nbytes or 0) + sum(program.hint(each.nbytes) for each in own)


def _alive(plan: Any, step: int, results: int | None) -> list[dict[str, Any]]:
    """Returns what is alive at a step. results: how many outputs of a forward are results, and not saved; None of other
    graphs."""
    program, lifetimes = plan.program, Lifetimes(plan.program, plan.steps)
    if not plan.steps:
        return []
    saved = set(lifetimes.dying())
    if results is not None:
        outputs = [getattr(each, "buffer", "") for each in program.outputs]
        saved |= set(outputs[results:]) - set(outputs[:results])
    found = [_tensor("small temporaries in one allocation", plan.memory.arena_bytes)]
    for name in lifetimes.alive(step, plan.memory.reuse):
        if name in plan.memory.arena:
            continue
        writers = [each for each in plan.steps if name in each.writes]
        origins = [str(each) for each in program.provenance.of(writers[0].origins)] if writers else []
        given = program.provenance.inputs.get(name, "")
        op = (getattr(writers[0], "target_name", "") or "kernel") if writers else ""
        origin = ", ".join(origins[:2]) or given.removeprefix("saved by ")
        found.append(_tensor(name, program.hint(program.buffers[name].nbytes), op, origin, name in saved))
    return found


def _tensor(name: str, nbytes: int, op: str = "", origin: str = "", saved: bool = False) -> dict[str, Any]:
    return {"name": name, "bytes": nbytes, "op": op, "origin": origin, "saved": saved}


def memory_lines(graphs: Sequence[Mapping[str, Any]], measured: Mapping[str, int]) -> Iterator[str]:
    """Yields the lines of all graphs, then what was measured."""
    for graph in graphs:
        for line in _graph_lines(graph):
            yield line.rstrip() if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."
    for device, nbytes in measured.items():
        yield f"measured on {device}: at most {size_text(nbytes)} in use (max_memory_allocated)"


def _graph_lines(graph: Mapping[str, Any]) -> Iterator[str]:
    peak, eager, budget = graph["peak_bytes"], graph["eager_bytes"], graph["budget_bytes"]
    count = len(graph["steps"])
    yield f"{graph['name']}: planned peak {size_text(peak)}, at step {graph['peak_step'] + 1} of {count}"
    if eager is not None:
        of = "" if graph["kind"] == "inference" else ", forward and backward"
        yield f"  eager's planned peak{of}: {size_text(eager)} ({peak / max(eager, 1):.0%} here)"
    if eager is not None and graph["eager_parts"] is not None:
        yield from _differences(graph)
    if budget is not None:
        yield f"  budget: {size_text(budget)} ({graph['budget']}), {size_text(budget - peak)} of it left"
    most = max(peak, eager or 0, budget or 0, 1)
    marks = {round(BAR * value / most): mark for value, mark in ((eager, "e"), (budget, "b")) if value is not None}
    yield ""
    for first, last, step in _rows(graph["steps"]):
        filled = round(BAR * step["bytes"] / most)
        bar = "".join(marks.get(at, "#" if at < filled else " ") for at in range(BAR + 1))
        span = f"{first + 1}-{last + 1}" if last > first else f"{first + 1}"
        yield f"  {span:>9} {bar} {size_text(step['bytes']):>10}  {step['origin'] or step['op']}"
    key = " and ".join(f"{mark}: {word}" for mark, word in (("e", "eager's peak"), ("b", "the budget"))
                       if mark in marks.values())  # fmt: skip
    if key:
        yield f"  {'':>9} {key}"
    yield ""
    yield "  alive at the peak, the largest first (s: saved for the backward)"
    for each in graph["tensors"]:
        mark = "s" if each["saved"] else " "
        op = each["op"].removeprefix("aten.").removesuffix(".default")
        yield f"  {size_text(each['bytes']):>10} {mark} {each['name']:<18} {op:<12.12} {each['origin']}"
    if not graph["known"]:
        yield "  The graph came from the graph cache. LITZ_GRAPH_CACHE=0 shows its tensors."
    yield ""


def _differences(graph: Mapping[str, Any]) -> Iterator[str]:
    """Yields what the two peaks are made of, and where eager's is."""
    if graph["known"]:
        yield f"    {'here':>10} {'eager':>10} {'more here':>10}"
        for part, words in PARTS.items():
            here, eager = graph["parts"][part], graph["eager_parts"][part]
            more = f"{'-' if here < eager else ''}{size_text(abs(here - eager))}"
            yield f"    {size_text(here):>10} {size_text(eager):>10} {more:>10}  {words}"
    yield f"    eager's is at {graph['eager_origin']}"


def _rows(steps: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
    """Yields (first step, last step, the largest of them)."""
    wide = -(-len(steps) // ROWS)
    for first in range(0, len(steps), max(wide, 1)):
        part = steps[first : first + wide]
        yield first, first + len(part) - 1, max(part, key=lambda step: step["bytes"])

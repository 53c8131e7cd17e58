"""The index over all graphs of a run. In: the summaries that reports leave in a folder. Out: one HTML page.

A run is a folder (the option report_dir): graphs of several processes may be in it. Each report's folder has a
summary.json, from which every writer makes the index anew, so that it needs no memory of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from litz.logs.units import count_text, size_text, time_text
from litz.report.report import CompileReport

from ..words import break_in_words
from .html import document, section, table

SUMMARY = "summary.json"
"""The file in a report's folder."""


def summary_of(report: CompileReport, process: int, written: float) -> dict[str, Any]:
    """Returns the index's facts about one graph. process: its id. written: seconds since 1970."""
    return {
        "name": report.name,
        "kind": report.kind,
        "device": report.device,
        "loops": report.loops_before,
        "kernels": report.kernels_after,
        "calls": sum(report.externs.values()),
        "us": report.total_us if report.timed else None,
        "bytes": report.total_bytes,
        "peak_bytes": report.memory_peak_bytes,
        "compile_seconds": report.compile_seconds,
        "graph_cache": report.graph_cache,
        "function": report.frame.function,
        "place": report.frame.place,
        "compile_id": report.frame.compile_id,
        "broke": report.frame.broke,
        "recompiled": report.frame.recompiled,
        "process": process,
        "written": written,
    }


def read_summaries(folder: Path) -> list[dict[str, Any]]:
    """Returns the summaries of all reports in a folder, in the order of writing, each with its "folder". What cannot be
    read is being written, and is left out."""
    found = []
    for path in folder.glob(f"*/{SUMMARY}"):
        try:
            found.append(json.loads(path.read_text(encoding="utf-8")) | {"folder": path.parent.name})
        except (OSError, ValueError):
            continue
    return sorted(found, key=lambda one: (one["written"], one["folder"]))


def render_index(graphs: Sequence[Mapping[str, Any]]) -> str:
    """Returns the page of a run's graphs. graphs: what `read_summaries` returns."""
    breaks = [one for one in graphs if one["broke"] and one["kind"] != "backward"]
    again = [one for one in graphs if one["recompiled"] and one["kind"] != "backward"]
    facts = [
        (str(len(graphs)), "graphs"),
        (str(len(breaks)), "graph breaks"),
        (str(len(again)), "recompiles"),
        (str(sum(one["kernels"] for one in graphs)), "kernels"),
        (f"{sum(one['compile_seconds'] for one in graphs):.1f} s", "to compile"),
        (str(sum(one["graph_cache"].startswith("hit") for one in graphs)), "from the graph cache"),
    ]
    cards = "".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for value, what in facts)
    body = (
        '<header><div class="row"><h1>litz: all graphs</h1><input id="search" type="search" '
        'placeholder="Filter: a name, a guard, a line  ( / )" aria-label="Filter the graphs" autocomplete="off">'
        f'</div></header><main><div class="facts">{cards}</div>'
        + section("graphs", f"Graphs ({len(graphs)})", _graphs(graphs))
        + section("breaks", f"Graph breaks ({len(breaks)})", _breaks(breaks))
        + section("recompiles", f"Recompiles ({len(again)})", _recompiles(again))
        + "</main>"
    )
    return document(f"litz: {count_text(len(graphs), 'graph')}", body, "", "index.js")


def _graphs(graphs: Sequence[Mapping[str, Any]]) -> str:
    columns = (
        ("graph", "name"),
        ("traced from", ""),
        ("kernels", "n"),
        ("calls", "n"),
        ("est.", "n"),
        ("traffic", "n extra"),
        ("peak memory", "n extra"),
        ("compile s", "n"),
        ("notes", ""),
    )
    head = "".join(
        f'<th class="sort {classes}"><button type="button">{escape(name)}</button></th>' for name, classes in columns
    )
    rows = []
    for one in graphs:
        us = one["us"]
        where = f"{one['function']} <span class='soft'>{escape(one['place'])} [{escape(one['compile_id'])}]</span>"
        cells = [
            (_link(one) + f'<br><span class="soft">{escape(one["kind"])}</span>', one["name"]),
            (where if one["function"] else "", one["function"]),
            (str(one["kernels"]), one["kernels"]),
            (str(one["calls"]), one["calls"]),
            ("?" if us is None else escape(time_text(us)), us or 0),
            (escape(size_text(one["bytes"])), one["bytes"]),
            (escape(size_text(one["peak_bytes"])), one["peak_bytes"]),
            (f"{one['compile_seconds']:.2f}", one["compile_seconds"]),
            (_notes(one), one["recompiled"] + one["broke"]),
        ]
        line = "".join(
            f'<td class="{classes}" data-by="{escape(str(by))}">{cell}</td>'
            for (cell, by), (_, classes) in zip(cells, columns, strict=True)
        )
        rows.append(f"<tr>{line}</tr>")
    body = "".join(rows)
    return f'<div class="wide"><table id="table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _link(one: Mapping[str, Any]) -> str:
    return f'<a href="{escape(one["folder"])}/report.html">{escape(one["name"])}</a>'


def _notes(one: Mapping[str, Any]) -> str:
    notes = []
    if one["recompiled"]:
        notes.append(f"traced again: {escape(one['recompiled'])}")
    if one["broke"]:
        notes.append(f"graph break: {escape(break_in_words(one['broke']).partition(':')[0])}")
    if one["graph_cache"].startswith("hit"):
        notes.append("from the graph cache")
    return "<br>".join(notes)


def _breaks(breaks: Sequence[Mapping[str, Any]]) -> str:
    """The reasons, each once, with the places and graphs that they broke off."""
    rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for one in breaks:
        rows.setdefault((one["broke"], one["place"]), []).append(one)
    cells = [
        [
            escape(place),
            f'<details class="item"><summary>{escape(break_in_words(reason))}</summary>'
            f'<pre class="wrapped">{escape(reason)}</pre></details>',
            ", ".join(map(_link, alike)),
        ]
        for (reason, place), alike in rows.items()
    ]
    return table([("at", "name"), ("because", ""), ("after graph", "")], cells)


def _recompiles(again: Sequence[Mapping[str, Any]]) -> str:
    cells = [[_link(one), escape(one["function"]), escape(one["recompiled"])] for one in again]
    return table([("graph", "name"), ("function", ""), ("the guard that failed", "")], cells)

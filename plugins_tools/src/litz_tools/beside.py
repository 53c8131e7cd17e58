"""Two runs side by side. In: the data of a graph's page, and another page or a trace. Out: the block that beside.js
shows.

A graph of litz's stands beside another by kinds of steps: what does the same on the same module is one row. A trace of
another program has names of its own, so its kernels stand beside the graph's, each list by its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from litz.logs.units import size_text, time_text

from .groups import places_in_short, without_numbers
from .measured import from_other_trace
from .page.data import read_blocks

Blocks = Mapping[str, Any]
MEASURED, ESTIMATED, BYTES = "measured µs", "est. µs", "bytes"


def of_folder(mine: Blocks, folder: Path) -> dict[str, Any]:
    """Returns the block for another graph's folder. Errors: ReportFileError."""
    other = read_blocks(folder / "report.html")
    unit = _unit(mine, other)
    left, right = _kinds(mine, unit), _kinds(other, unit)
    both = {name: (left.get(name, _NOTHING), right.get(name, _NOTHING)) for name in {**left, **right}}
    most = sorted(both.items(), key=lambda item: -abs((item[1][0][1] or 0.0) - (item[1][1][1] or 0.0)))
    rows = [[name, *here, *there] for name, (here, there) in most]
    theirs = other["facts"]
    facts = [[name, text, theirs["rows"].get(name, "")] for name, text in mine["facts"]["rows"].items()]
    facts += _times(mine, other)
    return {"kind": "graphs", "titles": _titles(mine, folder, theirs), "unit": unit, "facts": facts, "rows": rows}


Kind = tuple[float, float | None]
"""How many steps do the same, and what they cost together."""
_NOTHING: Kind = (0, None)


def _titles(mine: Blocks, folder: Path, theirs: Mapping[str, Any]) -> list[str]:
    return [f"this graph ({mine['facts']['written']})", f"{'/'.join(folder.parts[-2:])} ({theirs['written']})"]


def _unit(mine: Blocks, other: Blocks) -> str:
    """Returns what rows count: measured times if both pages have them, estimates if both have these, else bytes."""
    if mine["measured"] and other["measured"]:
        return MEASURED
    return ESTIMATED if mine["steps"]["timed"] and other["steps"]["timed"] else BYTES


def _kinds(blocks: Blocks, unit: str) -> dict[str, Kind]:
    """Returns how many steps do the same, and what they cost together, by what they do and where."""
    us = blocks["measured"].get("us", {})
    found: dict[str, list[tuple[str, float]]] = {}
    for step in blocks["steps"]["steps"]:
        does = " + ".join(without_numbers(step["title"].split(" + "))) if step["kind"] == "kernel" else step["title"]
        cost = us.get(step["name"], 0.0) if unit == MEASURED else step["cost" if unit == ESTIMATED else "bytes"]
        found.setdefault(f"{does} {step['what']}" if step["kind"] == "kernel" else does, []).append(
            (step.get("origin", ""), cost)
        )
    made: dict[str, Kind] = {}
    for name, alike in found.items():
        where = places_in_short([origin for origin, _ in alike])
        made[f"{name}\n{where}"] = (len(alike), sum(cost for _, cost in alike))
    return made


def _times(mine: Blocks, other: Blocks) -> list[list[str]]:
    times = [blocks["measured"].get("call_us") for blocks in (mine, other)]
    return [["a call, measured", *("" if us is None else time_text(us) for us in times)]] if any(times) else []


def of_trace(mine: Blocks, path: Path, calls: int | None) -> dict[str, Any]:
    """Returns the block for a trace of another program. Errors: ReportFileError."""
    other = from_other_trace(path, calls)
    unit = MEASURED if mine["measured"] else ESTIMATED if mine["steps"]["timed"] else BYTES
    left = _kinds(mine, unit)
    right = {name: (other.counts[name], us) for name, us in other.us.items()}
    total = sum(cost or 0.0 for _, cost in left.values())
    facts = [
        ["all of them", size_text(total) if unit == BYTES else time_text(total), time_text(sum(other.us.values()))]
    ]
    facts += [[name, "", text] for name, text in other.facts]
    return {
        "kind": "trace",
        "titles": [f"this graph ({unit})", f"{path.name} ({MEASURED})"],
        "unit": unit,
        "facts": facts,
        "rows": [],
        "lists": [_by_cost(left), _by_cost(right)],
    }


def _by_cost(kinds: Mapping[str, Sequence[Any]]) -> list[list[Any]]:
    return sorted(([name, *own] for name, own in kinds.items()), key=lambda row: -(row[2] or 0.0))

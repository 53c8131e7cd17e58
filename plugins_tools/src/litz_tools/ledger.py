"""The ledger of a compile: what each plugin and pass took, changed, was estimated to gain and, where measured, gained.
In: a report. Out: rows, and tables of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from litz.logs.units import size_text, time_text
from litz.report import CompileReport
from litz_plugins.vetoes import parts_of

from .effects import Effect
from .pass_notes import effects_of

_PASS = re.compile(r"pass '(.+)' \((\w+) stage\)")


@dataclass(frozen=True)
class Row:
    """plugin: who. what: a hook ("estimate_runtime"), a pass ("fuse"), "lowerings" or another kind of function. stage:
    of a pass, '' for others. calls, seconds: how many, and their wall time without the calls within them. effect: what
    the pass changed, None where it changed nothing. estimated_us, measured_us: what all its decisions save a run of the
    graph, by the estimates and by measurements; None where nobody knows. failed: calls that ended in a failure."""

    plugin: str
    what: str
    stage: str = ""
    calls: int = 0
    seconds: float = 0.0
    effect: Effect | None = None
    estimated_us: float | None = None
    measured_us: float | None = None
    failed: int = 0


def ledger_of(report: CompileReport) -> tuple[Row, ...]:
    """Returns the rows of one graph's compile, by plugin, and for a plugin by time, the longest first."""
    rows: dict[tuple[str, str], Row] = {}
    for entry in report.calls:
        match = _PASS.fullmatch(entry.what)
        what, stage = match.groups() if match else (entry.what.removeprefix("litz_"), "")
        rows[entry.plugin, what] = Row(entry.plugin, what, stage, entry.calls, entry.seconds, failed=entry.failed)
    for key, effect in effects_of(report).items():
        rows[key] = replace(rows.get(key, Row(*key)), effect=effect)
    for key, us in _estimated(report, rows):
        row = rows.get(key, Row(*key))
        rows[key] = replace(row, estimated_us=(row.estimated_us or 0.0) + us)
    for key, us in _measured(report):
        row = rows.get(key, Row(*key))
        rows[key] = replace(row, measured_us=(row.measured_us or 0.0) + us)
    return tuple(sorted(rows.values(), key=lambda row: (row.plugin, -row.seconds)))


Gain = tuple[tuple[str, str], float]
"""(plugin, what), and µs."""


def _estimated(report: CompileReport, rows: Iterable[tuple[str, str]]) -> Iterable[Gain]:
    """Returns what decisions were estimated to gain: those that were weighed, and choices for contractions."""
    owners = {what: plugin for plugin, what in rows}
    owners["layout"] = next((one for one, what in rows if what == "select_layout"), "core")
    if not report.timed:  # figures of a CPU that nobody measured are shares, not times
        return
    for key, weighed in report.weighed.items():
        now, without = weighed.us(weighed.chosen), weighed.us(weighed.without)
        if weighed.chosen != weighed.without and now is not None and without is not None:
            maker = parts_of(key)[1]
            yield (owners.get(maker, "core"), "select_layout" if maker == "layout" else maker), without - now
    for record in report.contractions:
        library = next((way.us for way in record.rejected if way.name == record.op), None)
        if library is not None and record.chosen.us is not None:
            yield (record.plugin, "select_choice"), library - record.chosen.us


def _measured(report: CompileReport) -> Iterable[Gain]:
    contractions = {record.subject for record in report.contractions}
    for decision in report.decisions:
        if decision.gained_us is not None:
            what = "select_choice" if decision.subject in contractions else "tune"
            yield (decision.plugin, what), decision.gained_us


# ------------------------------------------------------------------------------------------------------------- tables

COLUMNS = ("calls", "ms", "changed", "est. gain", "measured")
"""The columns of a table after the first, which are numbers."""


def together(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows of several graphs, added up by plugin and hook or pass; the longest time comes first."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        known = found.get((row.plugin, row.what))
        found[row.plugin, row.what] = row if known is None else _sum(known, row)
    return sorted(found.values(), key=lambda row: -row.seconds)


def by_plugin(rows: Iterable[Row]) -> list[Row]:
    """Returns a row for each plugin, with its times added up; the longest time comes first."""
    return together(replace(row, what="", stage="") for row in rows)


def _sum(one: Row, other: Row) -> Row:
    effects = [row.effect for row in (one, other) if row.effect is not None]
    return replace(
        one,
        calls=one.calls + other.calls,
        seconds=one.seconds + other.seconds,
        effect=None if not effects else effects[0] if len(effects) == 1 else effects[0] + effects[1],
        estimated_us=_sum_known(one.estimated_us, other.estimated_us),
        measured_us=_sum_known(one.measured_us, other.measured_us),
        failed=one.failed + other.failed,
    )


def _sum_known(one: float | None, other: float | None) -> float | None:
    known = [us for us in (one, other) if us is not None]
    return sum(known) if known else None


def table_of(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Returns the columns after the first that any row fills, and the cells of each row below them."""
    every = [_cells(row) for row in rows]
    used = [place for place in range(len(COLUMNS)) if any(row[place] for row in every)]
    return [COLUMNS[place] for place in used], [[row[place] for place in used] for row in every]


def _cells(row: Row) -> list[str]:
    return [
        f"{row.calls}" + (f", {row.failed} failed" if row.failed else ""),
        f"{row.seconds * 1e3:.1f}",
        "" if row.effect is None else effect_text(row.effect),
        _gain_text(row.estimated_us),
        _gain_text(row.measured_us),
    ]


def effect_text(effect: Effect) -> str:
    """Returns "-3 nodes, -2 loops, -1.5 MiB"; "as many" for changes that leave the counts."""
    parts = [f"{count:+d} {word}" for count, word in ((effect.nodes, "nodes"), (effect.loops, "loops")) if count]
    if effect.bytes:
        parts.append(f"{'-' if effect.bytes < 0 else '+'}{size_text(abs(effect.bytes))}")
    return ", ".join(parts) or "as many"


def _gain_text(us: float | None) -> str:
    return "" if not us else f"{'-' if us < 0 else ''}{time_text(abs(us))}"


def name_of(row: Row) -> str:
    """Returns a row's name for people, such as "core: inline_pointwise (program)"."""
    what = f": {row.what}" if row.what else ""
    return f"{row.plugin}{what}" + (f" ({row.stage})" if row.stage else "")


def shown(rows: Sequence[Row], verbose: bool) -> list[Row]:
    """Returns the rows that a reader is shown: all rows, or one for each plugin."""
    return together(rows) if verbose else by_plugin(rows)


__all__ = ["COLUMNS", "Row", "by_plugin", "effect_text", "ledger_of", "name_of", "shown", "table_of", "together"]

"""A report as one HTML page. In: a report. Out: text that needs nothing else: no scripts, no fonts, no network.

Light or dark as the reader's system is. Tables fold (`<details>`), the chart is inline SVG.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from litz.units import count_text, size_text, time_text

from .communication import MEASURED, rows_of, summary, timeline_svg
from .contractions import group_contractions
from .groups import considered_text, group_decisions, group_steps, in_short, origin_in_short
from .report import UNTIMED, CompileReport
from .step import Step

BARS = 30
"""Bars in the chart: the kinds of steps that cost most."""

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5b6570; --paper: #fff; --line: #e2e6ea; --card: #f6f8fa;
  --kernel: #2f6fdb; --call: #b8692a; --net: #7c4dbd; --stall: #d43c3c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #98a2ad; --paper: #14171a; --line: #2b3137;
  --card: #1c2125; --kernel: #6ea4ff; --call: #e0a06a; --net: #b794f0; --stall: #ff7b72; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 72rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.05rem; display: inline; }
p.sub { color: var(--soft); margin: .2rem 0 1.2rem; }
.facts { display: flex; flex-wrap: wrap; gap: .6rem; margin-bottom: 1.2rem; }
.facts div { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .5rem .9rem; }
.facts b { display: block; font-size: 1.15rem; } .facts span { color: var(--soft); font-size: .85rem; }
details { border-top: 1px solid var(--line); padding: .6rem 0; } summary { cursor: pointer; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; margin-top: .5rem; }
td { overflow-wrap: anywhere; }
th, td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; } td.n, th.n { text-align: right; white-space: nowrap; }
td.n { font-variant-numeric: tabular-nums; } .soft { color: var(--soft); }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .8rem; overflow-x: auto;
  font: 12.5px/1.45 ui-monospace, monospace; }
.name, th { white-space: nowrap; } table details { border: 0; padding: 0; }
.chart td { border: 0; padding-block: .12rem; } .chart .what { width: 38%; overflow-wrap: anywhere; }
.chart .bar { width: 40%; vertical-align: middle; } .chart svg { display: block; width: 100%; height: .8rem; }
svg .kernel { fill: var(--kernel); } svg .call { fill: var(--call); } svg .net { fill: var(--net); }
svg .stall { fill: var(--stall); } .lanes svg { display: block; width: 100%; height: 4.4rem; margin: .4rem 0; }
svg line { stroke: var(--ink); opacity: .55; vector-effect: non-scaling-stroke; }
.key { margin-right: 1rem; white-space: nowrap; } .key.kernel, .key.call, .key.net { padding-left: .4rem; }
.key.kernel { border-left: .8rem solid var(--kernel); } .key.call { border-left: .8rem solid var(--call); }
.key.net { border-left: .8rem solid var(--net); } .key.stall { border-left: .8rem solid var(--stall);
  padding-left: .4rem; }
.origin { color: var(--kernel); } code { font: .9em ui-monospace, monospace; }
@media (max-width: 46rem) { .extra { display: none; } .chart .bar { width: 25%; } .facts div { flex: 1 1 40%; } }
"""


def render_html(report: CompileReport) -> str:
    """The page."""
    body = [
        f"<h1>{escape(report.name)}</h1>",
        f'<p class="sub">{escape(report.kind)} on {escape(report.device)}</p>',
        _facts(report),
        _hint(report),
        _fold("Where the time goes" if report.timed else "Where the bytes go", _chart(report), shown=True),
        _fold("Communication", _communication(report), shown=True),
        _fold(f"Steps ({len(report.steps)})", _steps(report), shown=True),
        _fold(f"Contractions ({len(report.contractions)})", _contractions(report), shown=True),
        _fold(f"Decisions ({len(report.decisions)})", _decisions(report), shown=False),
        *(_attachment(name, text) for name, text in report.attachments.items()),
        _fold("Compile time", _stages(report), shown=False),
        _fold("Schedule", _pre("" if report.plan is None else str(report.plan)), shown=False),
        _fold("Generated wrapper", _source(report.wrapper_source, report.wrapper_path), shown=False),
        *(
            _fold(f"Generated kernel {name}", _source(text, report.kernel_paths.get(name)), shown=False)
            for name, text in report.kernel_sources.items()
        ),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>litz: {escape(report.name)}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body></html>\n"
    )


def _facts(report: CompileReport) -> str:
    hits = f", {count_text(report.cache_hits, 'kernel')} from the cache" if report.cache_hits else ""
    facts = [
        (str(report.kernels_after), f"kernels, from {count_text(report.loops_before, 'loop')}"),
        (str(sum(report.externs.values())), "library calls"),
        (size_text(report.total_bytes), "read and written"),
        (size_text(report.memory_peak_bytes), f"memory at its peak, of {size_text(report.memory_total_bytes)} in all"),
        (f"{report.compile_seconds:.2f} s", f"to compile{hits}"),
    ]
    if report.timed:
        facts.insert(2, (time_text(report.total_us), "estimated"))
    cards = "".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for value, what in facts)
    plugins = f'<p class="soft">plugins: {escape(", ".join(report.plugins))}</p>' if report.plugins else ""
    return f'<div class="facts">{cards}</div>{plugins}'


def _hint(report: CompileReport) -> str:
    if report.timed or not report.total_bytes:
        return ""
    hint = re.sub(r"`(.*?)`", r"<code>\1</code>", escape(UNTIMED))
    return f'<p class="soft">{hint}</p>'


def _fold(title: str, content: str, shown: bool) -> str:
    if not content:
        return ""
    return f"<details{' open' if shown else ''}><summary><h2>{escape(title)}</h2></summary>{content}</details>"


def _chart(report: CompileReport) -> str:
    """A bar for each kind of step: the time of all of that kind, a line from the low to the high estimate. Of a report
    without times, the bytes."""
    groups = [alike for alike in group_steps(report.steps) if _total(alike, report) > 0]
    total = sum(_total(alike, report) for alike in groups)
    shown = sorted(groups, key=lambda alike: -_total(alike, report))[:BARS]
    if not shown:
        return ""
    longest = max(_total(alike, report) for alike in shown)
    scale = max([longest, *(min(_high(alike), 1.3 * longest) for alike in shown if report.timed)])
    rows = []
    for alike in shown:
        step, amount = alike[0], _total(alike, report)
        text = time_text(amount) if report.timed else size_text(amount)
        origin = origin_in_short(alike)
        title = "\n".join(filter(None, (", ".join(step.name for step in alike), origin, step.title, step.why)))
        what = escape(_label(step)) + (f'<br><span class="soft">{escape(origin)}</span>' if origin else "")
        rows.append(
            f'<tr title="{escape(title)}"><td class="n soft">{len(alike)} ×</td><td class="what">{what}'
            f'</td><td class="bar">{_bar(alike, report, scale)}</td><td class="n">{escape(text)}</td>'
            f'<td class="n soft">{escape(_share(amount / total))}</td></tr>'
        )
    kinds = {_color(alike[0]): None for alike in shown}
    legend = " ".join(f'<span class="key {color}">{_LEGEND[color]}</span>' for color in kinds)
    if report.timed:
        legend += ' <span class="key">the line: from the low to the high estimate</span>'
    note = f'<p class="soft">{legend}</p>'
    if len(shown) < len(groups):
        note += f'<p class="soft">The {len(shown)} of {len(groups)} kinds of steps that cost most.</p>'
    return f'{note}<table class="chart">{"".join(rows)}</table>'


_LEGEND = {"kernel": "litz&rsquo;s kernels", "call": "library calls", "net": "communication"}


def _bar(alike: Sequence[Step], report: CompileReport, scale: float) -> str:
    """The bar as SVG that stretches with its column."""

    def x(amount: float) -> float:
        return min(100.0, 100 * amount / scale)

    length = max(0.5, x(_total(alike, report)))
    line = ""
    if report.timed:
        low = sum(step.estimate.low_us for step in alike if step.estimate is not None)
        line = f'<line x1="{x(low):.1f}" y1="5" x2="{x(_high(alike)):.1f}" y2="5"/>'
    return (
        '<svg viewBox="0 0 100 10" preserveAspectRatio="none" role="img">'
        f'<rect class="{_color(alike[0])}" width="{length:.1f}" height="10"/>{line}</svg>'
    )


def _total(alike: Sequence[Step], report: CompileReport) -> float:
    return sum(map(report.cost, alike))


def _high(alike: Sequence[Step]) -> float:
    return sum(step.estimate.high_us for step in alike if step.estimate is not None)


def _label(step: Step) -> str:
    """ "add + mul + 3 more [64, 64] f32": what a step does, in few words."""
    if step.kind == "kernel":
        return f"{in_short(step)} {_unbroken(step.what)}"
    return f"{in_short(step)}, {_unbroken(size_text(step.bytes))} each"


def _unbroken(text: str) -> str:
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _share(part: float) -> str:
    return f"{part:.0%}" if part >= 0.01 else "<1%"


def _color(step: Step) -> str:
    return {"kernel": "kernel", "collective": "net", "wait": "net"}.get(step.kind, "call")


def _communication(report: CompileReport) -> str:
    """The two streams as a picture, and a row per collective."""
    if not report.communicates or not report.timed:
        return ""
    legend = " ".join(f'<span class="key {color}">{text}</span>' for color, text in _STREAMS.items())
    columns = [("step", "name"), ("does", ""), *((name, "n") for name in ("from µs", "est. µs", "exposed"))]
    columns += [(name, "n") for name in (MEASURED if report.realised else ())]
    rows = [
        [escape(row.step.name), _two_lines(row.step.title, row.step.why), f"{row.start:.1f}", *row.cells(report)]
        for row in rows_of(report)
    ]
    return (
        f"<p>{escape(summary(report))}</p>"
        f'<p class="soft">{legend}</p><div class="lanes">{timeline_svg(report.timeline)}</div>' + _table(columns, rows)
    )


_STREAMS = {
    "kernel": "computation: litz&rsquo;s kernels",
    "call": "library calls",
    "stall": "held up by communication",
    "net": "communication (below)",
}


def _steps(report: CompileReport) -> str:
    columns = [("step", "name"), ("does", "")]
    columns += [("est. µs", "n"), ("between", "n soft extra")] if report.timed else []
    rows = []
    for step in report.steps:
        estimate = step.estimate
        about = step.what if step.kind == "kernel" else step.kind
        about += f"; {step.why}" if report.timed and step.why else ""
        row = [escape(step.name), _two_lines(step.title, about) + _came_from(step)]
        if report.timed and estimate is None:
            row += ["?", ""]
        elif report.timed and estimate is not None:
            row += [f"{estimate.us:.2f}", f"{estimate.low_us:.1f} to {estimate.high_us:.1f}"]
        rows.append([*row, size_text(step.bytes), f"{step.flops:.3g}"])
    return _table([*columns, ("bytes", "n"), ("FLOPs", "n extra")], rows)


def _came_from(step: Step) -> str:
    """The modules and lines of the user's model; all of the paths as a tooltip."""
    if not step.origin:
        return ""
    title = "\n".join((*step.modules, *step.places))
    return f'<br><span class="origin" title="{escape(title)}">{escape(step.origin)}</span>'


def _two_lines(first: str, second: str) -> str:
    return f'{escape(first)}<br><span class="soft">{escape(second)}</span>'


def _contractions(report: CompileReport) -> str:
    """A table for each, equal ones once: what is fused into it, what runs, and why nothing else does."""
    columns = [("implementation", ""), ("est. µs", "n"), ("", "name"), ("because", "soft")]
    parts = []
    for group in group_contractions(report.contractions):
        chosen = group.first.chosen
        rows = []
        for way in (chosen, *group.rejected(None)):
            mark = "<b>runs</b>" if way is chosen else '<span class="soft">no</span>'
            us = f"{way.us:.2f}" if way.us else ""
            rows.append([escape(way.name), us, mark, escape(way.verdict)])
        nodes, fused = group.subjects(len(group.records)), group.fused(100)
        origin = group.origin(report.program)
        about = f"from: {escape(origin)}<br>" if origin else ""
        about += f"nodes: {escape(nodes)}<br>fused into it: {escape(fused)}"
        title = f'<b>{escape(group.title)}</b> <span class="soft">{escape(chosen.name)}</span>'
        table = f'<p class="soft">{about}</p>{_table(columns, rows)}'
        parts.append(f"<details><summary>{title}</summary>{table}</details>")
    return "".join(parts)


def _decisions(report: CompileReport) -> str:
    rows = []
    for group in group_decisions(report):
        lines = [considered_text(decision) for decision in group.decisions]
        what = "<br>".join(map(escape, lines))
        if len(lines) > 3:
            what = f"<details><summary>{len(lines)} times</summary>{what}</details>"
        rows.append([*map(escape, (group.stage, group.chosen, group.reason)), what, escape(group.plugin)])
    columns = [("stage", "name"), ("chosen", ""), ("because", ""), ("for", "soft"), ("by", "name soft")]
    return _table(columns, rows)


def _stages(report: CompileReport) -> str:
    rows = [[escape(stage), f"{seconds * 1e3:.1f}"] for stage, seconds in report.stage_seconds.items()]
    return _table([("stage", ""), ("ms", "n")], rows)


def _table(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> str:
    """columns: (title, CSS classes) of each; rows: their cells, as HTML. Without rows nothing."""
    if not rows:
        return ""
    marks = [f' class="{classes}"' if classes else "" for _, classes in columns]
    lines = ["".join(f"<th{mark}>{title}</th>" for (title, _), mark in zip(columns, marks, strict=True))]
    lines += ["".join(f"<td{mark}>{cell}</td>" for cell, mark in zip(row, marks, strict=True)) for row in rows]
    return f'<div class="wide"><table>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>'


def _source(text: str, path: object) -> str:
    where = f'<p class="soft">{escape(str(path))}</p>' if path is not None and text else ""
    return where + _pre(text)


def _attachment(name: str, text: str) -> str:
    """What a plugin adds: a picture as it is, anything else as text."""
    title, _, suffix = name.rpartition(".")
    return _fold(title, f'<div class="wide">{text}</div>' if suffix == "svg" else _pre(text), shown=False)


def _pre(text: str) -> str:
    return f"<pre>{escape(text)}</pre>" if text else ""

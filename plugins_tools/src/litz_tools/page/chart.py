"""The chart of what costs most. In: a report. Out: HTML: a bar for each kind of step."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from litz.logs.units import size_text, time_text
from litz.report.report import CompileReport
from litz.report.step import Step

from ..groups import group_steps, in_short, origin_in_short

BARS = 20
"""Bars in the chart: the kinds of steps that cost most."""
_LEGEND = {"kernel": "litz&rsquo;s kernels", "call": "library calls", "net": "communication"}


def chart(report: CompileReport) -> str:
    """Returns a bar for each kind of step: the time of all of that kind, a line from the low to the high estimate. Of a
    report without times, the bytes."""
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
        what = f'<a href="#step/{escape(step.name)}">{escape(_label(step))}</a>'
        what += f'<br><span class="soft">{escape(origin)}</span>' if origin else ""
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
    """Returns "add + mul + 3 more [64, 64] f32": what a step does, in few words."""
    if step.kind == "kernel":
        return f"{in_short(step)} {_unbroken(step.what)}"
    return f"{in_short(step)}, {_unbroken(size_text(step.bytes))} each"


def _unbroken(text: str) -> str:
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _share(part: float) -> str:
    return f"{part:.0%}" if part >= 0.01 else "<1%"


def _color(step: Step) -> str:
    return {"kernel": "kernel", "collective": "net", "wait": "net"}.get(step.kind, "call")

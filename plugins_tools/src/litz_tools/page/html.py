"""A report as one HTML page. In: a report. Out: text that needs nothing else: no fonts, no network, no other file.

The head, the figures and the chart are HTML; what is long is data, which page.js shows. Light or dark as the reader's
system is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib import resources

from litz.logs.units import count_text, size_text, time_text
from litz.report.communication import MEASURED, rows_of, summary
from litz.report.report import CompileReport

from .. import ledger
from ..words import UNTIMED, break_in_words
from .chart import chart
from .data import More, as_scripts, page_data
from .lanes import timeline_svg
from .memory import memory_part

INDEX = "../index.html"
"""Where a report's page finds the index over all graphs of the run."""


def render_html(report: CompileReport, more: More | None = None) -> str:
    """Returns a report's page as HTML. more: what the report does not say."""
    more = more or More()
    data = page_data(report, more)
    lines, code, passes = len(data["steps"]["lines"]), len(data["code"]), len(data["passes"])
    sections = [
        section("cost", "Where the time goes" if report.timed else "Where the bytes go", chart(report)),
        lazy("time", "Timeline and memory", len(report.steps)),
        section("memory", "Planned memory", memory_part(more.memory)),
        section("communication", "Communication", _communication(report)),
        lazy("steps", f"Steps ({len(report.steps)})", len(report.steps)),
        lazy("measured", "Measured", 1, shown=False),
        lazy("beside", "Side by side", 1, shown=False),
        lazy("lines", f"Lines of the model ({lines})", lines, shown=False),
        lazy("graph", "Graph", len(report.steps), shown=False),
        lazy("contractions", f"Contractions ({len(report.contractions)})", len(report.contractions)),
        lazy("decisions", f"Decisions ({len(report.decisions)})", len(report.decisions)),
        lazy("passes", f"Passes ({passes})", passes, shown=False),
        lazy("guards", f"Guards ({len(data['guards'])})", len(data["guards"]), shown=False),
        *(_attachment(name, text) for name, text in report.attachments.items()),
        section("compile", "Compile time", _stages(report), shown=False),
        section("plugins", "Plugins", _ledger(report), shown=False),
        lazy("code", f"Generated code ({code})", code, shown=False),
    ]
    places = [*_frame(report), _facts(report), _hint(report)]
    body = [_bar(report, [part for part in sections if part]), "<main>", *places, *sections, "</main>"]
    return document(
        f"litz: {report.name}",
        "\n".join(part for part in body if part),
        as_scripts(data),
        "page.js",
        "graph.js",
        "beside.js",
    )


def document(title: str, body: str, data: str, *scripts: str) -> str:
    """Returns a page as HTML. scripts: the names of the files beside this one that bring the page to life."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{asset('page.css')}</style></head><body>\n{body}\n{data}\n"
        f"<script>{''.join(map(asset, scripts))}</script></body></html>\n"
    )


@cache
def asset(name: str) -> str:
    """Returns the text of a file of this folder, which is part of the package."""
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def section(name: str, title: str, content: str, shown: bool = True) -> str:
    """Returns a part of the page that folds; '' without content. name: its address on the page. content: HTML."""
    if not content:
        return ""
    opened = " open" if shown else ""
    heading = f"<summary><h2>{escape(title)}</h2></summary>"
    return f'<details class="part" id="{escape(name)}"{opened}>{heading}{content}</details>'


def lazy(name: str, title: str, count: int, shown: bool = True) -> str:
    """Returns a part that page.js fills from the data once it is seen; '' where `count` is 0."""
    return section(name, title, f'<div class="lazy" data-part="{escape(name)}"></div>' if count else "", shown)


def _bar(report: CompileReport, sections: Sequence[str]) -> str:
    """Returns the header that stays in sight: the name, the parts, the search."""
    titles = [re.search(r'id="([^"]+)".*?<h2>(.*?)( \(\d+\))?</h2>', part, re.DOTALL) for part in sections]
    links = "".join(f'<a href="#{found[1]}">{found[2]}</a>' for found in titles if found is not None)
    return (
        f'<header><div class="row"><h1>{escape(report.name)}</h1>'
        f'<span class="sub">{escape(report.kind)} on {escape(report.device)}</span>'
        f'<a class="up" href="{INDEX}">all graphs</a>'
        '<input id="search" type="search" placeholder="Search: a step, a line, a decision  ( / )" '
        'aria-label="Search this report" autocomplete="off" spellcheck="false"></div>'
        f'<nav aria-label="Parts of the report">{links}</nav>'
        '<div id="found" role="region" aria-label="Search results" hidden></div></header>'
        '<noscript><p class="hint">Steps, decisions and code need JavaScript here; report.txt beside this file has '
        "them too.</p></noscript>"
    )


def _frame(report: CompileReport) -> list[str]:
    """The function that was traced, and what dynamo says of it."""
    frame = report.frame
    rows = [
        ("function", f"{frame.function} ({frame.place}), compile {frame.compile_id}" if frame.function else ""),
        ("traced again, as", frame.recompiled),
        ("graph break", break_in_words(frame.broke)),
    ]
    found = "".join(
        f'<dt>{name}</dt><dd title="{escape(frame.broke if name == "graph break" else text)}">{escape(text)}</dd>'
        for name, text in rows
        if text
    )
    return [f'<dl class="frame">{found}</dl>'] if found else []


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
    more = [f"plugins: {', '.join(report.plugins)}"] if report.plugins else []
    more += [f"graph cache: {report.graph_cache}"] if report.graph_cache else []
    return f'<div class="facts">{cards}</div>' + "".join(f'<p class="soft">{escape(text)}</p>' for text in more)


def _hint(report: CompileReport) -> str:
    if report.timed or not report.total_bytes:
        return ""
    hint = re.sub(r"`(.*?)`", r"<code>\1</code>", escape(UNTIMED))
    return f'<p class="hint">{hint}</p>'


def _communication(report: CompileReport) -> str:
    """The streams as a picture, and a row per collective."""
    if not report.shows_communication:
        return ""
    legend = " ".join(f'<span class="key {color}">{text}</span>' for color, text in _STREAMS.items())
    columns = [("step", "name"), ("does", ""), *((name, "n") for name in ("from µs", "est. µs", "exposed"))]
    columns += [(name, "n") for name in (MEASURED if report.realised else ())]
    rows = [
        [_step_link(row.step.name), _two_lines(row.step.title, row.step.why), f"{row.start:.1f}", *row.cells(report)]
        for row in rows_of(report)
    ]
    return (
        f"<p>{escape(summary(report))}</p>"
        f'<p class="soft">{legend}</p><div class="lanes">{timeline_svg(report.timeline)}</div>' + table(columns, rows)
    )


_STREAMS = {
    "kernel": "computation: litz&rsquo;s kernels",
    "call": "library calls",
    "stall": "held up by communication",
    "net": "communication (below)",
}


def _step_link(name: str) -> str:
    return f'<a href="#step/{escape(name)}">{escape(name)}</a>'


def _two_lines(first: str, second: str) -> str:
    return f'{escape(first)}<br><span class="soft">{escape(second)}</span>'


def _stages(report: CompileReport) -> str:
    rows = [[escape(stage), f"{seconds * 1e3:.1f}"] for stage, seconds in report.stage_seconds.items()]
    return table([("stage", ""), ("ms", "n")], rows)


def _ledger(report: CompileReport) -> str:
    rows = ledger.together(ledger.ledger_of(report))
    columns, cells = ledger.table_of(rows)
    texts = [[escape(ledger.name_of(row)), *map(escape, given)] for row, given in zip(rows, cells, strict=True)]
    return table([("plugin", ""), *((name, "n") for name in columns)], texts, stack=True)


def table(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]], stack: bool = False) -> str:
    """Returns a table as HTML; '' without rows. columns: (title, CSS classes) of each. rows: cells, as HTML. stack: on
    a narrow screen the first cell of a row has a line of its own, and each other cell its title."""
    if not rows:
        return ""
    marks = [f' class="{classes}"' if classes else "" for _, classes in columns]
    said = [f' data-is="{escape(title)}"' if stack and at else "" for at, (title, _) in enumerate(columns)]
    head = "".join(f"<th{mark}>{title}</th>" for (title, _), mark in zip(columns, marks, strict=True))
    lines = (zip(row, marks, said, strict=True) for row in rows)
    body = "".join(f"<tr>{''.join(f'<td{mark}{is_}>{cell}</td>' for cell, mark, is_ in line)}</tr>" for line in lines)
    classes = ' class="stack"' if stack else ""
    return f'<div class="wide"><table{classes}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _attachment(name: str, text: str) -> str:
    """Returns what a plugin adds: a picture as it is, anything else as text."""
    title, _, suffix = name.rpartition(".")
    content = f'<div class="wide picture">{text}</div>' if suffix == "svg" else f"<pre>{escape(text)}</pre>"
    address = re.sub(r"[^\w-]+", "-", title)
    return section(f"attached-{address}", title, content if text else "", shown=False)

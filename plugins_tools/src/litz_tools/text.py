"""A report on the terminal. In: reports and a rich console, 80 columns or more. Out: lines on that console."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from litz.logs.units import count_text, size_text, time_text
from litz.report.communication import summary, table_of
from litz.report.report import CompileReport
from litz.report.step import Step

from . import ledger
from .contractions import MANY_WAYS, Contractions, group_contractions
from .groups import FEW, Group, considered_text, few, group_decisions, group_steps, in_short, origin_in_short
from .lanes_text import timeline_text
from .words import UNTIMED, break_in_words

NAME = 28
"""Letters of a name that fit into a column beside a reason."""
WORD = 43
"""Letters of what a step does that are not broken: those of the longest op's name."""
MANY = 25
"""Rows shown unless all are asked for: the first of a long schedule say little about the rest, so the costliest are."""


def render_summary(reports: Sequence[CompileReport], console: Console) -> None:
    """Prints a table with a row per report: loops, kernels, calls, estimated time, traffic, memory, compile time."""
    table = _table("graph", ("loops", "kernels", "calls", "est.", "traffic", "peak memory", "compile"))
    table.columns[0].no_wrap = True  # a graph's name is there to be copied
    for report in reports:
        table.add_row(
            Text(report.name),
            str(report.loops_before),
            str(report.kernels_after),
            str(sum(report.externs.values())),
            time_text(report.total_us) if report.timed else "?",
            size_text(report.total_bytes),
            size_text(report.memory_peak_bytes),
            f"{report.compile_seconds:.2f} s",
        )
    console.print(table)
    console.print()


def render(report: CompileReport, console: Console, verbose: bool = False) -> None:
    """Prints a report: what it became, each step with its cost, what was decided and why, and memory.

    Steps that do the same, and decisions that say the same, are one row. verbose: every step and every decision, with
    what was considered, and where the generated source lies.
    """
    console.rule(Text(report.name, style="bold"), align="left")
    console.print(_headline(report), highlight=False)
    for word, text in (
        ("traced again, as", report.frame.recompiled),
        ("ends in a graph break", break_in_words(report.frame.broke)),
    ):
        if text:
            console.print(Text.assemble((f"{word}: ", "bold"), text), highlight=False)
    if report.steps:
        console.print()
        _print_steps(report, console, verbose)
    render_communication(report, console, verbose)
    _print_contractions(report, console, verbose)
    _print_decisions(report, console, verbose)
    _print_ledger(report, console, verbose)
    for name, text in report.attachments.items():
        if name.endswith(".txt"):
            console.print(f"\n[bold]{escape(name.removesuffix('.txt'))}[/]")
            console.print(Padding(Text(text.rstrip()), (0, 0, 0, 2)), highlight=False)
    _print_facts(report, console, verbose)
    console.print()


def report_text(report: CompileReport, verbose: bool = False) -> str:
    """Returns the text report without colours."""
    from rich.console import Console  # a tenth of a second that most compiles need not pay

    from litz_tools.text import render

    stream = io.StringIO()
    render(report, Console(file=stream, width=100, highlight=False, no_color=True), verbose)
    if report.total_bytes and not report.timed:
        stream.write(f"{UNTIMED}\n")
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _headline(report: CompileReport) -> str:
    parts = [
        f"{report.kind} on {escape(report.device)}",
        f"{count_text(report.loops_before, 'loop')} in {count_text(report.kernels_after, 'kernel')}",
        count_text(sum(report.externs.values()), "library call"),
    ]
    if report.timed:
        parts.append(f"about {time_text(report.total_us)}")
    elif report.total_bytes:
        parts.append(f"{size_text(report.total_bytes)} read and written")
    return "; ".join(parts)


def _table(first: str, numbers: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=len(name) < 10)
    return table


# ------------------------------------------------------------------------------------------------------------- steps


def _print_steps(report: CompileReport, console: Console, verbose: bool) -> None:
    groups = [(step,) for step in report.steps] if verbose else group_steps(report.steps)
    shown = groups if verbose else _first(groups, lambda alike: len(alike) * report.cost(alike[0]))
    console.print(_step_table(shown, report, verbose))
    if len(shown) < len(groups):
        left = sum(map(len, groups)) - sum(map(len, shown))
        console.print(
            f"[dim]the {MANY} kinds of steps that cost most, in order; {count_text(left, 'step')} left out[/]"
        )


def _first(rows: Sequence[Any], cost: Callable[[Any], float]) -> Sequence[Any]:
    """Returns the `MANY` rows that cost most, in their order."""
    costliest = sorted(rows, key=cost, reverse=True)[:MANY]
    return [row for row in rows if row in costliest]


def _step_table(groups: Sequence[Sequence[Step]], report: CompileReport, verbose: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    several = any(len(alike) > 1 for alike in groups)
    if several:
        table.add_column("times", justify="right", no_wrap=True)
    table.add_column("step", overflow="fold", no_wrap=not verbose)
    longest = max((len(word) for alike in groups for word in _does(alike[0], verbose).split()), default=0)
    below = report.timed and longest > NAME  # a long name is not broken: the reason then stands below it
    table.add_column("does", overflow="fold", ratio=1, min_width=min(WORD, longest))
    if report.timed:
        table.add_column("µs each" if several else "est. µs", justify="right", no_wrap=True)
    table.add_column("bytes each" if several else "bytes", justify="right", no_wrap=True)
    if report.timed and not below:
        table.add_column("because", overflow="fold", max_width=None if verbose else 13)
    for alike in groups:
        step = alike[0]
        cells: list[str | Text] = [str(len(alike))] if several else []
        about = [origin_in_short(alike), _because(step, verbose) if below else ""]
        dim = "".join(f"\n{text}" for text in about if text)
        cells += [step.name, Text.assemble(_does(step, verbose), (dim, "dim"))]
        if report.timed:
            cells.append("?" if step.estimate is None else f"{step.us:.1f}")
        cells.append(size_text(step.bytes) if step.bytes else "")
        if report.timed and not below:
            cells.append(_because(step, verbose))
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return table


def _because(step: Step, verbose: bool) -> str:
    """Returns the estimate's reason; only verbose reports show the figures behind its first words."""
    return step.why if verbose else step.why.partition(":")[0].partition(" (")[0]


def _does(step: Step, verbose: bool) -> str:
    if step.kind != "kernel":
        return step.what if verbose else in_short(step)
    loops = f"; {' '.join(step.fused)}" if verbose and len(step.fused) > 1 else ""
    names = " + ".join(step.origins or step.fused) if verbose else in_short(step)
    return f"{names} {step.what}{loops}".strip()


# ----------------------------------------------------------------------------------------------------- communication


def render_communication(report: CompileReport, console: Console, verbose: bool) -> None:
    """Prints the streams to scale, and a row per collective: its time and how much of it nothing hides; estimated, and
    measured if profiled."""
    if not report.shows_communication:
        return
    console.print(f"\n[bold]communication[/] {escape(summary(report))}", highlight=False)
    for line in timeline_text(report.timeline) if report.timed else ():
        console.print(Text(line, no_wrap=True), highlight=False, overflow="crop")
    columns, rows = table_of(report)
    shown = rows if verbose else _first(rows, lambda row: row[0].exposed_us)
    table = _table("collective", columns)
    for _, name, cells in shown:
        table.add_row(Text(name), *cells)
    console.print(table)
    if len(shown) < len(rows):
        console.print(f"[dim]{MANY} of {len(rows)} collectives, those with the most exposed time, in order[/]")


# ------------------------------------------------------------------------------------------------------ contractions


def _print_contractions(report: CompileReport, console: Console, verbose: bool) -> None:
    """Prints a table for each contraction, equal ones once: what is fused into its kernel, what runs, and why nothing
    else does."""
    groups = group_contractions(report.contractions)
    if not groups:
        return
    console.print("\n[bold]contractions[/]")
    for group in groups if verbose else groups[:MANY]:
        most = len(group.records) if verbose else FEW
        console.print(Padding(Text.assemble((group.title, "bold"), overflow="fold"), (0, 0, 0, 2)))
        facts = [("nodes", group.subjects(most)), ("fused into it", group.fused(100 if verbose else FEW))]
        origin = group.origin(report.program)
        for word, text in [*([("from", origin)] if origin else []), *facts]:
            console.print(Padding(Text(f"{word}: {text}", style="dim", overflow="fold"), (0, 0, 0, 4)))
        console.print(Padding(_contraction_table(group, None if verbose else MANY_WAYS), (0, 0, 1, 4)))
    if len(groups) > MANY and not verbose:
        console.print(f"  [dim]{len(groups) - MANY} more kinds of contractions[/]")


def _contraction_table(group: Contractions, most: int | None) -> Table:
    shown = group.rejected(most)
    ways = (group.first.chosen, *shown)
    # A long name is not broken: the reason then stands below it.
    below = max(len(word) for way in ways for word in way.name.split()) > NAME
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("implementation", overflow="fold", ratio=4)
    timed = any(way.us for way in group.first.implementations)
    table.add_column("est. µs" if timed else "", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    if not below:
        table.add_column("because", overflow="fold", ratio=5)
    for way in ways:
        us = f"{way.us:.1f}" if way.us else ""  # 0 of a CPU that nobody measured
        runs = Text("runs", style="bold") if way is group.first.chosen else Text("no", style="dim")
        if below:
            table.add_row(Text.assemble(way.name, (f"\n{way.verdict}" if way.verdict else "", "dim")), us, runs)
        else:
            table.add_row(Text(way.name), us, runs, Text(way.verdict))
    left = len(group.first.rejected) - len(shown)
    if left:
        table.add_row(Text(f"{left} more", style="dim"))
    return table


# --------------------------------------------------------------------------------------------------------- decisions


def _print_decisions(report: CompileReport, console: Console, verbose: bool) -> None:
    """Prints decisions, those that say the same together: how often, on what, and why."""
    if not report.decisions:
        return
    console.print("\n[bold]decisions[/]")
    groups = group_decisions(report)
    for group in groups if verbose else groups[:MANY]:
        times = f" x{len(group.decisions)}" if len(group.decisions) > 1 else ""
        by = f" [dim]({escape(group.plugin)})[/]" if group.plugin != "core" else ""
        heading = f"[bold]{escape(group.chosen)}[/]{times}: {escape(group.reason)}{by}"
        console.print(Padding(heading, (0, 0, 0, 2)), highlight=False)
        for line in _subjects(group, verbose, report.timed):
            console.print(Padding(Text(line, style="dim", overflow="fold"), (0, 0, 0, 4)))
    if len(groups) > MANY and not verbose:
        console.print(f"  [dim]{len(groups) - MANY} more kinds of decisions[/]")


def _subjects(group: Group, verbose: bool, timed: bool) -> list[str]:
    if verbose and any(decision.considered for decision in group.decisions):
        return [considered_text(decision, timed) for decision in group.decisions]
    subjects = [decision.subject for decision in group.decisions]
    return [", ".join(subjects if verbose else few(subjects, FEW))]


def _print_ledger(report: CompileReport, console: Console, verbose: bool) -> None:
    """Prints what each plugin took, changed and gained; each of its hooks and passes if `verbose`."""
    rows = ledger.ledger_of(report)
    if rows:
        console.print("\n[bold]plugins[/]")
        console.print(Padding(ledger_table(ledger.shown(rows, verbose)), (0, 0, 0, 2)))


def ledger_table(rows: Sequence[ledger.Row]) -> Table:
    """Returns a table for the console with a row for each plugin, or for each of its hooks and passes."""
    columns, cells = ledger.table_of(rows)
    table = _table("plugin", columns)
    for row, texts in zip(rows, cells, strict=True):
        table.add_row(Text(ledger.name_of(row)), *map(Text, texts))
    return table


# ------------------------------------------------------------------------------------------------------------- facts


def _print_facts(report: CompileReport, console: Console, verbose: bool) -> None:
    """Memory, compile time and where the source lies: a name, and what hangs behind it."""
    facts = [("memory", _memory(report))]
    if report.stage_seconds:
        stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in report.stage_seconds.items())
        hits = f"; {count_text(report.cache_hits, 'kernel')} from the cache" if report.cache_hits else ""
        facts.append(("compile", f"{report.compile_seconds:.2f} s: {stages}{hits}"))
    if report.graph_cache:
        facts.append(("graph cache", report.graph_cache))
    if verbose and report.plugins:
        facts.append(("plugins", ", ".join(report.plugins)))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in facts:
        grid.add_row(name, Text(text))
    console.print()
    console.print(grid)
    paths = [("source", report.wrapper_path)] if report.wrapper_path is not None else []
    paths += [(f"  {name}", path) for name, path in report.kernel_paths.items()] if verbose else []
    for name, path in paths:  # not wrapped: a path is there to be copied
        console.print(Text.assemble((f"{name:<8} ", "bold"), str(path)), soft_wrap=True, highlight=False)


def _memory(report: CompileReport) -> str:
    text = f"{size_text(report.memory_peak_bytes)} at its peak"
    if size_text(report.memory_total_bytes) != size_text(report.memory_peak_bytes):
        text += f", {size_text(report.memory_total_bytes)} if nothing were freed or reused"
    if report.memory_reused:
        text += f"; {count_text(report.memory_reused, 'buffer')} in memory that earlier buffers used"
    return text

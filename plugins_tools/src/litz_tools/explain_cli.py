"""`litz explain`: run a script and say what litz made of each graph that it compiled, and why."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from litz.cli.common import make_console, print_json
from litz_plugins.command_line import ScriptCommand
from litz_plugins.scripts import check_script, print_failure, run_script, say_what_came

if TYPE_CHECKING:
    from litz.report import CompileReport

DETAILED = 4
"""Graphs whose details are shown without being asked for."""


@click.command(
    short_help="Run a script; report every graph that it compiles.",
    cls=ScriptCommand,
)
@click.option("-m", "module", is_flag=True, help="SCRIPT is a module's name, as in python -m.")
@click.option("-v", "--verbose", is_flag=True, help="Every step and decision on its own, and where the source lies.")
@click.option("--time", "timed", is_flag=True, help="Only where the time of the compiles went, stage by stage.")
@click.option("--tiles", is_flag=True, help="Only what one program of each kernel does, as a TileProgram or a Nest.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; what SCRIPT prints goes to standard error.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def explain(
    script: str, args: Sequence[str], module: bool, verbose: bool, timed: bool, tiles: bool, as_json: bool
) -> None:
    """Run SCRIPT with ARGS and report every graph that it compiles with litz.

    For each graph: its kernels, what was fused and what was not and why, the cost of each step, library calls, and its
    peak memory. With --time: the seconds of each stage instead, torch's beside litz's. With --tiles: what one program
    of each kernel for a GPU does, which the kernel's text is printed from. With --json: a list with the content of each
    graph's report.json.
    """
    check_script(script, module)
    from litz import report  # this loads torch

    from .torch_seconds import torch_seconds

    before = torch_seconds()
    with report.collect() as reports:
        code, failure = run_script(script, args, module, to_stderr=as_json)
    after = torch_seconds()
    took = None if before is None or after is None else after - before
    console = make_console()
    if failure is not None:
        print_failure(failure)
    if as_json:
        from .stages import stages_of

        print_json(stages_of(reports, took) if timed else [one.to_json() for one in reports])
    elif timed:
        from .stages import render_stages

        render_stages(reports, took, console)
    elif tiles:
        from .tiles import tile_lines

        for line in tile_lines(reports):
            click.echo(line)
    else:
        _show(reports, console, verbose)
    if not as_json:
        say_what_came(len(reports), failure)
    sys.exit(code)


def _show(reports: Sequence[CompileReport], console: Console, verbose: bool) -> None:
    """A line for each graph, then the details of each; of many only with `verbose`."""
    from . import text
    from .words import UNTIMED

    if len(reports) > 1:
        text.render_summary(reports, console)
    detailed = len(reports) <= DETAILED or verbose
    for one in reports if detailed else ():
        text.render(one, console, verbose)
    hints = []
    if not detailed:
        hints.append("`litz explain -v` shows each graph's kernels and decisions.")
    elif reports and not verbose:
        hints.append("-v shows every step, every decision and its alternatives; LITZ_REPORT_DIR=folder writes files.")
    if any(not one.timed for one in reports if one.total_bytes):
        hints.append(UNTIMED)
    for hint in hints:
        console.print(Text(hint, style="dim"))

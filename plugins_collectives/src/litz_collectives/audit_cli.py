"""`litz audit`: runs a script under a profiler and puts what its communication took beside what litz expected."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.markup import escape

from litz.cli.common import current_options, load_plugins, make_console, make_table
from litz_plugins.command_line import Output, ScriptCommand
from litz_plugins.scripts import check_script, print_failure, run_script

if TYPE_CHECKING:
    from litz.report import CompileReport


@click.command(
    short_help="Run a script; compare communication with estimates.",
    cls=ScriptCommand,
)
@click.option("-m", "module", is_flag=True, help="SCRIPT is a module's name, as in python -m.")
@click.option("--out", type=Output(file_okay=False), help="Folder for reports and the trace.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; what SCRIPT prints goes to standard error.")
@click.option("--rank", envvar="RANK", type=click.IntRange(0), default=0, hidden=True)
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def audit(script: str, args: Sequence[str], module: bool, out: Path | None, as_json: bool, rank: int) -> None:
    """Run SCRIPT with ARGS under torch.profiler, and list every collective of its compiled graphs: how long it should
    take and how much of that should be exposed, and what the run measured.

    Start it as the script is started:

        torchrun --nproc-per-node 2 -m litz audit train.py

    Rank 0 reports. The first call of a graph is left out if there are more; of the others the median counts. --out
    writes each graph's report (a short text and JSON; with litz-tools all of the text, a page that shows the streams,
    and a trace) and the profiler's own trace, profile.json.
    """
    check_script(script, module)
    from litz import report  # these load torch
    from litz.report.communication import summary, table_of

    from .audit import audit as audit_run

    with report.collect() as reports, audit_run(reports) as audited:
        code, failure = run_script(script, args, module, to_stderr=as_json)
    if failure is not None:
        print_failure(failure)
    if rank == 0:
        found = audited.reports
        if out is not None:
            _write_reports(found, out)
            out.mkdir(parents=True, exist_ok=True)
            (out / "profile.json").write_text(audited.trace, encoding="utf-8")
        if as_json:
            click.echo(json.dumps({one.name: one.to_json()["communication"] for one in found}, indent=2))
        else:
            console = make_console()
            for one in found:
                console.rule(one.name, align="left")
                if one.shows_communication:
                    console.print(f"\n[bold]communication[/] {escape(summary(one))}", highlight=False)
                    columns, rows = table_of(one)
                    table = make_table("collective", *columns, numbers=columns, names=columns[:3])
                    for _, name, cells in rows:
                        table.add_row(escape(name), *cells)
                    console.print(table)
            if not found:
                console.print("no graph that litz compiled communicates")
            missing = [one.name for one in found if not one.realised]
            if missing:
                console.print(f"the run shows no call of {', '.join(missing)} whose collectives can be told apart")
    sys.exit(code)


def _write_reports(reports: Sequence[CompileReport], out: Path) -> None:
    """Each report into a folder of its own, with what plugins add to the folder."""
    from litz.report import write_report_dir

    plugins, _ = load_plugins()
    options = current_options(plugins)
    for one in reports:
        folder = write_report_dir(one, out)
        # The code was written when the graph was compiled, by the options that the script had.
        plugins.compile_finished(replace(one, folder=folder, code=None), options)

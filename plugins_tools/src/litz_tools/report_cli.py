"""`litz report`: puts measured times and another run into the page of a graph that is there."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from litz.cli.common import print_json
from litz_plugins.command_line import SECONDS


@click.command(short_help="Put measured times, or another run, into a page.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--run", is_flag=True, help="Run the graph's wrapper.py and take its times.")
@click.option("--seconds", default=1.0, type=SECONDS, show_default=True, help="How long to measure with --run.")
@click.option("--profile", type=click.Path(path_type=Path), help="Take times from a trace of torch.profiler.")
@click.option("--beside", type=click.Path(path_type=Path), help="Another graph's folder, or a trace of any compiler.")
@click.option("--calls", type=click.IntRange(1), help="Calls of the model in the trace of --beside.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: what was put into the page.")
def report(
    folder: Path, run: bool, seconds: float, profile: Path | None, beside: Path | None, calls: int | None, as_json: bool
) -> None:
    """Put measured times beside the estimates in FOLDER/report.html, and another run beside the graph.

    FOLDER is a graph's, in LITZ_REPORT_DIR. A trace is what `prof.export_chrome_trace` of torch.profiler writes. With
    --beside a folder, the graph before or after a change stands beside this one; with a trace, what TorchInductor,
    eager or any other program took.
    """
    if not (run or profile or beside):
        raise click.UsageError("nothing to put into the page: give --run, --profile or --beside")
    if run and profile:
        raise click.UsageError("times are taken from --run or from --profile, not from both")
    from . import beside as others
    from . import measured
    from .page import data

    page = folder / "report.html"
    blocks = data.read_blocks(page)
    steps = blocks["steps"]["steps"]
    new: dict[str, Any] = {}
    found = measured.from_wrapper(folder / "wrapper.py", steps, seconds) if run else None
    if profile is not None:
        found = measured.from_profile(profile, blocks["facts"]["name"], [step["name"] for step in steps])
    if found is not None:
        new["measured"] = data.measured_block(found, time.strftime("%Y-%m-%d"))
    if beside is not None:
        mine = {**blocks, **new}
        new["beside"] = others.of_folder(mine, beside) if beside.is_dir() else others.of_trace(mine, beside, calls)
    data.write_blocks(page, new)
    if as_json:
        print_json({"page": page, **new})
        return
    if found is not None:
        click.echo(f"{len(found.us)} of {len(steps)} steps have measured times: {found.source}")
        total = sum(found.us.values())
        click.echo(f"a call takes {found.call_us:.1f} µs, these steps {total:.1f} µs")
    if beside is not None:
        for row in new["beside"]["facts"]:
            click.echo(f"{row[0]:20} {row[1]:>16} {row[2]:>16}")
    click.echo(f"written to {page}")

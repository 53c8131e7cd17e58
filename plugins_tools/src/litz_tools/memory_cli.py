"""`litz memory`: run a script and say what holds the memory of each graph that it compiles, step by step."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from litz.cli.common import print_json
from litz_plugins.command_line import ScriptCommand
from litz_plugins.scripts import check_script, print_failure, run_script, say_what_came


@click.command(
    short_help="Run a script; show the planned memory of its graphs.",
    cls=ScriptCommand,
)
@click.option("-m", "module", is_flag=True, help="SCRIPT is a module's name, as in python -m.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; what SCRIPT prints goes to standard error.")
@click.option("--check", is_flag=True, help="Exit with 1 where a planned peak is more than 0.5 % above eager's.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def memory(script: str, args: Sequence[str], module: bool, as_json: bool, check: bool) -> None:
    """Run SCRIPT with ARGS and show the planned memory of every graph that it compiles with litz.

    For each graph: the bytes that are alive at each step by the memory plan, the peak, the ten largest tensors at the
    peak with op, module and line, eager's planned peak and what makes the difference, and the budget, where the
    option memory.budget sets one. On a GPU also the most that torch's allocator had in use while SCRIPT ran. With
    --json: all steps, as data. With --check the graphs whose planned peak is above eager's are an error.
    """
    check_script(script, module)
    import torch

    from litz import report  # this loads torch

    from .held import memory_lines, memory_of

    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else range(0)
    for device in devices:
        torch.cuda.reset_peak_memory_stats(device)
    with report.collect() as reports:
        code, failure = run_script(script, args, module, to_stderr=as_json)
    measured = {f"cuda:{device}": torch.cuda.max_memory_allocated(device) for device in devices}
    if failure is not None:
        print_failure(failure)
    graphs = memory_of(reports)
    if as_json:
        print_json({"graphs": graphs, "measured_bytes": measured})
    else:
        for line in memory_lines(graphs, measured):
            click.echo(line)
        say_what_came(len(reports), failure)
    above = [graph["name"] for graph in graphs if graph["above_eager"]] if check else []
    if above:
        click.echo(f"above eager's planned peak: {', '.join(above)}", err=True)
    sys.exit(code or bool(above))

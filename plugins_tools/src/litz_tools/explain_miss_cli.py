"""`litz explain-miss`: run a script and say why the graph cache did not have its graphs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from litz.cli.common import current_options, print_json
from litz_plugins.command_line import ScriptCommand
from litz_plugins.scripts import check_script, print_failure, run_script, say_what_came

if TYPE_CHECKING:
    from litz.report import CompileReport

    from .cache_misses import Miss


@click.command(
    "explain-miss",
    short_help="Run a script; say why the cache missed its graphs.",
    cls=ScriptCommand,
)
@click.option("-m", "module", is_flag=True, help="SCRIPT is a module's name, as in python -m.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; what SCRIPT prints goes to standard error.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def explain_miss(script: str, args: Sequence[str], module: bool, as_json: bool) -> None:
    """Run SCRIPT with ARGS, and say of each graph that the graph cache did not have which parts of its key differ from
    those of the nearest graph that was there, and who sets them.

    What the script compiles is in the cache afterwards, as after any other run. Its cache is that of the environment.
    """
    check_script(script, module)
    from litz import report  # this loads torch

    from . import cache_misses

    options = current_options()
    roots = (options.cache_dir, *(Path(os.path.expanduser(path)) for path in options.cache_shared))
    before = cache_misses.kept(roots)
    with report.collect() as reports:
        code, failure = run_script(script, args, module, to_stderr=as_json)
    found: list[tuple[CompileReport, Miss | None]] = []
    for one in reports:
        missed = one.key is not None and one.graph_cache.startswith("miss")
        known = cache_misses.read_keys(roots, before) if missed else ()
        found.append((one, cache_misses.explain_miss(one.key, known) if missed else None))
    if failure is not None:
        print_failure(failure)
    if as_json:
        print_json([_as_data(one, miss) for one, miss in found])
    for one, miss in () if as_json else found:
        _explain(one, miss)
    if not as_json:
        say_what_came(len(reports), failure)
    sys.exit(code)


def _as_data(report: CompileReport, miss: Miss | None) -> dict[str, Any]:
    """Returns what `_explain` prints, as JSON has it; "miss" is null for a graph that was found or has no key."""
    from .cache_misses import shown

    parts = () if miss is None else miss.differences
    differences = [
        {"part": part.name, "set_by": part.setter, "before": before, "now": now}
        for part, (before, now) in ((part, shown(part)) for part in parts)
    ]
    nearest = None if miss is None or miss.nearest is None else miss.nearest.digest
    found = None if miss is None else {"nearest": nearest, "differences": differences}
    return {"graph": report.name, "graph_cache": report.graph_cache, "miss": found}


def _explain(report: CompileReport, miss: Miss | None) -> None:
    from .cache_misses import shown

    click.echo(f"{report.name}: {report.graph_cache}")
    if miss is None:
        return
    if miss.nearest is None:
        click.echo("  there is no graph in the cache yet")
        return
    if not miss.differences:
        click.echo(f"  {miss.nearest.digest[:12]} is the same; it was damaged, or has been removed meanwhile")
    for part in miss.differences:
        before, now = shown(part)
        click.echo(
            f"  {part.name}, set by {part.setter}:\n    {miss.nearest.digest[:12]}  {before}\n    now           {now}"
        )

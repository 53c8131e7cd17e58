"""`litz cache`: how much the disk cache holds, emptying it, and why it did not have a graph."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

from litz.cli.common import current_options, make_console, make_table, print_json
from litz.cli.script import check_script, print_failure, run_script
from litz.logs.units import size_text

if TYPE_CHECKING:
    from litz.graph_cache.explain import Miss
    from litz.report import CompileReport

_DIR = click.option("--dir", "folder", type=click.Path(path_type=Path), help="Another cache than the one in use.")


@click.group()
def cache() -> None:
    """Look at the disk cache of compiled graphs and kernels, or empty it."""


@cache.command()
@_DIR
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def info(folder: Path | None, as_json: bool) -> None:
    """Show where the cache lies and what it holds."""
    from litz.cache.disk import Cache

    found = Cache(folder or current_options().cache_dir).info()
    if as_json:
        print_json(found)
        return
    console = make_console()
    console.print(escape(str(found["path"])), soft_wrap=True)
    if not found["entries"]:
        console.print("empty" if Path(found["path"]).is_dir() else "empty: the first compile makes the folder")
        return
    table = make_table("kind", "entries", "size", numbers=("entries", "size"))
    for kind, row in sorted(found["by_kind"].items()):
        table.add_row(escape(kind), str(row["entries"]), size_text(row["bytes"]))
    table.add_row("all", str(found["entries"]), size_text(found["bytes"]))
    console.print(table)


@cache.command()
@_DIR
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; the question goes to standard error.")
def clear(folder: Path | None, yes: bool, as_json: bool) -> None:
    """Remove every entry. Programs that run now keep what they have loaded."""
    from litz.cache.disk import Cache

    path = folder or current_options().cache_dir
    if not yes:
        click.confirm(f"remove everything that litz cached in {path}?", abort=True, err=as_json)
    removed = Cache(path).clear()
    if as_json:
        print_json({"path": path, "removed": removed})
        return
    click.echo(f"removed {removed} {'entry' if removed == 1 else 'entries'} from {path}")


@cache.command(
    "explain-miss",
    short_help="Run a script; say why its graphs were not in the cache.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
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
    from litz.graph_cache import explain

    options = current_options()
    roots = (options.cache_dir, *(Path(os.path.expanduser(path)) for path in options.cache_shared))
    before = explain.kept(roots)
    with report.collect() as reports:
        code, failure = run_script(script, args, module, to_stderr=as_json)
    found: list[tuple[CompileReport, Miss | None]] = []
    for one in reports:
        missed = one.key is not None and one.graph_cache.startswith("miss")
        found.append((one, explain.explain_miss(one.key, explain.read_keys(roots, before)) if missed else None))
    if as_json:
        print_json([_as_data(one, miss) for one, miss in found])
    for one, miss in () if as_json else found:
        _explain(one, miss)
    if not reports and not as_json:
        click.echo('no graph was compiled with litz. Is torch.compile(..., backend="litz") in it, and called?')
    if failure is not None:
        print_failure(failure)
    sys.exit(code)


def _as_data(report: CompileReport, miss: Miss | None) -> dict[str, Any]:
    """What `_explain` prints, as JSON has it; "miss" is null for a graph that was found or has no key."""
    from litz.graph_cache.explain import shown

    parts = () if miss is None else miss.differences
    differences = [
        {"part": part.name, "set_by": part.setter, "before": before, "now": now}
        for part, (before, now) in ((part, shown(part)) for part in parts)
    ]
    nearest = None if miss is None or miss.nearest is None else miss.nearest.digest
    found = None if miss is None else {"nearest": nearest, "differences": differences}
    return {"graph": report.name, "graph_cache": report.graph_cache, "miss": found}


def _explain(report: CompileReport, miss: Miss | None) -> None:
    from litz.graph_cache.explain import shown

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

"""`litz cache`: how much the disk cache holds, and emptying it."""

from __future__ import annotations

from pathlib import Path

import click
from rich.markup import escape

from litz.cli.common import current_options, make_console, make_table, print_json
from litz.logs.units import size_text
from litz_plugins.command_line import folder_problem

_DIR = click.option("--dir", "folder", type=click.Path(path_type=Path), help="Another cache than the one in use.")


@click.group(short_help="Look at the disk cache, or empty it.")
def cache() -> None:
    """Look at the disk cache of compiled graphs and kernels, or empty it."""


@cache.command()
@_DIR
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def info(folder: Path | None, as_json: bool) -> None:
    """Show where the cache lies and what it holds."""
    from litz.cache.disk import Cache

    found = Cache(folder or current_options().cache_dir).info()
    found["problem"] = folder_problem(Path(found["path"]))
    if as_json:
        print_json(found)
        return
    console = make_console()
    console.print(escape(str(found["path"])), soft_wrap=True)
    if found["problem"]:
        console.print(f"litz cannot write there, so what it builds lasts no longer than a process: {found['problem']}")
    elif not found["entries"]:
        console.print("empty" if Path(found["path"]).is_dir() else "empty: the first compile makes the folder")
    if not found["entries"]:
        return
    table = make_table("kind", "entries", "size", numbers=("entries", "size"))
    for kind, row in sorted(found["by_kind"].items()):
        table.add_row(escape(kind), str(row["entries"]), size_text(row["bytes"]))
    table.add_row("all", str(found["entries"]), size_text(found["bytes"]))
    console.print(table)


@cache.command(short_help="Remove every entry.")
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

"""`litz plugins`: which plugins there are, where they come from and what they add; `litz plugins new` makes one."""

from __future__ import annotations

import textwrap
from pathlib import Path

import click
from rich.markup import escape

from litz.cli.common import current_options, load_plugins, make_console, make_table, no_plugin_warnings, print_json
from litz_plugins import PluginInfo
from litz_plugins.scaffold import scaffold

_STYLES = {"builtin": "dim", "external": "green", "blocked": "yellow", "failed": "red"}


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of a table.")
@click.pass_context
def plugins(ctx: click.Context, as_json: bool) -> None:
    """List plugins: built in, installed, blocked and failed.

    A plugin is left out by LITZ_DISABLE_PLUGINS=name,name or options={"disable_plugins": [...]}.
    """
    if ctx.invoked_subcommand is not None:
        return
    with no_plugin_warnings():
        loaded, problem = load_plugins()
        rows = loaded.listing(current_options(loaded))
    if as_json:
        print_json(rows)
        return
    console = make_console()
    table = make_table("plugin", "status", "from", "adds")
    for row in rows:
        origin = f"{row.dist} {row.version}".strip() or ("litz" if row.status == "builtin" else "")
        table.add_row(row.name, f"[{_STYLES[row.status]}]{row.status}[/]", escape(origin), escape(_additions(row)))
    if rows:
        console.print(table)
    else:
        console.print("no plugins")
    if problem:
        console.print(f"[yellow]core's own plugins could not be loaded: {escape(problem)}[/]")
        console.print("`litz doctor` says what is missing")


def _additions(row: PluginInfo) -> str:
    """What a plugin adds, a line each for hooks, options and passes; why it failed, if it did."""
    if row.error:
        return row.error
    parts = [
        ", ".join(hook.removeprefix("litz_").removeprefix("register_") for hook in row.hooks),
        f"options {', '.join(row.options)}" if row.options else "",
        f"passes {', '.join(row.passes)}" if row.passes else "",
    ]
    return "\n".join(part for part in parts if part)


@plugins.command(short_help="Start a plugin project of your own.")
@click.argument("name")
@click.option("--path", type=click.Path(path_type=Path), help="Folder to write to; by default ./litz-NAME.")
def new(name: str, path: Path | None) -> None:
    """Write a new plugin project called NAME: one pass, one option, one cost estimate, and tests for them."""
    short = name.replace("_", "-").removeprefix("litz-")
    root = path or Path(f"litz-{short}")
    for file in scaffold(root, name):
        click.echo(f"wrote {file}")
    click.echo(
        textwrap.dedent(f"""
        next:
          pip install -e {root if root.is_absolute() else f"./{root}"}
          litz plugins                 # lists it
          python -m pytest {root}
        """).rstrip()
    )

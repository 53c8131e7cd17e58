"""`litz plugins`: which plugins there are, where they come from and what they add; `litz plugins new` makes one."""

from __future__ import annotations

import textwrap
from pathlib import Path

import click
from rich.markup import escape

from litz.cli.common import (
    current_options,
    load_plugins,
    make_console,
    make_table,
    missing_plugins,
    no_plugin_warnings,
    print_json,
)
from litz_plugins import PluginInfo
from litz_plugins.scaffold import DEFAULT_KIND, kinds, plugin_name, scaffold

_KIND = click.Choice(list(kinds()))
_KINDS = f"What it adds: {', '.join(_KIND.choices)}."
_STYLES = {"builtin": "dim", "external": "green", "blocked": "yellow", "failed": "red", "missing": "dim"}


@click.group(invoke_without_command=True, short_help="List plugins, or start one.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of text.")
@click.pass_context
def plugins(ctx: click.Context, as_json: bool) -> None:
    """List plugins: built in, installed, blocked, failed, and missing.

    Missing are litz's own dists that are not installed, plugin projects in the working folder that never were, and
    plugins whose variables are set.

    A plugin is left out by LITZ_DISABLE_PLUGINS=name,name or options={"disable_plugins": [...]}.
    """
    if ctx.invoked_subcommand is not None:
        return
    with no_plugin_warnings():
        loaded, problem = load_plugins()
        rows = loaded.listing(current_options(loaded))
        rows += [
            PluginInfo(one.plugin, "missing", one.dist, error=f"{one.what}\n{one.todo}")
            for one in missing_plugins(loaded)
        ]
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
        console.print("`litz doctor` (of litz-tools) says what is missing")


def _additions(row: PluginInfo) -> str:
    """Returns the text of a plugin's additions, a line each for hooks, options and passes; why it failed, if it did."""
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
@click.option("--kind", metavar="KIND", type=_KIND, default=DEFAULT_KIND, show_default=True, help=_KINDS)
@click.option("--path", type=click.Path(path_type=Path), help="Folder to write to; by default ./litz-NAME.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def new(name: str, kind: str, path: Path | None, as_json: bool) -> None:
    """Write a new plugin project called NAME that works, with tests: change it into yours.

    Each kind is an example of docs/plugins/ with your name in it; `litz plugins kinds` says what each does.
    """
    root = path or Path(f"litz-{plugin_name(name).replace('_', '-')}")
    files = scaffold(root, name, kind)
    if as_json:
        print_json({"path": root, "kind": kind, "files": files})
        return
    for file in files:
        click.echo(f"wrote {file}")
    click.echo(
        textwrap.dedent(f"""
        next:
          pip install -e {root if root.is_absolute() else f"./{root}"}[test]
          litz plugins                 # lists it
          python -m pytest {root}
        """).rstrip()
    )


@plugins.command("kinds", short_help="List what `litz plugins new` can make.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of a table.")
def list_kinds(as_json: bool) -> None:
    """List the kinds of plugin projects, with what the example of each does."""
    found = kinds()
    if as_json:
        print_json(found)
        return
    table = make_table("kind", "the example")
    for kind, text in found.items():
        table.add_row(kind, escape(text))
    make_console().print(table)

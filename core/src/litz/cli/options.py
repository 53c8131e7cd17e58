"""`litz options`: every option of core and of the loaded plugins, its value here, and how to set it."""

from __future__ import annotations

import click
from rich.markup import escape

from litz.cli.common import current_options, installed_plugins, make_console, make_table, print_json
from litz.options import core_options, plugin_option_rows


@click.command(short_help="List options and their values.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of a table.")
def options(as_json: bool) -> None:
    """List options, with the value that a compile would use now.

    Set one with torch.compile(..., options={"name": value}) or in the environment.
    """
    loaded = installed_plugins()
    values = current_options(loaded)
    rows = [*core_options(), *plugin_option_rows(loaded.option_specs())]
    if as_json:
        print_json(
            [
                {"name": r.name, "value": values[r.name], "help": r.help, "env": r.env, "accepted": r.accepted}
                for r in rows
            ]
        )
        return
    table = make_table("option", "value", "meaning", names=("option",))
    for row in rows:
        value = values[row.name]
        text = ", ".join(value) if isinstance(value, tuple) else "" if value is None else str(value)
        text = escape(text or "unset")
        accepted = row.accepted.partition(" (")[0].removesuffix(" or None")
        table.add_row(
            row.name,
            text if value == row.value_unset else f"[bold]{text}[/]",
            f"{escape(row.help)}\n[dim]{', '.join(row.env)}: {escape(accepted)}[/]",
        )
    console = make_console()
    console.print(table)
    console.print('\nSet one with torch.compile(..., options={"name": value}) or its variable in the environment.')

"""The page of the command line: each command's own help, core's and the plugins' of this repository."""

from __future__ import annotations

from collections.abc import Iterator

import click

from litz.cli.main import main

WIDTH = 100
"""Columns of the help texts."""


def commands(
    group: click.Group, name: str, parent: click.Context | None = None
) -> Iterator[tuple[str, click.Context, click.Command]]:
    """Yields each command below the group with its name and the group's context, in the group's own order."""
    context = click.Context(group, info_name=name, parent=parent)
    for each in group.list_commands(context):
        command = group.get_command(context, each)
        if command is None or command.hidden:
            continue
        yield each, context, command
        if isinstance(command, click.Group):
            yield from commands(command, each, context)


def page() -> str:
    """The page as Markdown."""
    lines = [
        "# Help of each command",
        "",
        "The text below each command is what `--help` prints. litz-autotune adds `litz tune`. litz-collectives adds",
        "`litz audit`, `litz calibrate-collectives`, `litz estimate-collective` and `litz fit-collectives`.",
        "litz-tools adds `litz bisect`, `litz bench-kernels`, `litz calibrate`, `litz check-plugins`, `litz doctor`,",
        "`litz explain`, `litz explain-miss`, `litz report` and `litz watch-plugins`.",
        "",
    ]
    for name, parent, command in commands(main, "litz"):
        context = click.Context(command, parent, name, max_content_width=WIDTH, terminal_width=WIDTH)
        lines += [f"## {context.command_path}", "", "```text", command.get_help(context), "```", ""]
    return "\n".join(lines)

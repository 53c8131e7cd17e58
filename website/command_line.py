"""The page of the command line: each command's own help, core's and the plugins' of this repository."""

from __future__ import annotations

from collections.abc import Iterator

import click

from litz.cli.main import main

WIDTH = 100
"""Columns of the help texts."""


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Each command below the group with what one types for it, in the order of the group's own list."""
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


def page() -> str:
    """The page as Markdown."""
    lines = [
        "# Help of each command",
        "",
        "The text below each command is what `--help` prints. litz-autotune adds `litz tune`. litz-collectives adds",
        "`litz audit`, `litz calibrate-collectives`, `litz estimate-collective` and `litz fit-collectives`.",
        "litz-tools adds `litz bisect`, `litz bench-kernels`, `litz calibrate`, `litz check-plugins`, `litz doctor`,",
        "`litz explain`, `litz explain-miss` and `litz watch-plugins`.",
        "",
    ]
    for name, command in commands(main, "litz"):
        context = click.Context(command, info_name=name, max_content_width=WIDTH, terminal_width=WIDTH)
        lines += [f"## {name}", "", "```text", command.get_help(context), "```", ""]
    return "\n".join(lines)

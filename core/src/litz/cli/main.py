"""`litz`: what is installed, what works, what is cached, and what a compile decided."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import click

from litz import __version__
from litz.cli.cache import cache
from litz.cli.doctor import doctor
from litz.cli.explain import explain
from litz.cli.options import options
from litz.cli.plugins import plugins
from litz_plugins import LitzError

COMMANDS = "litz.commands"
"""The entry points by which an installed dist adds a command: name = "module:command"."""


class _Group(click.Group):
    """A group whose commands end with a message, not a traceback, when litz raises on purpose.

    Commands of other dists are imported when they are used; litz's own names cannot be taken.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *(entry.name for entry in entry_points(group=COMMANDS))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        found = next((entry for entry in entry_points(group=COMMANDS) if entry.name == cmd_name), None)
        if found is None:
            return None
        try:
            command = found.load()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".replace("\n", " ")
            return click.Command(cmd_name, callback=_broken(found.value, reason), short_help=f"(fails: {reason})")
        return command if isinstance(command, click.Command) else None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LitzError as error:
            raise click.ClickException(str(error)) from error


def _broken(value: str, reason: str) -> Callable[[], None]:
    def run() -> None:
        raise click.ClickException(f"{value} cannot be imported: {reason}")

    return run


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="litz")
def main() -> None:
    """litz, a torch.compile backend: torch.compile(model, backend="litz").

    Start with `litz doctor`, which says whether this machine has what litz needs.
    """


for command in (doctor, explain, plugins, options, cache):
    main.add_command(command)

if __name__ == "__main__":
    main()

"""`litz`: what is installed, what may be set, what is cached; and the commands of plugins."""

from __future__ import annotations

from typing import Any

import click

from litz import __version__
from litz.cli.cache import cache
from litz.cli.common import installed_plugins, no_plugin_warnings
from litz.cli.options import options
from litz.cli.owned import owned
from litz.cli.plugins import plugins
from litz_plugins import LitzError
from litz_plugins.words import OWN_COMMANDS, OWN_DISTS, install


class _Group(click.Group):
    """Core's commands, then the plugins'. Each ends with a message, and no traceback, when litz raises on purpose."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *sorted(set(_commands_of(ctx)) - set(self.commands))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)  # first: core's commands must not wait for plugins to load
        return own if own is not None else _commands_of(ctx).get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns click's answer; of a command that is not there and that a dist of litz's own adds, the error says
        so."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if args[0] not in OWN_COMMANDS:
                raise
            plugin = OWN_COMMANDS[args[0]]
            todo = f"{OWN_DISTS[plugin][0]} has it: {install(plugin)} (`litz plugins` says what is installed)."
            raise click.UsageError(f"{error.format_message()} {todo}", ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LitzError as error:
            raise click.ClickException(str(error)) from error


def _commands_of(ctx: click.Context) -> dict[str, click.Command]:
    """The commands of plugins, which are asked for them once a command line."""
    found: dict[str, click.Command] | None = ctx.meta.get("litz.plugin_commands")
    if found is None:
        found = ctx.meta["litz.plugin_commands"] = _plugin_commands()
    return found


def _plugin_commands() -> dict[str, click.Command]:
    """The commands of installed plugins; a plugin that cannot be loaded has none (`litz plugins` says why)."""
    with no_plugin_warnings():
        loaded = installed_plugins()  # what fails here, `litz plugins` says
        commands = loaded.commands_by_plugin().items()
        return {name: owned(command, loaded.source_of(plugin)) for name, (plugin, command) in commands}


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="litz")
def main() -> None:
    """litz, a torch.compile backend: torch.compile(model, backend="litz").

    Start with `litz doctor` (of litz-tools), which says whether this machine has what litz needs.
    """


for command in (plugins, options, cache):
    main.add_command(command)

if __name__ == "__main__":
    main()

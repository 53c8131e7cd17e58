"""`litz`: what is installed, what works, what is cached, and what a compile decided."""

from __future__ import annotations

from typing import Any

import click

from litz import __version__
from litz.cli.cache import cache
from litz.cli.doctor import doctor
from litz.cli.explain import explain
from litz.cli.options import options
from litz.cli.plugins import plugins
from litz_plugins import LitzError


class _Group(click.Group):
    """A group whose commands end with a message, not a traceback, when litz raises on purpose."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LitzError as error:
            raise click.ClickException(str(error)) from error


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

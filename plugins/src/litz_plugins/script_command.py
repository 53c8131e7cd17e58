"""The command line of a command that runs a user's script: `litz COMMAND [OPTIONS] SCRIPT [ARGS]...`.

Options of the command stand before SCRIPT, and everything after SCRIPT is the script's own. Only commands import this
module, which imports click.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import click

PLACE = "Options of this command stand before SCRIPT; everything after SCRIPT is the script's own."


class ScriptCommand(click.Command):
    """A command with the arguments `script` and `args`. An unknown option before the script is an error that names the
    nearest option. An option of the command after the script gives a warning, because the script gets the option."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["context_settings"] = {"allow_interspersed_args": False, **(kwargs.get("context_settings") or {})}
        kwargs.setdefault("epilog", PLACE)
        super().__init__(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Warns about options that stand after the script, then runs the command. `--help` there is the script's."""
        words = [word.partition("=")[0] for word in takewhile(lambda word: word != "--", ctx.params["args"])]
        options = [one for one in self.params if isinstance(one, click.Option) and not one.hidden]
        own = {name for one in options for name in one.opts + one.secondary_opts}
        for name in dict.fromkeys(word for word in words if word in own):
            text = f"warning: {name} goes to the script; for `litz {ctx.info_name}` write {name} before SCRIPT"
            click.echo(text, err=True)
        return super().invoke(ctx)


__all__ = ["PLACE", "ScriptCommand"]

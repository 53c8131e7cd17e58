"""Commands of plugins on litz's command line: in, a command and whose it is; out, the command, whose failures name the
plugin."""

from __future__ import annotations

import copy
from typing import Any

import click

from litz_plugins import LitzError, PluginHookError
from litz_plugins.loading import Source
from litz_plugins.raised import package_of


def owned(command: click.Command, source: Source) -> click.Command:
    """Returns a plugin's command whose unexpected exceptions name the plugin (PluginHookError). Errors of click and of
    litz are for the command's user and stay as they are."""
    found = copy.copy(command)
    name = command.name or "?"

    def invoke(ctx: click.Context) -> Any:
        try:
            return command.invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit, LitzError):
            raise
        except Exception as cause:
            package = package_of(source.obj)
            raise PluginHookError(
                source.name, f"the command {name!r}", cause, dist=source.origin, package=package
            ) from cause

    found.invoke = invoke  # type: ignore[method-assign]
    return found

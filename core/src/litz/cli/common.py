"""What the commands share: the console, and the plugins and options as a compile would see them."""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from litz.driver.plugin_options import plugin_options
from litz.options import Options, make_options, make_plugin_settings
from litz_plugins import Plugins, PluginWarning, make_plugins, missing
from litz_plugins.missing import Missing


def make_console() -> Console:
    """Returns a console on the present standard output: as wide as the terminal, or 80 columns where there is no
    terminal."""
    return Console(highlight=False)


def make_table(*columns: str, numbers: Sequence[str] = (), names: Sequence[str] = ()) -> Table:
    """A plain table that wraps rather than cuts in 80 columns. numbers: the columns that are aligned on the right.
    names: the columns whose cells a reader copies, which are never broken."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        right = "right" if column in numbers else "left"
        table.add_column(column, overflow="fold", justify=right, no_wrap=column in names)  # type: ignore[arg-type]
    return table


def print_json(value: Any) -> None:
    """Prints a value as JSON for scripts: no colours, no wrapping. Dataclasses become objects, paths become text."""
    click.echo(json.dumps(value, indent=2, default=_as_json))


def _as_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value) if isinstance(value, (Path, Exception)) else repr(value)


@contextmanager
def no_plugin_warnings() -> Iterator[None]:
    """Hides warnings about plugins that fail, for a command that itself says which fail."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)
        yield


def installed_plugins() -> Plugins:
    """The plugins of installed dists, without core's own, whose modules load torch: enough to list options and
    commands, of which core's own plugins register none. A plugin that fails is left out (`litz plugins` says why)."""
    with no_plugin_warnings():
        return make_plugins(disable=make_plugin_settings().disable, on_plugin_error="disable")


def load_plugins() -> tuple[Plugins, str]:
    """The plugins a compile would use, but without raising for one that fails: its row of the listing says why.

    Returns them and, if core's own could not be loaded, the reason: `litz plugins` has to run where litz does not.
    """
    settings = make_plugin_settings()
    builtins: tuple[tuple[str, object], ...] = ()
    problem = ""
    try:
        from litz.driver.builtin import builtin_plugins

        builtins = builtin_plugins()
    except Exception as cause:
        problem = f"{type(cause).__name__}: {cause}"
    return make_plugins(builtins, disable=settings.disable, on_plugin_error="disable"), problem


def missing_plugins(loaded: Plugins) -> list[Missing]:
    """The plugins that are expected and not there: by the environment, by a project in the working folder, or as a dist
    of litz's own, which come last."""
    known = {source.name for source in loaded.sources()}
    wanted = missing.variables(os.environ, (spec.name for spec in loaded.option_specs()), known)
    wanted += missing.projects(Path.cwd(), known)
    return [*wanted, *missing.own_dists({*known, *(one.plugin for one in wanted)})]


def current_options(plugins: Plugins | None = None) -> Options:
    """Returns the options of a compile that passes none: environment and defaults. Warnings go to standard error.
    Errors: InvalidOptionError."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options = make_options() if plugins is None else plugin_options(plugins)
    for warning in caught:  # without the line of litz's own source that Python prints below
        click.echo(f"warning: {warning.message}", err=True)
    return options

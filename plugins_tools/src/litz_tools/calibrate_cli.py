"""`litz calibrate`: measures a device's speeds and thresholds, and writes them into its file of figures.

A command of another plugin whose name begins with "calibrate-" is one of `litz calibrate`, too, without this beginning:
`litz calibrate collectives` is litz-collectives' `calibrate-collectives`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from litz.cli.common import print_json
from litz_plugins.command_line import Number, Output

PREFIX = "calibrate-"


class _Kinds(click.Group):
    """The commands of this module, and those of other plugins that begin with "calibrate-"."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = [name for litz, context in self._litz(ctx) for name in litz.list_commands(context)]
        others = [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]
        return [*super().list_commands(ctx), *others]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        for litz, context in self._litz(ctx) if found is None else ():
            other = litz.get_command(context, PREFIX + cmd_name)
            if other is not None:
                found = copy.copy(other)
                found.name = cmd_name
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns click's answer. Of a command that another dist of litz's own adds, the error says so."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            for litz, context in self._litz(ctx):
                try:
                    litz.resolve_command(context, [PREFIX + args[0]])
                except click.UsageError as other:
                    if "`pip install" in other.format_message():
                        raise other from error
            raise

    def _litz(self, ctx: click.Context) -> list[tuple[click.Group, click.Context]]:
        """Returns the command `litz` and its context; none where this group was called without that command."""
        root = ctx.find_root()
        return [(root.command, root)] if isinstance(root.command, click.Group) and root is not ctx else []


@click.group(cls=_Kinds, short_help="Measure a device, or collectives; write the figures.")
def calibrate() -> None:
    """Measure what decisions and estimates go by, and write the figures to a file.

    A machine that does something else meanwhile has no figures: then nothing is written, and the error says why.
    """


def _measures(type: str) -> Callable[[Callable[..., None]], click.Command]:
    """Returns what makes the command that measures devices of a type."""

    def made(function: Callable[..., None]) -> click.Command:
        for option in reversed(_OPTIONS):
            function = option(function)
        out = click.option("--out", type=Output(), default=Path(f"{type}.toml"), show_default=True, help=_OUT)
        return calibrate.command(type, short_help=_SHORT[type])(out(function))

    return made


_OUT = "File to write, or a folder for NAME.toml. A file that is there keeps its other tables."
_SHORT = {"cpu": "Measure this processor.", "cuda": "Measure a GPU."}
_OPTIONS = (
    click.option("--seconds", default=80.0, type=Number(), show_default=True, help="No trial begins later."),
    click.option("--only", multiple=True, help="A part of the names of figures to try; may be given several times."),
    click.option("--quick", is_flag=True, help="Small tensors and speeds alone: rough figures in seconds."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON: figures by name."),
)


@_measures("cpu")
def cpu(**given: Any) -> None:
    """Measure this processor's bandwidth, rates, launch cost, and each figure whose best value a program can show.

    Every speed is measured in several rounds. Where these differ, where other programs take the processors, or where a
    figure is out of bounds, nothing is written.

    Then LITZ_CALIBRATION=FILE, or options={"calibration": FILE}.
    """
    _run("cpu", **given)


@_measures("cuda")
@click.option("--index", type=click.IntRange(0), help="Which GPU; by default the current one.")
def cuda(index: int | None, **given: Any) -> None:
    """Measure a GPU's bandwidth, rates, launch cost, and each figure whose best value a program can show.

    Every speed is measured in several rounds. Where these differ, where other programs take the processors or the GPU,
    or where a figure is out of bounds, nothing is written.

    Then LITZ_CALIBRATION=FILE, or options={"calibration": FILE}.
    """
    _run("cuda" if index is None else f"cuda:{index}", **given)


def _run(device: str, out: Path, seconds: float, only: tuple[str, ...], quick: bool, as_json: bool) -> None:
    import torch  # here, so that `litz --help` loads no torch

    from . import steady
    from .device_file import Measured, speeds_of, write_file
    from .speeds import check_present, measure_speeds
    from .trials import run_trials

    begun = time.perf_counter()
    where = torch.device(device)
    check_present(where)
    steady.check_idle(where)
    command, date = f"litz calibrate {where.type}", time.strftime("%Y-%m-%d")
    others, rounds = steady.Others(), []
    for number in range(steady.ROUNDS):
        click.echo(f"round {number + 1} of {steady.ROUNDS}: speeds", err=True)
        rounds.append(measure_speeds(where, quick))
    others.check()
    speeds, spread = steady.steady_figures(rounds, where, torch.get_num_threads())
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else ""
    here = f"{name or 'this processor'}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    how = f"{here}. {steady.ROUNDS} rounds, {spread:.0%} apart at most"
    tables = [speeds_of(speeds, how, date, command)]
    shown: dict[str, object] = dict(speeds)
    for found in run_trials(where, 0.0 if quick else begun + seconds, only):
        if isinstance(found, str):
            shown[found] = "not tried: no time was left"
        elif not found.seconds:
            shown[found.figure] = f"{found.value} stays: all values make the same kernels here"
        elif found.others > steady.MOST_OTHERS:
            shown[found.figure] = f"{found.before} stays: other programs took {found.others:.0%} of the processors"
        else:
            tables.append(Measured(found.figure, {"value": found.value}, f"{here}. {found}", date, command))
            shown[found.figure] = found.value
    path = out / f"{'-'.join(name.lower().split()) or where.type}.toml" if out.is_dir() or not out.suffix else out
    write_file(path, where.type, name, tables)
    if as_json:
        print_json({"path": path, "spread": spread, "figures": shown})
        return
    for key, value in shown.items():
        click.echo(f"  {key:30} {value if isinstance(value, str) else f'{value:g}'}")
    click.echo(f"{steady.ROUNDS} rounds, {spread:.0%} apart at most")
    click.echo(f"written to {path}; use it with LITZ_CALIBRATION={path}")

"""`litz calibrate`: measures a device's speeds and thresholds, and writes them into its file of figures."""

from __future__ import annotations

import time
from pathlib import Path

import click

from litz.cli.common import print_json
from litz_plugins.command_line import Number, Output


@click.command(short_help="Measure a device: speeds, and figures that decide.")
@click.option("--out", type=Output(), required=True, help="File to write, or a folder for NAME.toml.")
@click.option("--device", help="Device to measure; by default the GPU if there is one, else cpu.")
@click.option("--seconds", default=80.0, type=Number(), show_default=True, help="No trial of a figure begins later.")
@click.option("--only", multiple=True, help="A part of the names of figures to try; may be given several times.")
@click.option("--quick", is_flag=True, help="Small tensors and speeds alone: rough figures in a second.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: figures by name.")
def calibrate(out: Path, device: str | None, seconds: float, only: tuple[str, ...], quick: bool, as_json: bool) -> None:
    """Measure a device's bandwidth, rates, launch cost, and each figure whose best value a program can show, and write
    them to OUT. A file that is there keeps its other tables.

    Then LITZ_CALIBRATION=OUT, or options={"calibration": OUT}.
    """
    import torch  # here, so that `litz --help` loads no torch

    from .device_file import Measured, speeds_of, write_file
    from .speeds import measure_speeds
    from .trials import run_trials

    begun = time.perf_counter()
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    command, date = f"litz calibrate --device {where.type}", time.strftime("%Y-%m-%d")
    speeds = measure_speeds(where, quick)
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else ""
    here = f"{name or 'this processor'}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    tables = [speeds_of(speeds, here, date, command)]
    shown: dict[str, object] = dict(speeds)
    for found in run_trials(where, 0.0 if quick else begun + seconds, only):
        if isinstance(found, str):
            shown[found] = "not tried: no time was left"
        elif not found.seconds:
            shown[found.figure] = f"{found.value} stays: all values make the same kernels here"
        else:
            tables.append(Measured(found.figure, {"value": found.value}, f"{here}. {found}", date, command))
            shown[found.figure] = found.value
    path = out / f"{'-'.join(name.lower().split()) or where.type}.toml" if out.is_dir() or not out.suffix else out
    write_file(path, where.type, name, tables)
    if as_json:
        print_json({"path": path, "figures": shown})
        return
    for key, value in shown.items():
        click.echo(f"  {key:30} {value if isinstance(value, str) else f'{value:g}'}")
    click.echo(f"written to {path}; use it with LITZ_CALIBRATION={path}")

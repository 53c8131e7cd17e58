"""`litz bench-kernels`: run generated kernels alone and say how long each takes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click
from rich.text import Text

from litz.cli.common import make_console, make_table, print_json
from litz_plugins.command_line import SECONDS
from litz_tools.kernel_files import kernel_files


@click.command("bench-kernels", short_help="Time generated kernels, each alone.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--seconds", default=0.2, type=SECONDS, show_default=True, help="How long to measure each kernel.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def bench_kernels(paths: tuple[Path, ...], seconds: float, as_json: bool) -> None:
    """Time the kernels of PATHS, each alone, on made-up tensors of the shapes that they were generated for.

    A path is a graph's folder in the cache or in a report, or one kernel's file in it, written by a compile with the
    option benchmark_kernels; `litz explain -v` shows where. A kernel's source may be changed and timed again.
    """
    files = [file for path in paths for file in kernel_files(path)]
    from litz_tools.kernel_bench import time_kernel  # this loads torch

    times = [time_kernel(file, seconds) for file in files]
    if as_json:
        print_json([{**asdict(time), "gb_s": time.gb_s} for time in times])
        return
    numbers = ("µs", "expected", "GB/s")
    table = make_table("kernel", *numbers, "does", numbers=numbers, names=("kernel",))
    for time in times:
        cells = (time.us, time.expected_us, time.gb_s)
        texts = ["" if value is None else f"{value:.4g}" for value in cells]
        table.add_row(*map(Text, (time.name, *texts, time.problem or time.does)))
    make_console().print(table)

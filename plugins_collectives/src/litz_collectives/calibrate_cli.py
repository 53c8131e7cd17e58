"""`litz calibrate-collectives`, under torchrun: what collectives, kernels and their overlap cost here, as a profile.

torch is loaded when the command runs, not when `litz --help` asks for it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import click

from litz.logs.units import size_text, time_text
from litz_plugins.command_line import SECONDS, Output

from .cli import parse_numbers, size_option
from .evaluate import error_lines, errors_of
from .profile import Profile
from .topology import GPUS

KINDS = "all_reduce,all_gather,reduce_scatter,all_to_all"


def _environment(name: str, least: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """An option that torchrun's environment sets."""
    return click.option(f"--{name.lower().replace('_', '-')}", envvar=name, type=click.IntRange(least), hidden=True)


@click.command(short_help="Measure this machine's collectives; write a profile.")
@click.argument("profile", type=Output(dir_okay=False))
@click.option("--csv", type=Output(dir_okay=False), help="Write the measured times to this file.")
@click.option("--world-sizes", default="", help="Groups to measure, as 2,4: by default 2, 4, 8, ... and all ranks.")
@click.option("--hold-out", default="", help="Groups to measure and predict, but not to fit to, as 3.")
@click.option("--collectives", default=KINDS, show_default=True, help="Which to measure.")
@size_option("--least", least=1, default="1KiB", show_default=True, help="The smallest message.")
@size_option("--most", least=1, default="1GiB", show_default=True, help="The largest message.")
@click.option("--seconds", type=SECONDS, help="When time is up, every other size has to do.")
@click.option("--overlap/--no-overlap", default=True, help="Measure what overlap costs, on GPUs.", show_default=True)
@click.option("--gpu", help=f"Where litz does not know this machine's: one of {', '.join(GPUS)}.")
@click.option("--link", help="Between this machine's GPUs: NV18, NV12, ..., PCI. By default as NVML says.")
@click.option("--json", "as_json", is_flag=True, help="Print the errors of the fit as JSON.")
@_environment("RANK", 0)
@_environment("LOCAL_RANK", 0)
@_environment("WORLD_SIZE", 1)
@_environment("LOCAL_WORLD_SIZE", 1)
def calibrate(
    profile: Path,
    csv: Path | None,
    world_sizes: str,
    hold_out: str,
    collectives: str,
    least: int,
    most: int,
    seconds: float | None,
    overlap: bool,
    gpu: str | None,
    link: str | None,
    as_json: bool,
    rank: int | None,
    local_rank: int | None,
    world_size: int | None,
    local_world_size: int | None,
) -> None:
    """Measure this machine's collectives, and write PROFILE (JSON).

    Start it on all GPUs of one machine:

        torchrun --nproc-per-node 4 -m litz calibrate-collectives profile.json

    Measured are all_reduce, all_gather, reduce_scatter and all_to_all between groups of the first 2, 4, ... GPUs:
    device time and launch cost; what a large matrix product and a copy reach; and what a collective and a kernel at a
    time cost each other. On the CPU, gloo stands in for NCCL, which shows how it works and nothing else.
    """
    from litz.capture import torch_api

    from . import job
    from .calibrate import Request, csv_text, measure, profile_of_measured
    from .together import Together

    place = job.make_place(rank, local_rank, world_size, local_world_size)
    device = job.find_device(place)
    topology = job.find_topology(gpu, link, device, place)
    held = parse_numbers(hold_out)
    sizes = job.check_world_sizes(parse_numbers(world_sizes), held, place)
    kinds = job.check_kinds(collectives.replace(",", " ").split())
    request = Request(sizes, held, kinds, least, most, math.inf if seconds is None else seconds, overlap)
    with job.group(device), job.progress(place) as tell:
        found = torch_api.default_store()
        assert found is not None
        measured = measure(request, Together(found[0], place.rank, place.world_size), device, tell)
    if place.rank != 0:
        return
    made = profile_of_measured(measured, topology, held, job.source(sizes, topology, device))
    profile.write_text(made.dumps(), encoding="utf-8")
    if csv is not None:
        csv.write_text(csv_text(measured.rows), encoding="utf-8")
    errors = errors_of(made, measured.points)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(row) for row in errors], indent=2))
        return
    for line in (*error_lines(errors), *_figures(made)):
        click.echo(line)
    skipped = f" ({measured.skipped} messages skipped)" if measured.skipped else ""
    click.echo(f"measured {len(measured.rows)} messages in {measured.seconds:.0f} s{skipped}")
    click.echo(f"wrote {profile}; use it with options={{'collectives.profile': '{profile}'}}")


def _figures(made: Profile) -> list[str]:
    """Returns the figures of what kernels reach, and of what overlap costs, as lines."""
    lines = [f"a matrix product reaches {made.gemm_tflops:.4g} TFLOP/s in bf16, a copy {made.copy_gb_s:.4g} GB/s"]
    for kind, rows in made.contention.items():
        lines += [
            f"{kind} of {size_text(row.bytes)} beside kernels: {row.collective:.2f} times as long and "
            f"{time_text(row.delay_us)} later; a matrix product {row.gemm:.2f} times as long, a copy {row.copy:.2f}"
            for row in rows
        ]
    return lines

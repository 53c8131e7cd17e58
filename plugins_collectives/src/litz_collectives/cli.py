"""`litz estimate-collective`, what a collective would cost; `litz fit-collectives`, a profile from measured times."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from litz.logs.units import size_text, time_text
from litz_plugins.command_line import Number, Output
from litz_plugins.units import parse_size

from .evaluate import error_lines, errors_of, split_points
from .model import Cost, collective_cost
from .nccl import KINDS, Message
from .profile import Profile, make_profile, read_points, read_profile
from .topology import GPUS, make_topology

_Command = TypeVar("_Command", bound=Callable[..., Any])
MOST_BYTES, MOST_RANKS, MOST_GB_S = 1 << 44, 1 << 20, 100_000.0
"""Bounds of what is asked about, beyond every machine: bytes on one GPU, GPUs of a job, GB/s of a network."""
_RANKS, _GB_S = click.IntRange(1, MOST_RANKS), Number(0, MOST_GB_S, above=True)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def size_option(
    name: str, *also: str, least: int = 0, most: int = MOST_BYTES, **about: Any
) -> Callable[[_Command], _Command]:
    """Returns a click option that takes a size such as 64MiB and gives bytes. least, most: the bounds, in bytes."""

    def read(context: click.Context, parameter: click.Parameter, text: str) -> int:
        try:
            found = parse_size(text)
        except ValueError as cause:
            raise click.BadParameter(str(cause)) from cause
        if found < least:
            raise click.BadParameter(f"{text!r} is less than {least} B")
        if found > most:
            raise click.BadParameter(f"{text!r} is more than {size_text(most)}")
        return found

    return click.option(name, *also, metavar="SIZE", callback=read, **about)


@click.command("estimate-collective", short_help="Say how long a collective takes; run nothing.")
@click.option(
    "--collective",
    "kind",
    metavar="KIND",
    type=click.Choice(list(KINDS)),
    required=True,
    help=f"One of {', '.join(KINDS)}.",
)
@size_option("--bytes", "size", required=True, help="As 64MiB; counted as nccl-tests does.")
@click.option("--world-size", type=_RANKS, required=True, help="Ranks in the group.")
@click.option("--gpu", default="H200", show_default=True, help=f"One of {', '.join(GPUS)}.")
@click.option("--link", help="Between GPUs of a node: NV18, NV12, ..., PCI. By default that of the GPU's usual node.")
@click.option("--gpus-per-node", type=_RANKS, help="By default that of the GPU's usual node.")
@click.option("--network", "network_gb_s", type=_GB_S, help="GB/s per GPU and direction between nodes.")
@click.option("--nvls", is_flag=True, help="NCCL may reduce in the NVLink switches.")
@click.option("--profile", type=_FILE, help="A measured or planned cluster (JSON), in place of --gpu and --link.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def estimate_collective(
    kind: str,
    size: int,
    world_size: int,
    gpu: str,
    link: str | None,
    gpus_per_node: int | None,
    network_gb_s: float | None,
    nvls: bool,
    profile: Path | None,
    as_json: bool,
) -> None:
    """Say how long a collective takes, without running it.

    Bytes are the buffer of an all_reduce or broadcast, the whole output of an all_gather, and the whole input of a
    reduce_scatter or all_to_all. Needs no GPU.
    """
    if profile is not None:
        known = read_profile(profile)
    else:
        given = {} if network_gb_s is None else {"network_gb_s": network_gb_s}
        known = Profile(make_topology(gpu, link, gpus_per_node=gpus_per_node, nvls=nvls, **given))
    cost = collective_cost(Message(kind, size, world_size), known)
    if as_json:
        click.echo(json.dumps(as_data(cost), indent=2))
        return
    click.echo(f"{time_text(cost.us)}, between {time_text(cost.low_us)} and {time_text(cost.high_us)}")
    click.echo(f"{cost.algorithm}, {cost.protocol}: {cost.why}")


def as_data(cost: Cost) -> dict[str, object]:
    """Returns a cost as data for JSON; times are in µs."""
    return {
        "time_us": round(cost.us, 2),
        "low_us": round(cost.low_us, 2),
        "high_us": round(cost.high_us, 2),
        "algorithm": cost.algorithm,
        "protocol": cost.protocol,
        "launch_us": cost.launch_us,
        "why": cost.why,
        "considered": [{**dataclasses.asdict(way), "us": round(way.us, 2)} for way in cost.considered],
    }


def parse_numbers(text: str) -> tuple[int, ...]:
    """Returns the numbers in "2,4" or "2 4" as (2, 4). Errors: click.BadParameter."""
    try:
        numbers = tuple(int(word) for word in text.replace(",", " ").split())
        if min(numbers, default=1) < 1:
            raise ValueError("a number below 1")
        return numbers
    except ValueError as cause:
        raise click.BadParameter(f"{text!r} is no list of numbers such as 2,4") from cause


@click.command("fit-collectives", short_help="Make a profile of measured times.")
@click.argument("measured", type=_FILE, nargs=-1, required=True)
@click.argument("profile", type=Output(dir_okay=False))
@click.option("--gpu", required=True, help=f"One of {', '.join(GPUS)}.")
@click.option("--link", help="Between GPUs of a node: NV18, NV12, ..., PCI. By default that of the GPU's usual node.")
@click.option("--gpus-per-node", type=_RANKS, help="By default that of the GPU's usual node.")
@click.option("--source", default="", help="What was measured, with which NCCL: shown with every estimate.")
@click.option("--hold-out", default="", help="World sizes to leave out of the fit and to predict: 3, or 3,6.")
@click.option("--json", "as_json", is_flag=True, help="Print the errors of the fit as JSON.")
def fit_collectives(
    measured: tuple[Path, ...],
    profile: Path,
    gpu: str,
    link: str | None,
    gpus_per_node: int | None,
    source: str,
    hold_out: str,
    as_json: bool,
) -> None:
    """Fit curves to the times in MEASURED (CSV, one file or more) and write them as PROFILE (JSON).

    The columns are collective, world_size, bytes, time_us (device time of the slowest rank) and launch_us (host time of
    an eager call). docs/collectives.md says how to measure. Several files, of machines of one kind, make one curve that
    goes for all of them.
    """
    points, launch_us = read_points(*measured)
    fitted, _ = split_points(points, parse_numbers(hold_out))
    topology = make_topology(gpu, link, gpus_per_node=gpus_per_node)
    made = make_profile(topology, fitted, launch_us, source or " and ".join(path.name for path in measured))
    profile.write_text(made.dumps(), encoding="utf-8")
    errors = errors_of(made, points)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(row) for row in errors], indent=2))
        return
    for line in error_lines(errors):
        click.echo(line)
    click.echo(f"wrote {profile}; use it with options={{'collectives.profile': '{profile}'}}")

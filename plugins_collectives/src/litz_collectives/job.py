"""The job that torchrun started: its ranks, devices and group. In: what the command was given. Out: checked data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import click
import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .calibrate import Tell, default_world_sizes
from .measure import KINDS
from .together import PATIENCE_S, CalibrationError
from .topology import Topology, machine_topology, make_topology

START = "torchrun --nproc-per-node 4 -m litz calibrate-collectives profile.json"


@dataclass(frozen=True)
class Place:
    """The process's rank among all processes and on its machine, and the sizes of both."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int


def make_place(rank: int | None, local_rank: int | None, world_size: int | None, local_size: int | None) -> Place:
    """Returns the place that torchrun's environment gives. Raises CalibrationError without it or on one rank."""
    if rank is None or local_rank is None or world_size is None or local_size is None:
        raise CalibrationError(
            "litz calibrate-collectives measures a group of processes, and torchrun did not start it",
            todo=f"start {START}",
        )
    if world_size < 2:
        raise CalibrationError("a group of one rank sends nothing", todo=f"use two GPUs or more: {START}")
    return Place(rank, local_rank, world_size, local_size)


def find_device(place: Place) -> torch.device:
    """Returns the rank's GPU, made the current one; the CPU where there is none. Errors: CalibrationError if there are
    more ranks than GPUs."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if torch.cuda.device_count() < place.local_world_size:
        raise CalibrationError(
            f"{place.local_world_size} ranks were started and there are {torch.cuda.device_count()} GPUs",
            todo="start no more ranks than there are GPUs: NCCL needs one for each",
        )
    if not dist.is_nccl_available():
        raise CalibrationError("this torch was built without NCCL", todo="install a CUDA build of torch")
    device = torch.device("cuda", place.local_rank)
    torch.cuda.set_device(device)
    return device


def find_topology(gpu: str | None, link: str | None, device: torch.device, place: Place) -> Topology:
    """Returns the machine's links: as given, else as NVML says, else those of the GPU's usual node. Errors:
    CalibrationError without a GPU."""
    here = machine_topology() if gpu is None and link is None else None
    if here is not None:
        return here
    if gpu is None and device.type != "cuda":
        raise CalibrationError(
            "there is no GPU here", todo="to try it out with gloo on the CPU, say what to take it for: --gpu H200"
        )
    name = gpu or torch.cuda.get_device_name(device)
    return make_topology(name, link, gpus_per_node=torch.cuda.device_count() or place.local_world_size)


def check_world_sizes(sizes: Sequence[int], held: Sequence[int], place: Place) -> tuple[int, ...]:
    """Returns the world sizes to fit to. Raises CalibrationError for sizes that cannot be, or are held out too."""
    local = place.local_world_size
    chosen = tuple(sorted(set(sizes))) or tuple(n for n in default_world_sizes(local) if n not in held)
    for n in (*chosen, *held):
        if not 2 <= n <= local:
            raise CalibrationError(
                f"a group of {n} ranks cannot be measured: there are {local} on this machine",
                todo="a curve is of groups within one machine; between machines NCCL's formula is used",
            )
    if set(chosen) & set(held) or not chosen:
        raise CalibrationError("every world size is either fitted to or held out, and one is fitted to at least")
    return chosen


def check_kinds(kinds: Sequence[str]) -> tuple[str, ...]:
    """Returns the kinds of collective in the order that they are measured in. Errors: CalibrationError for no kind, or
    an unknown one."""
    if not kinds or not set(kinds) <= set(KINDS):
        raise CalibrationError(f"the collectives that are measured are {', '.join(KINDS)}; got {', '.join(kinds)}")
    return tuple(kind for kind in KINDS if kind in kinds)


@contextmanager
def group(device: torch.device) -> Iterator[None]:
    """Makes the default process group where there is none, and ends it after a `with` that does not raise."""
    if dist.is_initialized():
        yield
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=PATIENCE_S))
    yield  # after an error the process ends at once: to end the group would be to wait for ranks that may be gone
    dist.destroy_process_group()


@contextmanager
def progress(place: Place) -> Iterator[Tell]:
    """Yields a function that shows progress on rank 0: a bar on a terminal, else a line per step."""
    console = Console(stderr=True)
    if place.rank != 0:
        yield lambda share, what: None
    elif not console.is_terminal:
        said: list[str] = []

        def line(share: float, what: str) -> None:
            if what not in said:
                said.append(what)
                click.echo(f"{share:>4.0%} {what}", err=True)

        yield line
    else:
        columns = (BarColumn(30), TextColumn("{task.percentage:>3.0f} % {task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("starting", total=1.0)
            yield lambda share, what: bar.update(task, completed=share, description=what)


def source(sizes: Sequence[int], topology: Topology, device: torch.device) -> str:
    """Returns what was measured and with what, as text that is shown with every estimate."""
    ranks = " and ".join(map(str, sizes))
    if device.type != "cuda":
        return f"gloo on the CPU, {ranks} ranks, taken for {topology.gpu}, torch {torch.__version__}"
    nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call,unused-ignore]
    return f"{ranks} {topology.gpu}, {topology.link}, NCCL {nccl}, torch {torch.__version__}"

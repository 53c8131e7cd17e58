"""What layouts are worth: convolutional networks with and without litz-layout, against eager and Inductor, in one run.

    python -m benchmarks.layouts [--only NAME ...] [--types autocast float16] [--modes inference training] [--out FILE]
    OMP_NUM_THREADS=1 python -m benchmarks.layouts --cpu-time       on a CPU that others use as well
    python -m benchmarks.layouts --jobs 8                           compile eight rows at once, measure one at a time

Inputs are row-major (NCHW) for everyone. "eager last" is the model in torch.channels_last, its input converted in each
step; "litz -" is litz without the plugin's layouts; "graphs", if asked for by --peers, replay CUDA graphs, whose memory
pools leave no room for many --jobs. Times are the median of a step in ms, everyone in turn; on a
GPU a second line sums up one step's kernels, which take less where the host is slower than the device. Copies are what
the plugin inserted. On a CPU: float32, small batches.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.turns import Turns
from benchmarks.vision import NETWORKS

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
TYPES = ("autocast", "float16") if GPU else ("float32",)
MODES = ("inference", "training")
BATCH = {"inference": 64, "training": 64} if GPU else {"inference": 4, "training": 4}
SIDE = 224 if GPU else 96


@dataclass
class Row:
    """One network in one type and mode. Times in ms (`device`: of the kernels), copies inserted by the plugin, error
    against eager."""

    network: str
    type: str
    mode: str
    ms: dict[str, float] = field(default_factory=dict)
    device: dict[str, float] = field(default_factory=dict)
    copies: int = 0
    convolutions: int = 0
    error: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Peer:
    """Somebody who runs the model. backend: torch.compile's, None for eager. last: the model in channels last."""

    backend: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    last: bool = False


PEERS: Mapping[str, Peer] = {
    "eager": Peer(None),
    "eager last": Peer(None, last=True),
    "inductor": Peer("inductor"),
    "litz -": Peer("litz", {"layout.enable": False}),
    "litz": Peer("litz", {"layout.enable": True}),
    "litz - graphs": Peer("litz", {"layout.enable": False, "cuda_graphs": True}),
    "litz graphs": Peer("litz", {"layout.enable": True, "cuda_graphs": True}),
}
ON_ITS_OWN = ("eager", "eager last", "inductor", "litz -", "litz")
"""Those that are measured unless others are asked for: "graphs" replay CUDA graphs, which take the host out of it."""


def make_step(model: nn.Module, peer: Peer, kind: str, mode: str, x: Tensor) -> Callable[[], list[Tensor]]:
    """One step of inference or training; returns the output, and the gradients' norms in training."""
    run: Any = model
    if peer.last:
        model.to(memory_format=torch.channels_last)
    if peer.backend is not None:
        given = {"options": dict(peer.options)} if peer.options else {}
        run = torch.compile(model, backend=peer.backend, **given)

    def forward() -> Tensor:
        image = x.contiguous(memory_format=torch.channels_last) if peer.last else x
        half = torch.autocast(DEVICE.type, torch.bfloat16) if kind == "autocast" else contextlib.nullcontext()
        with half:
            return run(image)

    def infer() -> list[Tensor]:
        with torch.no_grad():
            return [forward()]

    def train() -> list[Tensor]:
        model.zero_grad(set_to_none=True)
        out = forward()
        out.float().square().mean().backward()
        return [out.detach()]

    return infer if mode == "inference" else train


def measure(
    network: str,
    kind: str,
    mode: str,
    peers: Sequence[str],
    seconds: float,
    top: int = 0,
    clock: Callable[[], float] = time.perf_counter,
    turns: Turns | None = None,
) -> Row:
    """Everyone's steps in turn. One that fails is left out, its error kept. top: print so many kernels of each.
    clock: in seconds. turns: with other processes on this machine."""
    with turns.compiling() if turns else contextlib.nullcontext():
        row, steps = prepare(network, kind, mode, peers)
    with turns.measuring() if turns else contextlib.nullcontext():
        take_times(row, steps, seconds, clock)
        for name, step in steps.items() if GPU or top else ():
            kernels = kernels_of(step)
            row.device[name] = sum(ms for ms, _, _ in kernels)
            if top:
                print_kernels(f"{network}, {kind}, {mode}, {name}", kernels[:top], row.device[name])
    return row


def prepare(
    network: str, kind: str, mode: str, peers: Sequence[str]
) -> tuple[Row, dict[str, Callable[[], list[Tensor]]]]:
    """A row without times, and everyone's step, which has run."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    row = Row(network, kind, mode)
    dtype = torch.float32 if kind == "autocast" else getattr(torch, kind)
    model = NETWORKS[network]().to(DEVICE, dtype).train(mode == "training")
    x = torch.randn(BATCH[mode], 3, SIDE, SIDE, device=DEVICE, dtype=dtype)
    steps: dict[str, Callable[[], list[Tensor]]] = {}
    expected: Tensor | None = None
    for name in peers:
        step = make_step(copy.deepcopy(model), PEERS[name], kind, mode, x)
        try:
            out = patiently(lambda step=step, name=name: first_call(row, name, step))
        except Exception as error:
            row.failed[name] = f"{type(error).__name__}: {error}"[:300]
            continue
        if expected is None:
            expected = out
        row.error[name] = float((out.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-6))
        steps[name] = step
        for _ in range(2):
            patiently(step)
        if GPU:
            torch.cuda.empty_cache()
    return row, steps


def patiently(work: Callable[[], Any], tries: int = 10) -> Any:
    """What `work` returns. Of --jobs, others may have the device's memory at the moment."""
    for _ in range(tries):
        try:
            return work()
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            time.sleep(2)
    return work()


def take_times(
    row: Row, steps: Mapping[str, Callable[[], list[Tensor]]], seconds: float, clock: Callable[[], float]
) -> None:
    """Fill in the medians. Every second turn goes backwards, and a first step of each turn is not counted: who runs
    after whom changes what is in the caches and which memory is free."""
    for step in steps.values():
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps)
    deadline = time.perf_counter() + seconds
    while steps and (len(times[order[0]]) < 6 or time.perf_counter() < deadline):
        for name in order:
            steps[name]()
            wait()
            start = clock()
            steps[name]()
            wait()
            times[name].append((clock() - start) * 1e3)
        order.reverse()
    row.ms = {name: statistics.median(values) for name, values in times.items()}


def kernels_of(step: Callable[[], list[Tensor]]) -> list[tuple[float, int, str]]:
    """(ms, calls, name) of what ran in one step, the longest first."""
    kinds = [torch.profiler.ProfilerActivity.CUDA if GPU else torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds) as recorded:
        step()
        wait()
    rows = recorded.key_averages()
    spent = [
        ((one.self_device_time_total if GPU else one.self_cpu_time_total) / 1e3, one.count, one.key) for one in rows
    ]
    return sorted(spent, reverse=True)


def print_kernels(title: str, kernels: Sequence[tuple[float, int, str]], total: float) -> None:
    print(f"{title}: {total:.2f} ms in all")
    for ms, calls, name in kernels:
        print(f"    {ms:8.3f} ms {calls:5}x  {name[:110]}")


def first_call(row: Row, name: str, step: Callable[[], list[Tensor]]) -> Tensor:
    """The output of the first step; of litz, also how many copies its plan made."""
    from litz import report as reports

    with reports.collect() as collected:
        out = step()[0].detach().clone()
    if name == "litz":
        notes = [d for one in collected for d in one.decisions if d.plugin == "layout"]
        row.copies = sum(d.chosen.startswith("copied") for d in notes)
        row.convolutions = sum("convolution" in what for one in collected for what in one.externs.elements())
    return out


def wait() -> None:
    if GPU:
        torch.cuda.synchronize()


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table, a line as soon as it is measured; write JSON to --out."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layouts", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(NETWORKS), choices=list(NETWORKS), help="networks, by name")
    parser.add_argument(
        "--types", nargs="*", default=list(TYPES), choices=["autocast", "bfloat16", "float16", "float32"]
    )
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=list(MODES))
    parser.add_argument("--peers", nargs="*", default=list(ON_ITS_OWN), choices=list(PEERS))
    parser.add_argument("--batch", type=int, default=0, help="images in a batch, if not the modes' own")
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring per row")
    parser.add_argument("--profile", type=int, default=0, metavar="N", help="print the N longest kernels of each")
    parser.add_argument("--cpu-time", action="store_true", help="of this process, not the wall's")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="compile so many rows at once")
    parser.add_argument("--patience", type=float, default=inf, help="seconds; then rows do not wait for compilations")
    parser.add_argument("--turns", help=argparse.SUPPRESS)  # for the processes of --jobs: FOLDER:SLOTS
    parser.add_argument("--out")
    args = parser.parse_args(argv)
    if args.batch:
        BATCH.update(dict.fromkeys(BATCH, args.batch))
    where = (
        torch.cuda.get_device_name() if GPU else f"{platform.processor() or 'CPU'}, {torch.get_num_threads()} threads"
    )
    names = "".join(f"{name:>14}" for name in args.peers)
    if not args.turns:
        print(f"{where}, torch {torch.__version__}; batch {BATCH}, {SIDE} pixels; ms per step")
        print(f"{'network':16}{'type':10}{'mode':11}{names}  copies/convolutions")

    def cells(ms: Mapping[str, float]) -> str:
        return "".join(f"{ms[n]:14.2f}" if n in ms else f"{'failed':>14}" for n in args.peers)

    rows: list[Row] = []
    for row in (side_by_side if args.jobs > 1 else one_by_one)(args):
        rows.append(row)
        if not args.turns:
            print(
                f"{row.network:16}{row.type:10}{row.mode:11}{cells(row.ms)}  {row.copies}/{row.convolutions}",
                flush=True,
            )
            if row.device:
                print(f"{'':16}{'':10}{'kernels':11}{cells(row.device)}", flush=True)
            for name, problem in row.failed.items():
                print(f"    {name}: {problem}", flush=True)
        if args.out:
            facts = {"device": where, "torch": torch.__version__, "batch": BATCH, "side": SIDE}
            with open(args.out, "w") as file:
                json.dump({**facts, "rows": [asdict(one) for one in rows]}, file, indent=1)


def combinations(args: argparse.Namespace) -> list[tuple[str, str, str]]:
    """(network, type, mode) of each row that was asked for."""
    return list(itertools.product(args.only, args.types, args.modes))


def one_by_one(args: argparse.Namespace) -> Iterator[Row]:
    """The rows, measured in this process."""
    clock = time.process_time if args.cpu_time else time.perf_counter
    folder, _, slots = (args.turns or "").rpartition(":")
    turns = Turns(Path(folder), int(slots), args.patience) if folder else None
    for network, kind, mode in combinations(args):
        yield measure(network, kind, mode, args.peers, args.seconds, args.profile, clock, turns)


def side_by_side(args: argparse.Namespace) -> Iterator[Row]:
    """The rows, each of a process of its own, as they come."""
    with tempfile.TemporaryDirectory() as folder:
        running: dict[Path, subprocess.Popen[bytes]] = {}
        for network, kind, mode in combinations(args):
            out = Path(folder) / f"{network}-{kind}-{mode}.json"
            command = [sys.executable, "-m", "benchmarks.layouts", "--turns", f"{folder}:{args.jobs}"]
            command += ["--only", network, "--types", kind, "--modes", mode, "--peers", *args.peers]
            command += ["--seconds", str(args.seconds), "--profile", str(args.profile), "--out", str(out)]
            command += ["--patience", str(args.patience), "--batch", str(args.batch)]
            running[out] = subprocess.Popen(command + ["--cpu-time"] * args.cpu_time)
        while running:
            time.sleep(0.2)
            for out in [out for out, process in running.items() if process.poll() is not None]:
                code = running.pop(out).returncode
                if code:
                    network, kind, mode = out.stem.split("-")
                    yield Row(network, kind, mode, failed={"its process": f"exit status {code}"})
                else:
                    yield from (Row(**row) for row in json.loads(out.read_text())["rows"])


if __name__ == "__main__":
    main()

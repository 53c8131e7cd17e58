"""What layouts are worth: convolutional networks with and without litz-layout, against eager and Inductor, in one run.

    python -m benchmarks.layouts [--only NAME ...] [--types autocast float16] [--modes inference training] [--out FILE]
    OMP_NUM_THREADS=1 python -m benchmarks.layouts --cpu-time       on a CPU that others use as well

Inputs are row-major (NCHW) for everyone. "eager last" is the model in torch.channels_last, its input converted in each
step; "litz -" is litz without the plugin's layouts. Times are the median of a step in ms, everyone in turn; copies are
what the plugin inserted. On a CPU: float32, small batches.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.vision import NETWORKS

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
TYPES = ("autocast", "float16") if GPU else ("float32",)
MODES = ("inference", "training")
BATCH = {"inference": 64, "training": 64} if GPU else {"inference": 4, "training": 4}
SIDE = 224 if GPU else 96


@dataclass
class Row:
    """One network in one type and mode. Times in ms, copies inserted by the plugin, error against eager."""

    network: str
    type: str
    mode: str
    ms: dict[str, float] = field(default_factory=dict)
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
}


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
) -> Row:
    """Everyone's steps in turn. One that fails is left out, its error kept. top: print so many kernels of each.
    clock: in seconds."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    row = Row(network, kind, mode)
    dtype = torch.float16 if kind == "float16" else torch.float32
    model = NETWORKS[network]().to(DEVICE, dtype).train(mode == "training")
    x = torch.randn(BATCH[mode], 3, SIDE, SIDE, device=DEVICE, dtype=dtype)
    steps: dict[str, Callable[[], list[Tensor]]] = {}
    expected: Tensor | None = None
    for name in peers:
        step = make_step(copy.deepcopy(model), PEERS[name], kind, mode, x)
        try:
            out = first_call(row, name, step)
        except Exception as error:
            row.failed[name] = f"{type(error).__name__}: {error}"[:300]
            continue
        if expected is None:
            expected = out
        row.error[name] = float((out.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-6))
        steps[name] = step
    for step in steps.values():
        for _ in range(3):
            step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    deadline = time.perf_counter() + seconds
    while steps and (len(next(iter(times.values()))) < 5 or time.perf_counter() < deadline):
        for name, step in steps.items():
            wait()
            start = clock()
            step()
            wait()
            times[name].append((clock() - start) * 1e3)
    row.ms = {name: statistics.median(values) for name, values in times.items()}
    for name, step in steps.items() if top else ():
        print_kernels(f"{network}, {kind}, {mode}, {name}", step, top)
    return row


def print_kernels(title: str, step: Callable[[], list[Tensor]], top: int) -> None:
    """The longest kernels of one step, with what each is called for."""
    kinds = [torch.profiler.ProfilerActivity.CUDA if GPU else torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds) as recorded:
        step()
        wait()
    rows = [(one.self_device_time_total if GPU else one.self_cpu_time_total, one) for one in recorded.key_averages()]
    print(f"{title}: {sum(us for us, _ in rows) / 1e3:.2f} ms in {sum(one.count for _, one in rows)} kernels")
    for us, one in sorted(rows, key=lambda row: -row[0])[:top]:
        print(f"    {us / 1e3:8.3f} ms {one.count:5}x  {one.key[:110]}")


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
    parser.add_argument("--types", nargs="*", default=list(TYPES), choices=["autocast", "float16", "float32"])
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=list(MODES))
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring per row")
    parser.add_argument("--profile", type=int, default=0, metavar="N", help="print the N longest kernels of each")
    parser.add_argument("--cpu-time", action="store_true", help="of this process, not the wall's")
    parser.add_argument("--out")
    args = parser.parse_args(argv)
    clock = time.process_time if args.cpu_time else time.perf_counter
    where = (
        torch.cuda.get_device_name() if GPU else f"{platform.processor() or 'CPU'}, {torch.get_num_threads()} threads"
    )
    print(f"{where}, torch {torch.__version__}; batch {BATCH}, {SIDE} pixels; ms per step")
    print(
        f"{'network':16}{'type':10}{'mode':11}"
        + "".join(f"{name:>12}" for name in args.peers)
        + "  copies/convolutions"
    )
    rows: list[Row] = []
    for network in args.only:
        for kind in args.types:
            for mode in args.modes:
                row = measure(network, kind, mode, args.peers, args.seconds, args.profile, clock)
                rows.append(row)
                cells = "".join(f"{row.ms[n]:12.2f}" if n in row.ms else f"{'failed':>12}" for n in args.peers)
                print(f"{network:16}{kind:10}{mode:11}{cells}  {row.copies}/{row.convolutions}", flush=True)
                for name, problem in row.failed.items():
                    print(f"    {name}: {problem}", flush=True)
                if args.out:
                    facts = {"device": where, "torch": torch.__version__, "batch": BATCH, "side": SIDE}
                    with open(args.out, "w") as file:
                        json.dump({**facts, "rows": [asdict(one) for one in rows]}, file, indent=1)


if __name__ == "__main__":
    main()

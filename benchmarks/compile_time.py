"""First calls: each compiler in a process of its own, with an empty cache and then with a full one.

python -m benchmarks.compile_time [--only MODEL ...] [--tasks inference training] [--warm 3] [--json FILE]

Two figures each: seconds on the clock, and of the processors, with those of processes that were started and awaited,
which say more where other programs run too. Importing torch and an eager call come before. Of several warm calls, each
in a new process, the quickest counts. Bytecode is written, as for an installed package, whatever the environment says.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.zoo import ZOO
from benchmarks.zoo_step import TASKS, error, exact, make_peer_step, make_subject

PEERS = ("inductor", "litz")
TEN = ("gpt2", "llama", "bert", "t5", "vit_b", "resnet50", "mobilenet_v3", "convnext_t", "dlrm", "gru")
"""Of every kind one, and none that a CPU is long at."""


@dataclass(frozen=True)
class FirstCall:
    """Seconds of a first step: on the clock and of processors; graphs that AOTAutograd's cache had; the error against
    float64."""

    seconds: float
    processor: float
    hits: int
    error: float


def first_call(model: str, task: str, peer: str, folder: str) -> FirstCall:
    """The first step in a new process whose caches lie in `folder`."""
    variables = {
        "LITZ_CACHE_DIR": f"{folder}/litz",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/{peer}",  # AOTAutograd's cache lies there, too
        "TRITON_CACHE_DIR": f"{folder}/triton",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    command = [sys.executable, "-m", "benchmarks.compile_time", "--child", model, task, peer]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{model} {task} {peer}: {done.stderr[-2000:]}")
    return FirstCall(**json.loads(done.stdout.strip().splitlines()[-1]))


def child(name: str, task: str, peer: str) -> None:
    """One first call, timed; prints it."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    subject = make_subject(ZOO[name], task, device, small=device.type == "cpu")
    make_peer_step(subject, "eager", "default")()  # the libraries' own start-up is not the compiler's
    if device.type == "cuda":
        torch.cuda.synchronize()
    start, before = time.perf_counter(), _processor()
    found = make_peer_step(subject, peer, "default")()
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds, processor = time.perf_counter() - start, _processor() - before
    hits = torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"]
    print(json.dumps(asdict(FirstCall(seconds, processor, hits, error(found, exact(subject))))))


def _processor() -> float:
    """Seconds of this process, and of those that it has started and awaited."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def measure(name: str, task: str, warm: int) -> dict[str, FirstCall]:
    """ "inductor cold", "litz warm" and so on. warm: processes, of which the quickest counts."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="litz-compile-time-") as folder:
        for peer in PEERS:
            found[f"{peer} cold"] = first_call(name, task, peer, folder)
        calls = [[first_call(name, task, peer, folder) for peer in PEERS] for _ in range(warm)]
        for peer, mine in zip(PEERS, zip(*calls, strict=True), strict=True):
            found[f"{peer} warm"] = min(mine, key=lambda call: call.processor)
    return found


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table of seconds, and litz's over TorchInductor's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_time")
    parser.add_argument("--only", nargs="*", choices=list(ZOO), default=list(TEN))
    parser.add_argument("--tasks", nargs="*", choices=TASKS, default=["inference", "training"])
    parser.add_argument("--warm", type=int, default=2, help="processes with full caches, of which the quickest counts")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    parser.add_argument("--child", nargs=3, metavar=("MODEL", "TASK", "PEER"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        child(*args.child)
        return
    states = ("cold", "warm")
    heads = [f"{peer} {state}" for state in states for peer in PEERS]
    print("first call: seconds on the clock (of processors); litz over TorchInductor")
    print(f"{'':24}" + "".join(f"{head:>18}" for head in heads) + f"{'cold':>14}{'warm':>14}")
    rows, ratios = {}, {state: [] for state in states}
    for task in args.tasks:
        for name in args.only:
            found = measure(name, task, args.warm)
            rows[f"{name} {task}"] = {head: asdict(call) for head, call in found.items()}
            line = f"{name + ' ' + task:24}"
            for head in heads:
                line += f"{found[head].seconds:10.2f} ({found[head].processor:5.2f})"
            for state in states:
                mine, other = found[f"litz {state}"], found[f"inductor {state}"]
                ratios[state].append((mine.seconds / other.seconds, mine.processor / other.processor))
                line += f"{ratios[state][-1][0]:7.2f} ({ratios[state][-1][1]:4.2f})"
            print(line, flush=True)
            if args.json:
                args.json.write_text(json.dumps(rows, indent=1))
    for state in states:
        clock, processor = ([pair[at] for pair in ratios[state]] for at in (0, 1))
        means = f"{_mean(clock):.2f} on the clock ({_mean(processor):.2f} of processors)"
        print(f"{state}: geometric mean {means}, largest {max(clock):.2f} ({max(processor):.2f})")


if __name__ == "__main__":
    main()

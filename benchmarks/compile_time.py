"""First calls: each compiler in a process of its own, with an empty cache and then with a full one.

python -m benchmarks.compile_time [--only MODEL ...] [--task inference]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import torch

from benchmarks.side_by_side import FEW
from benchmarks.zoo import ZOO
from benchmarks.zoo_step import TASKS, make_peer_step, make_subject

PEERS = ("inductor", "litz")


def first_call(model: str, task: str, peer: str, folder: str) -> float:
    """Seconds of the first step in a new process whose caches lie in `folder`; importing torch does not count."""
    variables = {
        "LITZ_CACHE_DIR": f"{folder}/litz",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/triton",
    }
    command = [sys.executable, "-m", "benchmarks.compile_time", "--child", model, task, peer]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    return float(done.stdout.strip().splitlines()[-1])


def child(name: str, task: str, peer: str) -> None:
    """One first call, timed; prints the seconds."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    subject = make_subject(ZOO[name], task, device, small=device.type == "cpu")
    make_peer_step(subject, "eager", "default")()  # the libraries' own start-up is not the compiler's
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    make_peer_step(subject, peer, "default")()
    if device.type == "cuda":
        torch.cuda.synchronize()
    print(time.perf_counter() - start)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table of seconds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_time")
    parser.add_argument("--only", nargs="*", choices=list(ZOO), default=list(FEW))
    parser.add_argument("--task", choices=TASKS, default="inference")
    parser.add_argument("--child", nargs=3, metavar=("MODEL", "TASK", "PEER"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        child(*args.child)
        return
    heads = [f"{peer} {state}" for state in ("cold", "warm") for peer in PEERS]
    print(f"{'first call, seconds':20}" + "".join(f"{head:>16}" for head in heads))
    for name in args.only:
        row = []
        with tempfile.TemporaryDirectory(prefix="litz-compile-time-") as folder:
            for _ in ("cold", "warm"):
                row += [first_call(name, args.task, peer, folder) for peer in PEERS]
        print(f"{name:20}" + "".join(f"{seconds:16.1f}" for seconds in row), flush=True)


if __name__ == "__main__":
    main()

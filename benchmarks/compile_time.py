"""First calls: each compiler in a process of its own, with an empty cache and then with a full one.

python -m benchmarks.compile_time [--only NAME ...]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks.models import MODELS

PEERS = ("inductor", "litz")


def first_call(model: str, peer: str, folder: str) -> float:
    """Seconds of the first step in a new process whose caches lie in `folder`; importing torch does not count."""
    variables = {
        "LITZ_CACHE_DIR": f"{folder}/litz",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/triton",
    }
    command = [sys.executable, "-m", "benchmarks.compile_time", "--child", model, peer]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    return float(done.stdout.strip().splitlines()[-1])


def child(name: str, peer: str) -> None:
    """One first call, timed; prints the seconds."""
    import torch

    from benchmarks.models import GPU, _wait

    make, gpu_dtype, cpu_dtype = MODELS[name]
    model, step = make(gpu_dtype if GPU else cpu_dtype)
    step(model)  # the libraries' own start-up is not the compiler's
    _wait()
    start = time.perf_counter()
    step(torch.compile(model, backend=peer))
    _wait()
    print(time.perf_counter() - start)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table of seconds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_time")
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    parser.add_argument("--child", nargs=2, metavar=("MODEL", "PEER"), help=argparse.SUPPRESS)
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
                row += [first_call(name, peer, folder) for peer in PEERS]
        print(f"{name:20}" + "".join(f"{seconds:16.1f}" for seconds in row), flush=True)


if __name__ == "__main__":
    main()

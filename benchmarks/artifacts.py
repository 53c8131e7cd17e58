"""Models that are compiled ahead of time: litz's packages beside AOTInductor's.

    python -m benchmarks.artifacts [--only MODEL ...] [--device cpu] [--loads N] [--json FILE]

torch.export traces each model once for each peer, in a process that compiles and stores it ("store": seconds without
the trace, with empty caches). Other processes load what was stored and call it ("load": seconds of both on the clock,
in the quickest process; eager has run before, so that torch's libraries are there). Inputs and weights are equal in all
processes, and the error is against eager. `size` has the weights in it.
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
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import add_option, recorder
from benchmarks.zoo import find, known
from benchmarks.zoo_step import Subject, error, make_step, make_subject

MODELS = ("gpt2", "resnet50", "vit_b")
PEERS = ("inductor", "litz")
PATIENCE = 900.0
"""Seconds after which a process is given up."""


def store(subject: Subject, peer: str, folder: Path) -> dict[str, float]:
    """Compiles a model and stores it in a folder. Returns the seconds of it, and MiB."""
    program = torch.export.export(subject.module, (), subject.inputs, strict=False)
    start = time.perf_counter()
    if peer == "litz":
        import litz_aot

        litz_aot.compile(program, None, folder / "package")
    else:
        torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "model.pt2"))
    seconds = time.perf_counter() - start
    stored = folder / "package" if peer == "litz" else folder / "model.pt2"
    files = [stored] if stored.is_file() else [file for file in stored.rglob("*") if file.is_file()]
    return {"cold_s": seconds, "stored_mib": sum(file.stat().st_size for file in files) / 2**20}


def load(peer: str, folder: Path) -> Callable[..., Any]:
    """What a peer stored in a folder."""
    if peer == "litz":
        import litz_aot

        return litz_aot.load(folder / "package")
    return torch._inductor.aoti_load_package(str(folder / "model.pt2"))


def use(subject: Subject, peer: str, folder: Path) -> dict[str, float]:
    """Loads a stored model and calls it. Returns the seconds of both, and the error."""
    wait = torch.cuda.synchronize if subject.device.type == "cuda" else _nothing
    expected = [tensor.clone() for tensor in make_step(subject, subject.module)()]
    wait()
    start = time.perf_counter()
    found = make_step(subject, load(peer, folder))()
    wait()
    return {"warm_s": time.perf_counter() - start, "error": error(found, expected)}


def child(name: str, peer: str, what: str, folder: Path, device: torch.device) -> None:
    """One process; prints what it found."""
    with torch.no_grad():
        subject = make_subject(find(name), "inference", device, small=device.type == "cpu")
        found = store(subject, peer, folder) if what == "store" else use(subject, peer, folder)
    print(json.dumps(found))


def measure(name: str, device: str, loads: int) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """A model's figures and problems, by peer. loads: processes that load, in turns, of which the quickest counts."""
    peers: dict[str, dict[str, float]] = {peer: {} for peer in PEERS}
    problems: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="litz-artifacts-") as folder:
        for what, peer in product(("store", *["use"] * loads), PEERS):
            command = [sys.executable, "-m", "benchmarks.artifacts", "--child", name, peer, what, "--device", device]
            try:
                if peer not in problems:
                    found = _run([*command, "--folder", f"{folder}/{peer}"], Path(folder, peer))
                    peers[peer] |= {each: min(value, peers[peer].get(each, value)) for each, value in found.items()}
            except RuntimeError as problem:
                problems[peer] = str(problem)
    return {peer: figures for peer, figures in peers.items() if peer not in problems}, problems


def _run(command: Sequence[str], folder: Path) -> dict[str, float]:
    folder.mkdir(exist_ok=True)
    caches = {"LITZ_CACHE_DIR": "litz", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
    environment = {**os.environ, **{name: str(folder / place) for name, place in caches.items()}}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"did not end in {PATIENCE:.0f} s") from None
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1][:200])
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def line(name: str, peers: Mapping[str, Mapping[str, float]]) -> str:
    """A row of the table."""
    cells = [
        f"{peers.get(peer, {}).get(measure, math.nan):{width}.{digits}f}"
        for measure, width, digits in (("cold_s", 8, 1), ("warm_s", 8, 3), ("stored_mib", 9, 1))
        for peer in PEERS
    ]
    return f"{name:16}{''.join(cells)}"


def _nothing() -> None:
    return None


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table, a line for each model."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.artifacts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="MODEL", type=known, default=list(MODELS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--loads", type=int, default=2, help="processes that load, of which the quickest counts")
    add_option(parser)
    parser.add_argument("--child", nargs=3, metavar=("MODEL", "PEER", "WHAT"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        child(*args.child, args.folder, torch.device(args.device))
        return
    record = recorder(args.json, "artifacts", args.device, argv)
    pairs = ("store, s", 16), ("load, s", 16), ("size, MiB", 18)
    print(f"{'':16}{''.join(f'{label:>{width}}' for label, width in pairs)}\n{'':16}{'  inductor, litz' * 3}")
    for name in args.only:
        peers, problems = measure(name, args.device, args.loads)
        print(line(name, peers), *(f"    {peer}: {why}" for peer, why in problems.items()), sep="\n", flush=True)
        note = "the size for a CPU" if args.device == "cpu" else ""
        record(task="artifacts", case=name, peers=peers, problems=problems, note=note)


if __name__ == "__main__":
    main()

"""Whole models: eager, TorchInductor and litz with all its plugins in one process, in turns, on the device at hand.

    python -m benchmarks.side_by_side                             every model: inference and training, default mode
    python -m benchmarks.side_by_side --tasks small --modes reduce-overhead max-autotune --only gpt2 bert
    python -m benchmarks.side_by_side --jobs 12 --out FILE        12 models compile at once, one is measured at a time
    python -m benchmarks.side_by_side --only timm:fastvit_t8 transformers:phi3    any model of these two libraries
    python -m benchmarks.side_by_side --list                      the models; a CPU takes them small

Of each model: the wall time of a step, the sum of its kernels' times on the GPU and their number (torch.profiler), the
first call in seconds, peak memory, and the error against float64 (`zoo_step.error`; eager's as well). One that fails in
one peer costs the others nothing: the row says why. `--jobs` gives each model a process of its own and measures when
nobody compiles; first calls then include the wait for each other's processors. With `--out` every row is written as it
comes, with the kernels of each peer, which `python -m benchmarks.beside FILE` puts side by side; `--resume` skips the
rows that the file has. On a CPU, which is for trying out, operators stand in for kernels.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.device_time import DeviceKernel, copy_speed, describe, graphs_made, trace
from benchmarks.own_kernels import own_kernels
from benchmarks.record import add_option, recorder
from benchmarks.rows import Figures, Row, as_record, read_rows, write_rows
from benchmarks.rows_table import HEADER, line, summary
from benchmarks.turns import Turns
from benchmarks.zoo import ZOO, find, known, missing
from benchmarks.zoo_step import (
    MODES,
    PEERS,
    TASKS,
    Step,
    Subject,
    error,
    exact,
    make_peer_step,
    make_subject,
    subject_patches,
    why_not,
)
from litz import report as reports

ROUND_S = 0.05
"""Seconds of a round of one peer's steps, about."""
FEW = ("gpt2", "bert", "vit_b", "resnet50", "dlrm")
"""Models that stand for all of them where time is short."""


DYNAMOS = "backend='litz' raised: "
"""What dynamo puts before what a backend says; the row says which peer it was."""


@dataclass(frozen=True)
class How:
    """seconds: of measuring a row. small: models in the size for a CPU."""

    peers: tuple[str, ...]
    device: torch.device
    seconds: float
    small: bool
    trace: bool = False


def measure(key: tuple[str, str, str], how: How, turns: Turns | None = None) -> Row:
    """One row. turns: with other processes on this machine."""
    row = Row(*key, family=find(key[0]).family)
    begin = time.perf_counter()
    model = find(row.model)
    if absent := missing(model):
        row.problem = f"{', '.join(absent)} not installed"
    if not row.problem:
        try:
            with turns.compiling() if turns else contextlib.nullcontext():
                subject, steps = prepare(row, how)
            with turns.measuring() if turns else contextlib.nullcontext(True) as row.alone:
                take_figures(row, subject, steps, how)
        except Exception as problem:
            row.problem = _one_line(problem, how.trace)
    row.seconds = time.perf_counter() - begin
    return row


def prepare(row: Row, how: How) -> tuple[Subject, dict[str, Step]]:
    """The model, and the steps of the peers that work, which have run; first calls, errors and problems in the row."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    subject = patiently(lambda: make_subject(find(row.model), row.task, how.device, how.small))
    row.type, row.batch = subject.type, _batch(subject)
    try:
        expected: list[torch.Tensor] | None = patiently(lambda: exact(subject))
    except Exception as problem:  # no judge, but times all the same
        row.note, expected = f"no float64: {_one_line(problem, how.trace)}", None
    steps: dict[str, Step] = {}
    compilers = [peer for peer in how.peers if peer != "eager"]
    for peer in how.peers:
        figures = row.peers[peer] = Figures()
        before, recorded = _reserved(subject), graphs_made(peer)
        try:
            step = make_peer_step(subject, peer, row.mode)
            with subject_patches(subject.model):
                start = time.perf_counter()
                with reports.collect() as made:
                    outputs = patiently(step)
                _wait(how.device)
                figures.first_s = time.perf_counter() - start
                figures.own = own_kernels(made)
                if expected is not None:
                    figures.error = error(outputs, expected)
                del outputs
                for _ in range(2 if row.mode == "default" else 4):  # warm up, record, replay
                    patiently(step)
            figures.graphs = max(0, graphs_made(peer) - recorded)
            reserved = _reserved(subject)
            if figures.graphs:
                figures.peak_mib = (reserved - before + subject.bytes) / 2**20
            steps[peer] = step
        except Exception as problem:
            figures.problem = _one_line(problem, how.trace)
    row.dynamo_graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"] / max(1, len(compilers))
    return subject, steps


def take_figures(row: Row, subject: Subject, steps: dict[str, Step], how: How) -> None:
    """Memory, kernels and times of the steps, in turns."""
    device = how.device
    found: dict[str, list[list[DeviceKernel]]] = {peer: [] for peer in steps}
    for order in (list(steps), list(reversed(steps))):
        for peer in order:
            found[peer].append(trace(steps[peer], device))
    for peer, (first, second) in found.items():
        figures = row.peers[peer]
        figures.gpu_ms = sum(kernel.us for kernel in (*first, *second)) / 2e3
        figures.launches = len(second)
        figures.trace = second
        if device.type == "cuda" and not figures.graphs:
            figures.peak_mib = _peak(steps[peer], subject) / 2**20
    for peer, ms in wall(steps, device, how.seconds).items():
        row.peers[peer].wall_ms = ms


def wall(steps: dict[str, Step], device: torch.device, seconds: float) -> dict[str, float]:
    """Median milliseconds of a step of each, calls one after the other without waiting between them."""
    samples: dict[str, list[float]] = {peer: [] for peer in steps}
    calls = {peer: max(1, min(50, int(ROUND_S / _timed(step, 1, device)))) for peer, step in steps.items()}
    order, deadline = list(steps), time.perf_counter() + seconds
    while steps and (len(samples[order[0]]) < 3 or time.perf_counter() < deadline):
        for peer in order:
            samples[peer].append(_timed(steps[peer], calls[peer], device) * 1e3)
        order.reverse()
    return {peer: statistics.median(values) for peer, values in samples.items()}


def _timed(step: Step, calls: int, device: torch.device) -> float:
    """Seconds of a call."""
    step()
    _wait(device)
    start = time.perf_counter()
    for _ in range(calls):
        step()
    _wait(device)
    return (time.perf_counter() - start) / calls


def _peak(step: Step, subject: Subject) -> float:
    """Bytes: parameters, inputs, and the most that a step takes at a time."""
    _empty(subject)
    before = torch.cuda.memory_allocated(subject.device)
    torch.cuda.reset_peak_memory_stats(subject.device)
    step()
    _wait(subject.device)
    return torch.cuda.max_memory_allocated(subject.device) - before + subject.bytes


def _empty(subject: Subject) -> None:
    """Give back what no peer needs."""
    subject.module.zero_grad(set_to_none=True)
    gc.collect()
    if subject.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _reserved(subject: Subject) -> int:
    """Bytes that the device's allocator cannot give back. Memory that cuBLAS works in is not among them: it would count
    as the peer's that made torch allocate it, and as less for the next one that makes torch forget it."""
    if subject.device.type != "cuda":
        return 0
    torch._C._cuda_clearCublasWorkspaces()
    _empty(subject)
    return torch.cuda.memory_reserved(subject.device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _batch(subject: Subject) -> int:
    return int(next(v for v in subject.inputs.values() if isinstance(v, torch.Tensor)).shape[0])


def patiently(work: Callable[[], Any], tries: int = 10) -> Any:
    """What `work` returns. Of --jobs, others may have the device's memory at the moment."""
    for _ in range(tries):
        with contextlib.suppress(torch.OutOfMemoryError):
            return work()
        gc.collect()  # out here, where no traceback holds what there was
        torch.cuda.empty_cache()
        time.sleep(2)
    return work()


def _one_line(problem: Exception, trace: bool = False) -> str:
    if trace:
        traceback.print_exception(problem, file=sys.stderr)
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()] or [""]
    said = " ".join(lines[:2]) if lines[0].endswith("raised:") else lines[0]  # dynamo's line only says whose it was
    return f"{type(problem).__name__}: {said.removeprefix(DYNAMOS)}"[:300]


# ------------------------------------------------------------------------------------------------------- many processes


def apart(keys: Sequence[tuple[str, str, str]], args: argparse.Namespace) -> Iterator[Row]:
    """The rows, each of a process of its own, `args.jobs` at a time: all compile, then one after the other measures."""
    with tempfile.TemporaryDirectory(prefix="litz-side-by-side-") as folder:
        lots = math.ceil(len(keys) / args.jobs)
        for number in range(lots):
            if time.monotonic() > args.stop:
                return
            # Every so manieth: neighbours are of a family, and take as much time and memory as each other.
            yield from _lot(keys[number::lots], args, Path(folder) / str(number))


def _lot(keys: Sequence[tuple[str, str, str]], args: argparse.Namespace, folder: Path) -> Iterator[Row]:
    folder.mkdir()
    common = ["--turns", f"{folder}:{len(keys)}", "--seconds", str(args.seconds), "--peers", *args.peers]
    common += [
        "--patience",
        str(args.patience),
        "--device",
        args.device,
        *(["--small"] if args.small else []),
        *(["--trace"] if args.trace else []),
    ]
    workers = str(max(1, (os.cpu_count() or 1) // len(keys)))  # each, or there are the square of them
    environment = {"TORCHINDUCTOR_COMPILE_THREADS": workers, "LITZ_BUILD_WORKERS": workers, **os.environ}
    running: dict[tuple[str, str, str], tuple[subprocess.Popen[bytes], Path, Path]] = {}
    for number, key in enumerate(keys):
        out, log = folder / f"{number}.json", folder / f"{number}.log"
        command = [sys.executable, "-m", "benchmarks.side_by_side", *common, "--out", str(out)]
        command += ["--only", key[0], "--tasks", key[1], "--modes", key[2]]
        with log.open("wb") as sink:
            process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=environment)
            running[key] = process, out, log
    late = time.monotonic() + args.timeout
    while running:
        time.sleep(0.1)
        for key, (process, out, log) in list(running.items()):
            if process.poll() is None and time.monotonic() > late:
                process.kill()
                process.wait()
                out.unlink(missing_ok=True)
            if process.poll() is not None:
                del running[key]
                if args.trace:
                    sys.stderr.write(log.read_text(errors="replace"))
                found = read_rows(out) if out.exists() else []
                yield from found or [Row(*key, problem=f"exit status {process.returncode}: {_last_line(log)}")]


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


# ------------------------------------------------------------------------------------------------------ command line


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.side_by_side", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", nargs="+", metavar="MODEL", type=known, default=list(ZOO))
    parser.add_argument("--skip", nargs="+", metavar="MODEL", choices=list(ZOO), default=[])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["inference", "training"])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["default"])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--part", default="1/1", metavar="K/N", help="every Nth row, from the Kth on")
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring wall times per row")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="rows that compile at once, in processes")
    parser.add_argument("--timeout", type=float, default=450.0, help="seconds for each lot of --jobs")
    parser.add_argument("--patience", type=float, default=200.0, help="of --jobs: seconds to wait for who compiles")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no row after so many")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="models in the size for a CPU, which a CPU takes anyway")
    parser.add_argument("--trace", action="store_true", help="print the traceback of what fails")
    parser.add_argument("--list", action="store_true", help="print the models and end")
    parser.add_argument("--out", help="write the figures to this file, as JSON")
    add_option(parser)
    parser.add_argument("--resume", action="store_true", help="keep the rows of --out, and measure the others")
    parser.add_argument("--turns", help=argparse.SUPPRESS)  # for the processes of --jobs: FOLDER:SLOTS
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table, rows as they come, and geometric means; write JSON to --out."""
    args = make_parser().parse_args(argv)
    if args.list:
        for model in ZOO.values():
            print(f"{model.name:24}{model.family:28}{', '.join(missing(model))}")
        return
    args.stop = time.monotonic() + 60 * args.minutes
    args.small = args.small or args.device == "cpu"
    out = Path(args.out) if args.out else None
    rows = read_rows(out) if out and args.resume and out.exists() else []
    done = {row.key for row in rows if row.peers and row.alone}
    rows = [row for row in rows if row.key in done]
    part, parts = (int(number) for number in args.part.split("/"))
    names = [name for name in args.only if name not in args.skip]
    every = [(n, t, mode) for mode in args.modes for t in args.tasks for n in names if not why_not(find(n), t)]
    keys = [key for key in every if key not in done][part - 1 :: parts]
    where = describe(torch.device(args.device))
    facts: dict[str, Any] = {"where": where, "small": args.small}
    if not args.turns:
        facts["copy_bytes_per_second"] = copy_speed(torch.device(args.device))
        print(f"{where}{'; small sizes' if args.small else ''}; {len(keys)} rows", flush=True)
    mode, record = "", recorder(args.json, "side_by_side", args.device, argv)
    for row in one_by_one(keys, args) if args.jobs == 1 else apart(keys, args):
        rows.append(row)
        if row.mode != mode:
            mode = row.mode
            print(f"mode {mode}\n{HEADER}")
        print(f"{line(row)}", flush=True)
        if out:
            write_rows(out, rows, facts)
        if any(figures.problem == "" for figures in row.peers.values()):
            record(**as_record(row, args.small))
    for text in summary(rows):
        print(text)


def one_by_one(keys: Sequence[tuple[str, str, str]], args: argparse.Namespace) -> Iterator[Row]:
    """The rows, measured in this process."""
    how = How(tuple(args.peers), torch.device(args.device), args.seconds, args.small, args.trace)
    folder, _, slots = (args.turns or "").rpartition(":")
    turns = Turns(Path(folder), int(slots), args.patience) if folder else None
    for key in keys:
        if time.monotonic() > args.stop:
            return
        yield measure(key, how, turns)


if __name__ == "__main__":
    main()

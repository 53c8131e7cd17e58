"""Whole models: eager, TorchInductor and litz with all its plugins in one process, in turns, on the device at hand.

    python -m benchmarks.side_by_side                             every model: inference and training, default mode
    python -m benchmarks.side_by_side --tasks small --modes reduce-overhead max-autotune --only gpt2 bert
    python -m benchmarks.side_by_side --jobs 12 --out FILE        12 models compile at once, one is measured at a time
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
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.device_time import DeviceKernel, describe, graphs_made, kernels
from benchmarks.turns import Turns
from benchmarks.zoo import ZOO, missing
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

ROUND_S = 0.05
"""Seconds of a round of one peer's steps, about."""
FEW = ("gpt2", "bert", "vit_b", "resnet50", "dlrm")
"""Models that stand for all of them where time is short."""
KEPT = 80
"""Kernels of a peer that are written to the file, the longest."""


@dataclass
class Figures:
    """One peer. wall_ms: of a step, the host included; gpu_ms: the sum of its kernels, and `launches` their number;
    first_s: seconds of the first call, dynamo's own work included; peak_mib: of parameters, inputs and what a step
    takes beyond them (with CUDA graphs: what the peer has reserved); error: against float64. graphs: CUDA graphs
    recorded by its mode."""

    wall_ms: float = math.nan
    gpu_ms: float = math.nan
    launches: float = math.nan
    first_s: float = math.nan
    peak_mib: float = math.nan
    error: float = math.nan
    graphs: int = 0
    problem: str = ""
    kernels: list[DeviceKernel] = field(default_factory=list)


@dataclass
class Row:
    """One model in one task and mode. seconds: how long all of it took. dynamo_graphs: captured, for each compiler.
    problem: why there is nothing to be seen of it."""

    model: str
    task: str
    mode: str
    family: str = ""
    type: str = ""
    batch: int = 0
    seconds: float = 0.0
    dynamo_graphs: float = 0
    problem: str = ""
    peers: dict[str, Figures] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.model, self.task, self.mode


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
    row = Row(*key, family=ZOO[key[0]].family)
    begin = time.perf_counter()
    model = ZOO[row.model]
    if absent := missing(model):
        row.problem = f"{', '.join(absent)} not installed"
    if not row.problem:
        try:
            with turns.compiling() if turns else contextlib.nullcontext():
                subject, steps = prepare(row, how)
            with turns.measuring() if turns else contextlib.nullcontext():
                take_figures(row, subject, steps, how)
        except Exception as problem:
            row.problem = _one_line(problem, how.trace)
    row.seconds = time.perf_counter() - begin
    return row


def prepare(row: Row, how: How) -> tuple[Subject, dict[str, Step]]:
    """The model, and the steps of the peers that work, which have run; first calls, errors and problems in the row."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    subject = patiently(lambda: make_subject(ZOO[row.model], row.task, how.device, how.small))
    row.type, row.batch = subject.type, _batch(subject)
    try:
        expected: list[torch.Tensor] | None = patiently(lambda: exact(subject))
    except Exception as problem:  # no judge, but times all the same
        row.problem, expected = f"no float64: {_one_line(problem, how.trace)}", None
    steps: dict[str, Step] = {}
    compilers = [peer for peer in how.peers if peer != "eager"]
    for peer in how.peers:
        figures = row.peers[peer] = Figures()
        _empty(subject)
        before, recorded = _reserved(how.device), graphs_made(peer)
        try:
            step = make_peer_step(subject, peer, row.mode)
            with subject_patches(subject.model):
                start = time.perf_counter()
                outputs = patiently(step)
                _wait(how.device)
                figures.first_s = time.perf_counter() - start
                if expected is not None:
                    figures.error = error(outputs, expected)
                del outputs
                for _ in range(2 if row.mode == "default" else 4):  # warm up, record, replay
                    patiently(step)
            figures.graphs = graphs_made(peer) - recorded
            _empty(subject)
            if figures.graphs:
                figures.peak_mib = (_reserved(how.device) - before + subject.bytes) / 2**20
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
            found[peer].append(kernels(steps[peer], device, calls=2))
    for peer, (first, second) in found.items():
        figures = row.peers[peer]
        figures.gpu_ms = sum(kernel.us for kernel in (*first, *second)) / 2e3
        figures.launches = sum(kernel.count for kernel in second)
        figures.kernels = second[:KEPT]
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


def _reserved(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _batch(subject: Subject) -> int:
    return int(next(v for v in subject.inputs.values() if isinstance(v, torch.Tensor)).shape[0])


def patiently(work: Callable[[], Any], tries: int = 5) -> Any:
    """What `work` returns. Of --jobs, others may have the device's memory at the moment."""
    for _ in range(tries):
        try:
            return work()
        except torch.OutOfMemoryError:
            gc.collect()
            torch.cuda.empty_cache()
            time.sleep(2)
    return work()


def _one_line(problem: Exception, trace: bool = False) -> str:
    if trace:
        traceback.print_exception(problem, file=sys.stderr)
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()] or [""]
    return f"{type(problem).__name__}: {lines[0]}"[:300]


# ------------------------------------------------------------------------------------------------------------ the table

HEADER = (
    f"{'':26}{'GPU, ms':>24}{'ind/litz':>13}{'kernels':>13}{'memory':>7}{'error':>6}{'first, s':>11}\n"
    f"{'model':20}{'task':6}{'eager':>8}{'induct.':>8}{'litz':>8}{'GPU':>7}{'wall':>6}{'ind.':>7}{'litz':>6}"
    f"{'l/ind':>7}{'l/e':>6}{'ind.':>6}{'litz':>5}"
)


def line(row: Row) -> str:
    """A row of the table, of 100 columns. Ratios above 1 are in litz's favour."""
    eager, ind, litz = (row.peers.get(peer, Figures()) for peer in PEERS)
    label = f"{row.model[:19]:20}{row.task[:5]:6}"
    text = label + "".join(
        _number(value, width, digits)
        for value, width, digits in (
            (eager.gpu_ms, 8, 2), (ind.gpu_ms, 8, 2), (litz.gpu_ms, 8, 2), (_over(ind.gpu_ms, litz.gpu_ms), 7, 2),
            (_over(ind.wall_ms, litz.wall_ms), 6, 2), (ind.launches, 7, 0), (litz.launches, 6, 0),
            (_over(litz.peak_mib, ind.peak_mib), 7, 2), (_over(litz.error, eager.error), 6, 1),
            (ind.first_s, 6, 0), (litz.first_s, 5, 0),
        )
    )  # fmt: skip
    notes = [row.problem] if row.problem else []
    notes += [f"{peer}: {figures.problem}" for peer, figures in row.peers.items() if figures.problem]
    if row.mode != "default":
        notes += [f"{peer} made no CUDA graph" for peer in PEERS[1:] if peer in row.peers and _unrecorded(row, peer)]
    if row.problem and not row.peers:
        return f"{label}{row.problem}"[:100]
    return "\n".join([text, *(f"    {note}"[:100] for note in notes)])


def _unrecorded(row: Row, peer: str) -> bool:
    return not row.peers[peer].graphs and not row.peers[peer].problem and torch.cuda.is_available()


def _number(value: float, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if math.isnan(value) else f"{value:{width}.{digits}f}"


def _over(above: float, below: float) -> float:
    return above / below if below and not math.isnan(below) else math.nan


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Geometric means, and the worst, by mode and task."""
    for mode in MODES:
        for task in TASKS:
            alike = [row for row in rows if (row.mode, row.task) == (mode, task) and not _lacking(row)]
            if not alike:
                continue
            text = f"{mode}, {task}, {len(alike)} models, geometric means:"
            for peer in ("inductor", "eager"):
                for name, get in (("GPU", lambda f: f.gpu_ms), ("wall", lambda f: f.wall_ms)):
                    both = {row.model: (row.peers.get(peer, Figures()), row.peers["litz"]) for row in alike}
                    ratios = {model: _over(get(theirs), get(ours)) for model, (theirs, ours) in both.items()}
                    ratios = {model: ratio for model, ratio in ratios.items() if ratio > 0}
                    if ratios:
                        mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios.values()))
                        worst = min(ratios, key=lambda model: ratios[model])
                        text += f"\n    {peer} / litz, {name:5}{mean:6.3f}   worst {ratios[worst]:.2f} {worst}"
            yield text


def _lacking(row: Row) -> bool:
    return "litz" not in row.peers or bool(row.peers["litz"].problem)


# ------------------------------------------------------------------------------------------------------- many processes


def apart(keys: Sequence[tuple[str, str, str]], args: argparse.Namespace) -> Iterator[Row]:
    """The rows, each of a process of its own, `args.jobs` at a time: all compile, then one after the other measures."""
    with tempfile.TemporaryDirectory(prefix="litz-side-by-side-") as folder:
        for begin in range(0, len(keys), args.jobs):
            if time.monotonic() > args.stop:
                return
            yield from _wave(keys[begin : begin + args.jobs], args, Path(folder) / str(begin))


def _wave(keys: Sequence[tuple[str, str, str]], args: argparse.Namespace, folder: Path) -> Iterator[Row]:
    folder.mkdir()
    common = ["--turns", f"{folder}:{len(keys)}", "--seconds", str(args.seconds), "--peers", *args.peers]
    common += ["--device", args.device, *(["--small"] if args.small else []), *(["--trace"] if args.trace else [])]
    running: dict[tuple[str, str, str], tuple[subprocess.Popen[bytes], Path, Path]] = {}
    for number, key in enumerate(keys):
        out, log = folder / f"{number}.json", folder / f"{number}.log"
        command = [sys.executable, "-m", "benchmarks.side_by_side", *common, "--out", str(out)]
        command += ["--only", key[0], "--tasks", key[1], "--modes", key[2]]
        with log.open("wb") as sink:
            running[key] = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT), out, log
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


def read_rows(path: Path) -> list[Row]:
    """The rows of a file of --out."""
    rows = []
    for data in json.loads(path.read_text())["rows"]:
        peers = {
            peer: Figures(**{**figures, "kernels": [DeviceKernel(**kernel) for kernel in figures["kernels"]]})
            for peer, figures in data.pop("peers").items()
        }
        rows.append(Row(**data, peers=peers))
    return rows


# ------------------------------------------------------------------------------------------------------ command line


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.side_by_side", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", nargs="+", metavar="MODEL", choices=list(ZOO), default=list(ZOO))
    parser.add_argument("--skip", nargs="+", metavar="MODEL", choices=list(ZOO), default=[])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["inference", "training"])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["default"])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--part", default="1/1", metavar="K/N", help="every Nth row, from the Kth on")
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring wall times per row")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="rows that compile at once, in processes")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for each lot of --jobs")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no row after so many")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="models in the size for a CPU, which a CPU takes anyway")
    parser.add_argument("--trace", action="store_true", help="print the traceback of what fails")
    parser.add_argument("--list", action="store_true", help="print the models and end")
    parser.add_argument("--out", help="write the figures to this file, as JSON")
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
    done = {row.key for row in rows if not row.problem}
    rows = [row for row in rows if row.key in done]
    part, parts = (int(number) for number in args.part.split("/"))
    names = [name for name in args.only if name not in args.skip]
    every = [(n, t, mode) for mode in args.modes for t in args.tasks for n in names if not why_not(ZOO[n], t)]
    keys = [key for key in every if key not in done][part - 1 :: parts]
    where = describe(torch.device(args.device))
    print(f"{where}{'; small sizes' if args.small else ''}; {len(keys)} rows", flush=True)
    mode = ""
    for row in one_by_one(keys, args) if args.jobs == 1 else apart(keys, args):
        rows.append(row)
        if row.mode != mode:
            mode = row.mode
            print(f"mode {mode}\n{HEADER}")
        print(f"{line(row)}", flush=True)
        if out:
            data = {"where": where, "small": args.small, "rows": [asdict(row) for row in rows]}
            out.write_text(json.dumps(data, indent=1))
    for text in summary(rows):
        print(text)


def one_by_one(keys: Sequence[tuple[str, str, str]], args: argparse.Namespace) -> Iterator[Row]:
    """The rows, measured in this process."""
    how = How(tuple(args.peers), torch.device(args.device), args.seconds, args.small, args.trace)
    folder, _, slots = (args.turns or "").rpartition(":")
    turns = Turns(Path(folder), int(slots)) if folder else None
    for key in keys:
        if time.monotonic() > args.stop:
            return
        yield measure(key, how, turns)


if __name__ == "__main__":
    main()

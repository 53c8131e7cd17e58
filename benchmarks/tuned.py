"""What max-autotune gains: litz by its estimates, with kernels measured, with decisions measured as well; and Inductor.

    python -m benchmarks.tuned                                   five models, inference
    python -m benchmarks.tuned --only gpt2 resnet50 --tasks training --budget 60 --out tuned.json
    python -m benchmarks.tuned --graphs                          with CUDA graphs ("max-autotune"), wall times count
    python -m benchmarks.tuned --background                      how long a step takes while it is tuned beside it, too

Of each: the first call in seconds, the sum of a step's GPU kernels and the wall time of a step, in turns in one
process, and the error against float64. After the table, what was tried of each graph's decisions and what won. Every
run begins with an empty cache of litz's, unless `--cache` names one: a second run with the same folder shows what the
next process finds. On a CPU, which takes the models small, operators' times stand in for kernels'.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.device_time import describe, trace
from benchmarks.side_by_side import FEW, wall
from benchmarks.zoo import ZOO, missing
from benchmarks.zoo_step import TASKS, Step, Subject, error, exact, make_step, make_subject, subject_patches, why_not
from litz import report as reports

DECISIONS = "decisions measured.txt"


@dataclass
class Result:
    """One peer: seconds of the first call, ms of a step's kernels and of a step, error; or what went wrong."""

    first_s: float = 0.0
    gpu_ms: float = 0.0
    wall_ms: float = 0.0
    error: float = float("nan")
    decisions: list[str] = field(default_factory=list)
    problem: str = ""


def peers(args: argparse.Namespace, cache: str) -> Mapping[str, Callable[[Any], Any]]:
    """By name, what compiles a module."""
    plain, tuned = ("reduce-overhead", "max-autotune") if args.graphs else ("default", "max-autotune-no-cudagraphs")
    shared = {"cache_dir": cache, "autotune.budget_s": args.budget}

    def litz(**options: Any) -> Callable[[Any], Any]:
        return lambda module: torch.compile(module, backend="litz", options={**shared, **options})

    found: dict[str, Callable[[Any], Any]] = {
        "litz": litz(mode=plain),
        "litz, kernels": litz(mode=tuned, **{"autotune.decisions": False}),
        "litz, tuned": litz(mode=tuned),
    }
    if args.background:
        found["litz, beside"] = litz(mode=tuned, **{"autotune.background": True, "cache_dir": f"{cache}/beside"})
    if args.inductor:
        found["Inductor"] = lambda module: torch.compile(module, backend="inductor", mode=tuned)
    return found


def first_call(subject: Subject, compiler: Callable[[Any], Any], expected: Any, result: Result) -> Step:
    """The step, compiled and warm."""
    with subject_patches(subject.model):
        step = make_step(subject, compiler(subject.module))
        start = time.perf_counter()
        with reports.collect() as made:
            outputs = step()
        result.first_s = time.perf_counter() - start
        result.error = error(outputs, expected)
        result.decisions = [
            f"{each.name}: {each.attachments[DECISIONS]}" for each in made if DECISIONS in each.attachments
        ]
        for _ in range(4):
            step()
    return step


def measure(name: str, task: str, args: argparse.Namespace, cache: str) -> dict[str, Result]:
    """All peers on one model."""
    torch._dynamo.reset()
    device = torch.device(args.device)
    subject = make_subject(ZOO[name], task, device, args.small)
    expected = exact(subject)
    results: dict[str, Result] = {}
    steps: dict[str, Step] = {}
    for peer, compiler in peers(args, cache).items():
        results[peer] = Result()
        try:
            steps[peer] = first_call(subject, compiler, expected, results[peer])
            if peer == "litz, beside":
                settle(steps[peer], results[peer], device)
        except Exception as problem:  # one that fails costs the others nothing
            results[peer].problem = f"{type(problem).__name__}: {problem}".splitlines()[0][:200]
    for peers_in_turn in (list(steps), list(reversed(steps))):
        for peer in peers_in_turn:
            results[peer].gpu_ms += sum(kernel.us for kernel in trace(steps[peer], device)) / 2e3
    for peer, ms in wall(steps, device, args.seconds).items():
        results[peer].wall_ms = ms
    return results


def settle(step: Step, result: Result, device: torch.device) -> None:
    """Steps while the search in the background goes on, until it is done."""
    from litz.runtime import background

    times = []
    while not background.wait(0.0):
        times.append(wall({"": step}, device, 0.1)[""])
    if times:
        result.decisions.append(f"a step while it was tuned: {min(times):.3f} to {max(times):.3f} ms")
    for _ in range(4):
        step()


def main(argv: Sequence[str] | None = None) -> None:
    """Print a row per model and peer, then the decisions; write JSON to --out."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuned", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="MODEL", choices=list(ZOO), default=list(FEW))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["inference"])
    parser.add_argument("--budget", type=float, default=120.0, help="autotune.budget_s: seconds for each graph")
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring wall times per row")
    parser.add_argument("--graphs", action="store_true", help="with CUDA graphs")
    parser.add_argument("--background", action="store_true", help="tune one more in the background")
    parser.add_argument("--no-inductor", dest="inductor", action="store_false", help="without Inductor's max-autotune")
    parser.add_argument("--cache", help="litz's cache; unset: an empty one")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="models in the size for a CPU, which a CPU takes anyway")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no row after so many")
    parser.add_argument("--out", help="write the figures to this file, as JSON")
    args = parser.parse_args(argv)
    args.small = args.small or args.device == "cpu"
    stop, found = time.monotonic() + 60 * args.minutes, {}
    print(describe(torch.device(args.device)))
    print(f"{'':32}{'first s':>9}{'GPU ms':>10}{'wall ms':>10}{'error':>10}")
    with tempfile.TemporaryDirectory(prefix="litz-tuned-") as empty:
        for name, task in ((name, task) for task in args.tasks for name in args.only):
            if why_not(ZOO[name], task) or missing(ZOO[name]) or time.monotonic() > stop:
                continue
            results = measure(name, task, args, args.cache or empty)
            found[f"{name} {task}"] = {peer: asdict(result) for peer, result in results.items()}
            print(f"{name}, {task}")
            for peer, result in results.items():
                figures = f"{result.first_s:9.1f}{result.gpu_ms:10.3f}{result.wall_ms:10.3f}{result.error:10.1e}"
                print(f"  {peer:30}{result.problem or figures}", flush=True)
            for text in (text for result in results.values() for text in result.decisions):
                print("    " + text.replace("\n", "\n    "))
            if args.out:
                Path(args.out).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

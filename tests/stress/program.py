"""Threads and processes that call compiled functions at once, and compare each result with the one value it can have.

`python -m stress.program --seconds 600 --threads 16 --processes 4` prints how many calls ran and how many were wrong.
With a GPU, the same functions run there as well, as CUDA graphs. A call's input is full of one number of its thread's
own, so each result is full of one number, and another's memory shows in any element.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

SIZES = (192, 200, 256)
"""Rows and columns: 144 to 256 KiB, which the pool serves."""
KEPT = 6
"""Results that a thread holds, the oldest of which is looked at again."""

Function = Callable[[torch.Tensor], Any]


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x + 1, x.t().contiguous() - 1


def step(x: torch.Tensor) -> torch.Tensor:
    """A gradient: the backward's memory as well."""
    leaf = x.detach().requires_grad_()
    (leaf.sin() * leaf).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def numbered(number: int) -> Function:
    """A function that no other thread has: what is compiled while others call."""
    return lambda x: x * number + 1


class Run:
    """calls, bad: how many there were. device: of the inputs. compiles: whether threads compile as they go."""

    def __init__(self, seconds: float, device: str, compiles: bool, sizes: tuple[int, ...] = SIZES) -> None:
        self.device, self.compiles, self.sizes = device, compiles, sizes
        torch.set_num_threads(1)  # dynamo guards the number, and each thread has its own
        self.lock = threading.Lock()
        self.calls = self.bad = self.compiled = self.refused = 0
        self.errors: list[str] = []
        options = {"backend": "litz", "dynamic": False}
        if device == "cuda":
            options["options"] = {"cuda_graphs": True}
        self.options = options
        self.functions: list[tuple[Function, Function]] = [
            (torch.compile(eager, **options), eager) for eager in (double, halves)
        ]
        trained = torch.compile(lambda x: (x.sin() * x).sum(), **options)

        def trained_step(x: torch.Tensor) -> torch.Tensor:
            leaf = x.detach().requires_grad_()
            trained(leaf).backward()
            assert leaf.grad is not None
            return leaf.grad

        self.functions.append((trained_step, step))
        for compiled, _ in self.functions:  # once for each size, so that threads meet in calls
            for size in sizes:
                for _ in range(3):
                    compiled(torch.ones(size, size, device=device))
        self.until = time.monotonic() + seconds

    def work(self, number: int) -> None:
        torch.set_num_threads(1)
        draw = random.Random(number)
        calls = bad = 0
        kept: list[tuple[Any, Any]] = []
        try:
            while time.monotonic() < self.until:
                for _ in range(16):
                    value = float(draw.randrange(1, 100))
                    size = draw.choice(self.sizes)
                    compiled, eager = draw.choice(self.functions)
                    expected = eager(torch.full((2, 2), value))
                    result = self.called(compiled, torch.full((size, size), value, device=self.device))
                    if result is None:
                        continue
                    kept.append((result, expected))
                    calls += 1
                    if len(kept) > draw.randrange(1, KEPT):
                        bad += self.is_wrong(*kept.pop(0))
                if self.compiles and draw.random() < 0.05:
                    bad += self.compile_one(draw.randrange(2, 1000))
                    calls += 1
            bad += sum(self.is_wrong(*pair) for pair in kept)
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")
        with self.lock:
            self.calls, self.bad = self.calls + calls, self.bad + bad

    def called(self, compiled: Function, x: torch.Tensor) -> Any:
        """The function's result. None where torch refuses the call: in torch 2.11 any thread that traces makes it
        refuse calls of compiled functions in all threads."""
        try:
            return compiled(x)
        except RuntimeError as error:
            if "FX to symbolically trace" not in str(error):
                raise
            with self.lock:
                self.refused += 1
            return None

    def is_wrong(self, results: Any, expected: Any) -> bool:
        """Whether any element differs from the number that all have."""
        pairs = zip(*(v if isinstance(v, tuple) else (v,) for v in (results, expected)), strict=True)
        return any(
            bool(((r - e.flatten()[0].item()).abs() > 1e-3 * (1 + e.abs().max().item())).any()) for r, e in pairs
        )

    def compile_one(self, number: int) -> bool:
        eager = numbered(number)
        compiled = torch.compile(eager, **self.options)
        value = torch.full((256, 256), 2.0, device=self.device)
        with self.lock:
            self.compiled += 1
        result = self.called(compiled, value)
        return result is not None and self.is_wrong(result, eager(torch.full((2, 2), 2.0)))


def run(seconds: float, threads: int, device: str, compiles: bool, sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """Returns what happened in this process."""
    made = Run(seconds, device, compiles, sizes)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        workers = [threading.Thread(target=made.work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(before)
    counts = {"calls": made.calls, "wrong": made.bad, "compiled": made.compiled, "refused": made.refused}
    return {**counts, "errors": made.errors}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compiles", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    given = parser.parse_args()
    if given.processes > 1:
        line = [sys.executable, "-m", "stress.program", *sys.argv[1:], "--processes", "1"]
        started = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True) for _ in range(given.processes)]
        found = []
        for process in started:
            out, _ = process.communicate()
            failed = {
                "calls": 0,
                "wrong": 0,
                "compiled": 0,
                "refused": 0,
                "errors": [f"exit status {process.returncode}"],
            }
            found.append(failed if process.returncode else json.loads(out.splitlines()[-1]))
        total = {key: sum((one[key] for one in found), [] if key == "errors" else 0) for key in found[0]}
        print(json.dumps({"processes": given.processes, "threads": given.threads, "cpus": os.cpu_count()} | total))
    else:
        total = run(given.seconds, given.threads, given.device, not given.no_compiles, tuple(given.sizes))
        print(json.dumps(total))
    if given.processes > 1 and (total["wrong"] or total["errors"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

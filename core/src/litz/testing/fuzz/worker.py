"""One process of a fuzzing run: batches of programs, one line of JSON on stdout for each.

Before each program its label is written to the journal, so that whoever started the process knows which one killed it.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from .check import Checker, Failure
from .generate import generate
from .program import FuzzProgram
from .shrink import shrink


def work(task: dict[str, Any]) -> None:
    """task: seed, first (batch), step (batches), stop (programs), batch (programs in one), device, level, compiled,
    folder, journal, skip (labels), dynamic, shrink_seconds, deadline (time.time())."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(2)
    journal, folder = Path(task["journal"]), Path(task["folder"])
    checker = Checker(task["compiled"], task["level"], task["device"])

    def note(program: FuzzProgram) -> None:
        journal.write_text(program.label)

    number = task["first"]
    while number * task["batch"] < task["stop"] and time.time() < task["deadline"]:
        start = time.perf_counter()
        count = min(task["batch"], task["stop"] - number * task["batch"])
        labels = [f"{task['seed']}:{number * task['batch'] + k}" for k in range(count)]
        programs = [generate(label, dynamic=task["dynamic"]) for label in labels if label not in task["skip"]]
        checker.note = note
        checker.torch_failures.clear()
        checker.second_runs = 0
        failures = checker.check_all(programs)
        row = {
            "batch": number,
            "programs": len(programs),
            "statements": sum(len(program.statements) for program, _ in programs),
            "dynamic": sum(program.dynamic for program, _ in programs),
            "grad": sum(program.grad for program, _ in programs),
            "second_runs": checker.second_runs,
            "torch_failures": dict(checker.torch_failures),
            "seconds": time.perf_counter() - start,
        }
        row["failures"] = [_write(_small(f, checker, task["shrink_seconds"]), folder) for f in failures]
        print(json.dumps(row), flush=True)
        number += task["step"]


def _small(failure: Failure, checker: Checker, seconds: float) -> Failure:
    """The failure with as small a program as is found."""

    def fails(candidate: FuzzProgram) -> bool:
        found = checker.check(candidate)
        return found is not None and found.kind == failure.kind

    program = shrink(failure.program, fails, seconds)
    try:
        return checker.check(program) or failure
    except Exception:
        return failure


def _write(failure: Failure, folder: Path) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"fail_{failure.program.label.replace(':', '_')}.py"
    path.write_text(failure.program.script(f"{failure.kind}\n{failure.message}"))
    return {
        "label": failure.program.label,
        "kind": failure.kind,
        "message": failure.message[-300:],
        "script": str(path),
    }


if __name__ == "__main__":
    work(json.loads(sys.argv[1]))

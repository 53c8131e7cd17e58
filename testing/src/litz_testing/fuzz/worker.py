"""One process of a fuzzing run: batches of programs, one line of JSON on stdout for each. With a label: that program by
torch alone.

Before each program is made, and before it is compiled or run, its label is written to the journal, so that whoever
started the process knows which one killed it.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from .check import Checker, Failure
from .execute import FuzzCompiler
from .generate import generate
from .program import FuzzProgram
from .reference import Reference
from .shrink import shrink
from .torch_alone import ENDS


def work(task: dict[str, Any]) -> None:
    """task: seed, start (the number of the first program), first (batch), step (batches), stop (programs), batch
    (programs in one), device, level, compiled, folder, journal, skip (labels), dynamic, numerics, shrink_seconds,
    deadline (time.time())."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(2)
    gc.disable()  # tracing makes much that lives on: collecting once a batch is a fifth faster
    journal, folder = Path(task["journal"]), Path(task["folder"])
    checker = Checker(FuzzCompiler(task["compiled"], task["level"], task["device"], numerics=task["numerics"]))

    def note(label: str) -> None:
        journal.write_text(label, encoding="utf-8")

    def made(label: str) -> tuple[FuzzProgram, Reference]:
        note(label)
        return generate(label, dynamic=task["dynamic"])

    number = task["first"]
    while number * task["batch"] < task["stop"] and time.time() < task["deadline"]:
        start = time.perf_counter()
        count = min(task["batch"], task["stop"] - number * task["batch"])
        labels = [f"{task['seed']}:{task['start'] + number * task['batch'] + k}" for k in range(count)]
        programs = [made(label) for label in labels if label not in task["skip"]]
        checker.note = lambda program: note(program.label)
        checker.torch_failures.clear()
        checker.runs.clear()
        kernels = checker.compiler.batch.kernels
        failures = checker.check_all(programs)
        counts = sum(map(_counts, programs), Counter())
        counts.update(kernels=checker.compiler.batch.kernels - kernels)
        counts.update({f"runs, {kind}": count for kind, count in checker.runs.items()})
        row = {
            "batch": number,
            "programs": len(programs),
            "counts": counts,
            "dtypes": sum((Counter(_dtypes(reference)) for _, reference in programs), Counter()),
            "torch_failures": dict(checker.torch_failures),
            "seconds": time.perf_counter() - start,
        }
        row["failures"] = [_write(small(f, checker, task["shrink_seconds"]), folder) for f in failures]
        print(json.dumps(row), flush=True)
        checker.settle()  # before others are noted: what ends the process here is the program that was noted last
        gc.collect()
        number += task["step"]


def _counts(case: tuple[FuzzProgram, Reference]) -> Counter[str]:
    """Returns what a record says of one program."""
    program = case[0]
    return Counter(
        {
            "statements": len(program.statements),
            "dynamic" if program.dynamic else "static": 1,
            "with gradients": int(program.grad),
            "with writes in place": int(any(statement.writes for statement in program.statements)),
            "with strided inputs": int(any(spec.order or spec.steps or spec.offset for spec in program.inputs)),
        }
    )


def _dtypes(reference: Reference) -> set[str]:
    """Returns the dtypes of a program's variables."""
    return {str(value.dtype).removeprefix("torch.") for value in reference.eager.values()}


def small(failure: Failure, checker: Checker, seconds: float) -> Failure:
    """Returns the failure with as small a program as is found."""

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
    path.write_text(failure.program.script(f"{failure.kind}\n{failure.message}"), encoding="utf-8")
    return {
        "label": failure.program.label,
        "kind": failure.kind,
        "message": failure.message[-300:],
        "script": str(path),
    }


def alone(task: dict[str, Any], label: str) -> int:
    """Runs one program by torch alone, and returns the process's exit status: `ENDS` where that ends the use of the
    device. On a CPU a signal ends the process itself, also while the program is made, for which eager runs it."""
    warnings.filterwarnings("ignore")
    program, _ = generate(label, dynamic=task["dynamic"])
    checker = Checker(FuzzCompiler(False, task["level"], task["device"]))
    try:
        checker.run_alone(program)
    except Exception as error:
        print(error, file=sys.stderr)
        return ENDS
    return 0


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(alone(json.loads(sys.argv[1]), sys.argv[2]))
    work(json.loads(sys.argv[1]))

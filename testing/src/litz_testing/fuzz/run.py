"""A fuzzing run: worker processes, started again after the program that killed them, and the record of it all."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from litz.options import make_options
from litz.targets.cpp.build import find_compiler

from .generate import generate
from .sanitize import settings as sanitizer_settings
from .torch_alone import ENDS

BATCH = 40
"""Programs that share one run of the C++ compiler."""
MOST_FAILURES = 40
"""After that many a run stops: there is enough to do."""


@dataclass
class Record:
    """The record of a run.

    settings: what it ran with, versions included. counts: of programs, statements, kernels and runs, by what they are;
    dtypes: of programs that have a variable of each type. torch_failures: programs (by reason) that torch itself cannot
    capture or gets wrong before litz. failures: label, kind, message and script of each.
    """

    seed: str
    settings: dict[str, Any] = field(default_factory=dict)
    programs: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)
    torch_failures: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, str]] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        """Adds the counts of one batch."""
        self.programs += row["programs"]
        for name in ("counts", "dtypes", "torch_failures"):
            getattr(self, name).update(row[name])
        self.failures += row["failures"]

    def summary(self) -> str:
        """Returns a few lines for people."""
        lines = [
            f"seed {self.seed}: {self.programs} programs in {self.seconds:.0f} s, {len(self.failures)} failures",
            *map(failed, self.failures),
            f"  counts  {_listed(self.counts)}",
            f"  types   {_listed(self.dtypes)}",
            f"  torch's own failures: {sum(self.torch_failures.values())}",
            *(f"    {count} x {reason}" for reason, count in self.torch_failures.most_common()),
            "  with    " + ", ".join(f"{name} {value}" for name, value in self.settings.items()),
        ]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Returns the whole record as JSON, for programs."""
        return json.dumps(vars(self), indent=1)


def failed(failure: dict[str, str]) -> str:
    """Returns the line that says what failed, and the first 200 characters of the message."""
    return "  {label}  {kind}  {script}  {message:.200}".format_map(failure).replace("\n", " ")


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in counts.most_common())


def versions() -> dict[str, str]:
    """Returns the versions of what a run depends on."""
    options = make_options()
    compiler = find_compiler(options.cpp_compiler)
    return {
        "litz": version("litz"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "compiler": f"{compiler.version}, -march={options.cpp_march}",
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def run(
    seed: str,
    programs: int,
    seconds: float = float("inf"),
    *,
    start: int = 0,
    workers: int = 2,
    device: str = "cpu",
    compiled: bool = True,
    level: int = 1,
    dynamic: bool | None = None,
    numerics: str = "default",
    folder: Path = Path("fuzz_failures"),
    shrink_seconds: float = 60.0,
    sanitize: bool = False,
    show: Callable[[Record], None] = lambda record: None,
) -> Record:
    """Checks up to that many programs, from number `start` on, for up to that many seconds. A program depends on `seed`
    and its number alone. sanitize: with kernels that say where they leave a buffer (`sanitize`)."""
    settings = {
        "device": device,
        "kernels": f"compiled with -O{level}" if compiled else "interpreted",
        **({"sanitizer": "AddressSanitizer"} if sanitize else {}),
        "first program": start,
        "numerics": numerics,
        "sizes": "both" if dynamic is None else "dynamic" if dynamic else "static",
        "workers": workers,
    }
    record, lock, began = Record(seed, settings | versions()), threading.Lock(), time.time()
    task = {
        "seed": seed,
        "start": start,
        "step": workers,
        "stop": programs,
        "batch": min(BATCH, -(-programs // workers)),
        "device": device,
        "level": level,
        "compiled": compiled,
        "dynamic": dynamic,
        "numerics": numerics,
        "folder": str(folder),
        "shrink_seconds": shrink_seconds,
        "deadline": min(began + seconds, 1e12),
    }

    def keep(row: dict[str, Any]) -> None:
        with lock:
            record.add(row)
            record.seconds = time.time() - began
            show(record)

    with tempfile.TemporaryDirectory(prefix="litz-fuzz-") as scratch:
        if sanitize:
            task["environment"] = sanitizer_settings(find_compiler(make_options().cpp_compiler), Path(scratch))
        threads = [
            threading.Thread(target=_supervise, args=({**task, "first": n}, Path(scratch) / f"{n}", keep, record))
            for n in range(workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    record.seconds = time.time() - began
    return record


def _supervise(task: dict[str, Any], journal: Path, keep: Callable[[dict[str, Any]], None], record: Record) -> None:
    """Runs one worker, and the next one if it dies."""
    skip: list[str] = []
    first = task["first"]
    while True:
        current = {**task, "first": first, "skip": skip, "journal": str(journal)}
        # New and freed memory is filled with bytes that make huge numbers: whoever reads it is found out.
        settings = ["MALLOC_PERTURB_=1", "OMP_WAIT_POLICY=passive", "OMP_NUM_THREADS=2", *task.get("environment", ())]
        if task["device"] == "cuda":
            settings.append("CUDA_LAUNCH_BLOCKING=1")  # the program that ends the process is the one that is noted
        worker = ["env", *settings, sys.executable, "-X", "faulthandler", "-m", "litz_testing.fuzz.worker"]
        line = [*worker, json.dumps(current)]
        with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
            process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8")
            assert process.stdout is not None
            for row in map(json.loads, (text for text in process.stdout if text.startswith("{"))):
                keep(row)
                first = row["batch"] + task["step"]
                if len(record.failures) >= MOST_FAILURES:
                    process.kill()
                    break
            code = process.wait()
            errors.seek(0)
            said = _last_words(errors.read())
        if code == 0 or len(record.failures) >= MOST_FAILURES:
            return
        label = journal.read_text(encoding="utf-8") if journal.exists() else ""
        empty: dict[str, Any] = {"programs": 0, "counts": {}, "dtypes": {}, "torch_failures": {}, "failures": []}
        if label and label not in skip and _dies_alone([*worker, json.dumps(task), label]):
            keep({**empty, "torch_failures": {"the process ended before litz": 1}})
            skip.append(label)
            continue
        failure = {"label": label, "kind": f"crash {code}", "message": said, "script": ""}
        if label:
            failure["script"] = _write_crash(label, task, said)
        keep({**empty, "failures": [failure]})
        if not label or label in skip:
            return
        skip.append(label)


def _dies_alone(worker: list[str]) -> bool:
    """Returns whether a program that a worker makes, and runs by torch alone, ends the process or the use of the device
    too: a kernel of torch's divides by 0, or reads an address that is none. An error of Python's in the worker is no
    such end."""
    status = subprocess.run(worker, capture_output=True, check=False).returncode
    return status < 0 or status == ENDS


def _last_words(text: str) -> str:
    """Returns what a dying process wrote: from Python's "Fatal" on, which comes before the stack, and what is just
    before it (glibc's or a C++ exception's reason)."""
    at = text.rfind("Fatal Python error")
    return text[-2000:] if at < 0 else text[max(0, at - 500) : at + 2000]


def _write_crash(label: str, task: dict[str, Any], said: str) -> str:
    """The program as it is: to shrink it, somebody would have to crash many times. Its label and the reason where the
    program cannot be made."""
    folder = Path(task["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"crash_{label.replace(':', '_')}.py"
    reason = f"the process died\n{said}"
    try:
        text = generate(label, dynamic=task["dynamic"])[0].script(reason)
    except Exception as error:
        text = "".join(f"# {line}\n" for line in [label, repr(error), *reason.splitlines()])
    path.write_text(text, encoding="utf-8")
    return str(path)

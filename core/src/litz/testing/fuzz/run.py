"""A fuzzing run: worker processes, started again after the program that killed them, and the record of it all."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .generate import generate

BATCH = 40
"""Programs that share one run of the C++ compiler."""
MOST_FAILURES = 40
"""After that many a run stops: there is enough to do."""


@dataclass
class Record:
    """What a run did. failures: label, kind, message and script of each."""

    seed: str
    programs: int = 0
    statements: int = 0
    dynamic: int = 0
    grad: int = 0
    second_runs: int = 0
    seconds: float = 0.0
    torch_failures: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, str]] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        """One batch's line."""
        for name in ("programs", "statements", "dynamic", "grad", "second_runs"):
            setattr(self, name, getattr(self, name) + row[name])
        self.torch_failures.update(row["torch_failures"])
        self.failures += row["failures"]

    def summary(self) -> str:
        """A few lines for people."""
        skipped = sum(self.torch_failures.values())
        lines = [
            f"seed {self.seed}: {self.programs} programs ({self.statements} statements, {self.dynamic} dynamic, "
            f"{self.second_runs} of them run with second sizes, {self.grad} with gradients) in {self.seconds:.0f} s; "
            f"torch itself could not capture {skipped}",
            f"{len(self.failures)} failures",
        ]
        lines += [f"  {f['label']}  {f['kind']}  {f['script']}" for f in self.failures]
        return "\n".join(lines)


def run(
    seed: str,
    programs: int,
    seconds: float = float("inf"),
    *,
    workers: int = 2,
    device: str = "cpu",
    compiled: bool = True,
    level: int = 1,
    dynamic: bool | None = None,
    folder: Path = Path("fuzz_failures"),
    shrink_seconds: float = 60.0,
    show: Callable[[Record], None] = lambda record: None,
) -> Record:
    """Check up to that many programs for up to that many seconds. The programs depend on `seed` alone."""
    record, lock, start = Record(seed), threading.Lock(), time.time()
    task = {
        "seed": seed,
        "step": workers,
        "stop": programs,
        "batch": min(BATCH, -(-programs // workers)),
        "device": device,
        "level": level,
        "compiled": compiled,
        "dynamic": dynamic,
        "folder": str(folder),
        "shrink_seconds": shrink_seconds,
        "deadline": min(start + seconds, 1e12),
    }

    def keep(row: dict[str, Any]) -> None:
        with lock:
            record.add(row)
            record.seconds = time.time() - start
            show(record)

    with tempfile.TemporaryDirectory(prefix="litz-fuzz-") as scratch:
        threads = [
            threading.Thread(target=_supervise, args=({**task, "first": n}, Path(scratch) / f"{n}", keep, record))
            for n in range(workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    record.seconds = time.time() - start
    return record


def _supervise(task: dict[str, Any], journal: Path, keep: Callable[[dict[str, Any]], None], record: Record) -> None:
    """One worker, and the next one if it dies."""
    skip: list[str] = []
    first = task["first"]
    while True:
        current = {**task, "first": first, "skip": skip, "journal": str(journal)}
        # New and freed memory is filled with bytes that make huge numbers: whoever reads it is found out.
        settings = ["MALLOC_PERTURB_=1", "OMP_WAIT_POLICY=passive", "OMP_NUM_THREADS=2"]
        line = [
            "env",
            *settings,
            sys.executable,
            "-X",
            "faulthandler",
            "-m",
            "litz.testing.fuzz.worker",
            json.dumps(current),
        ]
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=errors, text=True)
            assert process.stdout is not None
            for row in map(json.loads, (text for text in process.stdout if text.startswith("{"))):
                keep(row)
                first = row["batch"] + task["step"]
                if len(record.failures) >= MOST_FAILURES:
                    process.kill()
                    break
            code = process.wait()
            errors.seek(0)
            said = errors.read()[-2000:]
        if code == 0 or len(record.failures) >= MOST_FAILURES:
            return
        label = journal.read_text() if journal.exists() else ""
        failure = {"label": label, "kind": f"crash {code}", "message": said, "script": ""}
        if label:
            failure["script"] = _write_crash(label, task, said)
        empty = {"programs": 0, "statements": 0, "dynamic": 0, "grad": 0, "second_runs": 0, "torch_failures": {}}
        keep({**empty, "failures": [failure]})
        if not label or label in skip:
            return
        skip.append(label)


def _write_crash(label: str, task: dict[str, Any], said: str) -> str:
    """The program as it is: to shrink it, somebody would have to crash many times."""
    folder = Path(task["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"crash_{label.replace(':', '_')}.py"
    path.write_text(generate(label, dynamic=task["dynamic"])[0].script("the process died\n" + said))
    return str(path)

"""Measured rows, as benchmarks/results/*.jsonl keeps them: what a row holds, and who writes and reads the rows.

In: what a script has measured of a case, for every peer. Out: a line of JSON for each row. A script takes `add_option`
and gives its rows to `recorder`; `python -m website.figures --write` makes the tables of README and docs/ from the
files in benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TASKS: Mapping[str, str] = {
    "inference": "one call of a whole model",
    "training": "forward and backward of a whole model, without an optimizer",
    "first_calls": "the first step in a new process",
    "kernels": "kernels that memory bounds: pointwise operations, reductions, pools, their gradients",
    "attention": 'attention by flex_attention: forward, or forward and backward ("both")',
    "products": "products of matrices, with what follows them",
    "decoding": "one token of a decoder under CUDA graphs",
    "communication": "a sharded training step, with its communication",
    "artifacts": "a model that is compiled and stored (cold), and loaded and called in another process (warm)",
    "host": "the host's time for the launch of one kernel",
    "budgets": "a training step of a small model within a memory budget: the peak in the place of a time",
    "numerics": "what numbers that one can rely on cost: one call, or forward and backward, of a small model",
}
"""What is measured; each task has a file."""
MEASURES: Mapping[str, str] = {
    "kernel_ms": "milliseconds: the sum of the times of a step's kernels on the device",
    "kernels": "the number of these kernels",
    "wall_ms": "milliseconds of a step on the clock",
    "processor_ms": "milliseconds of all processors for a step",
    "cold_s": "seconds of the first step with empty caches",
    "cold_processor_s": "the same, of processors, subprocesses included",
    "warm_s": "seconds of the first step in a new process with filled caches",
    "warm_processor_s": "the same, of processors",
    "peak_mib": "MiB of parameters, inputs and the most that a step takes at a time",
    "planned_mib": "MiB that a memory plan says for the same",
    "budget_mib": "MiB of a memory budget",
    "error": "the largest difference from float64, relative to the largest result",
    "stored_mib": "MiB of a stored model, its weights included",
    "copy_share": "the speed as a share of a plain copy's on the same device",
    "tflops": "TFLOP/s",
    "communication_ms": "milliseconds of communication in a step",
    "exposed_ms": "milliseconds in which only communication runs",
}
"""What a peer may have been measured by."""
RATIOS: Mapping[str, str] = {
    "kernel_ms": "Inductor / litz",
    "wall_ms": "Inductor / litz",
    "peak_mib": "litz / Inductor",
}
"""Quotients that a row may have where its source does not give both figures, or gives them rounded."""
PEERS: Mapping[str, str] = {
    "eager": "PyTorch without a compiler",
    "inductor": "TorchInductor",
    "litz": "litz with all its plugins",
    "library": "the library's best call, where eager has another one: cuDNN's attention, a product of padded operands",
    "inductor, overlap": "TorchInductor that overlaps communication and computation",
    "litz, overlap": "litz with its option `overlap`",
    "litz, strict": 'litz with `numerics.mode="strict"`',
    "litz, rounded": 'litz with `numerics.mode="rounded"`',
    "litz, invariant": "litz with `numerics.batch_invariant`",
    "litz, deterministic": "litz with `numerics.deterministic`",
}
DAY = r"20\d\d-\d\d-\d\d"
OWN_NAMES: Mapping[str, str] = {peer: peer for peer in PEERS}
MODES = ("default", "reduce-overhead", "max-autotune")
WHOLE_MODELS = ("inference", "training")
"""Tasks whose rows are a model's, whatever the GPU: the newest row is the model's."""


class RowError(ValueError):
    """A row that benchmarks/results may not hold. The message names the field, what it holds and what it may hold."""


@dataclass(frozen=True)
class Row:
    """One case in one task, with every peer's figures. None: not known.

    case: a model as `side_by_side --only` takes it, or a kernel with its sizes and type. dtype: what it computes in.
    device: as the driver names it. versions: of libraries, by name. commit: of litz. date: of the measurement, or its
    first and last day. script: in benchmarks/. command: what was run. peers: figures by peer and by name (`MEASURES`).
    ratios: by name (`RATIOS`). problems: why a peer has no figures. alone: whether nothing else used the machine. note:
    what else is to be said. source: "script", or the page that the row was copied from.
    """

    task: str
    case: str
    script: str
    device: str
    peers: Mapping[str, Mapping[str, float]]
    mode: str = "default"
    dtype: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str | None = None
    date: str | None = None
    command: str | None = None
    ratios: Mapping[str, float] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    alone: bool | None = None
    note: str = ""
    source: str = "script"

    def __post_init__(self) -> None:
        """Errors: RowError."""
        for name in ("task", "case", "script", "device", "source"):
            self._demand(name, isinstance(getattr(self, name), str) and getattr(self, name), "a text")
        for name in ("peers", "versions", "ratios", "problems"):
            self._demand(name, isinstance(getattr(self, name), Mapping), "a mapping")
        self._demand("task", self.task in TASKS, f"one of {', '.join(TASKS)}")
        self._demand("mode", self.mode in MODES, f"one of {', '.join(MODES)}")
        self._demand("script", (ROOT / "benchmarks" / f"{self.script}.py").exists(), "a script of benchmarks/")
        date = self.date is None or re.fullmatch(rf"{DAY}(/{DAY})?", self.date)
        self._demand("date", date, "a day like 2026-11-29, or two with a slash between")
        commit = self.commit is None or re.fullmatch(r"[0-9a-f]{7,40}(, with changes)?", self.commit)
        self._demand("commit", commit, "a commit's number, then `, with changes` if the checkout has some")
        self._demand("peers", set(self.peers) <= set(PEERS), f"of {', '.join(PEERS)}")
        self._demand("problems", set(self.problems) <= set(PEERS), f"of {', '.join(PEERS)}")
        for name, figures in (*self.peers.items(), ("ratios", self.ratios)):
            known = RATIOS if name == "ratios" else MEASURES
            numbers = all(isinstance(each, int | float) and 0 <= each < math.inf for each in figures.values())
            self._demand(name, set(figures) <= set(known) and numbers, f"numbers, of {', '.join(known)}")
        self._demand("alone", self.alone in (None, True, False), "true, false or null")
        for name in ("dtype", "command"):
            self._demand(name, getattr(self, name) is None or isinstance(getattr(self, name), str), "a text")

    def _demand(self, name: str, right: object, wanted: str) -> None:
        if not right:
            held = getattr(self, name, self.peers.get(name))
            raise RowError(f"{self.task}, {self.case}: {name} is {held!r}, and should be {wanted}")

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Rows with one key are measurements of one thing, of which the newest counts."""
        device = self.device.partition(" ")[0] if self.task in WHOLE_MODELS else self.device
        return self.task, self.case, self.mode, device

    @property
    def day(self) -> str:
        """The last day of the measurement; "" if nobody knows it."""
        return (self.date or "").rpartition("/")[2]

    def figure(self, peer: str, measure: str) -> float | None:
        """A peer's figure, or None."""
        return self.peers.get(peer, {}).get(measure)

    def ratio(self, measure: str, over: str = "inductor", ours: str = "litz") -> float | None:
        """How many times as fast litz is as a peer (for peak_mib: how much of a peer's memory litz takes), or None."""
        if over == "inductor" and ours == "litz" and measure in self.ratios:
            return self.ratios[measure]
        theirs, own = self.figure(over, measure), self.figure(ours, measure)
        if measure == "peak_mib" or measure == "copy_share":
            theirs, own = own, theirs
        return theirs / own if theirs is not None and own else None


NAMES = [each.name for each in fields(Row)]


def read_line(line: str) -> Row:
    """The row of a line. Errors: RowError where a field is missing, unknown or wrong."""
    data = json.loads(line)
    if not isinstance(data, dict) or set(data) != set(NAMES):
        raise RowError(f"a row has the fields {', '.join(NAMES)}; this line has others: {line[:200]}")
    return Row(**data)


def read_rows(folder: Path = RESULTS) -> list[Row]:
    """The rows of all files of a folder, in order. Errors: RowError, with the file and the line."""
    rows = []
    for file in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            try:
                row = read_line(line)
            except (ValueError, TypeError) as error:
                raise RowError(f"{file.name}:{number}: {error}") from error
            if row.task != file.stem:
                raise RowError(f"{file.name}:{number}: a row of {row.task!r} belongs into {row.task}.jsonl")
            rows.append(row)
    return rows


def newest(rows: Iterable[Row]) -> list[Row]:
    """Of the rows with one key the newest (of one day the last), in the order in which keys come first."""
    found: dict[tuple[str, str, str, str], Row] = {}
    for row in rows:
        there = found.get(row.key)
        if there is None or row.day >= there.day:
            found[row.key] = row
    return list(found.values())


def as_line(row: Row) -> str:
    """A row as a line of JSON."""
    return json.dumps(asdict(row), ensure_ascii=False)


# -------------------------------------------------------------------------------------------------------- for scripts


def add_option(parser: argparse.ArgumentParser) -> None:
    """Adds --json to a script's options."""
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="append a line of JSON for each row (benchmarks.record)"
    )


def recorder(
    path: Path | None,
    script: str,
    device: object,
    argv: Sequence[str] | None = None,
    names: Mapping[str, str] = OWN_NAMES,
) -> Callable[..., None]:
    """A function that takes a row's `task`, `case`, `peers` and other fields, and appends the row to a file at once.

    path: None where no file is wanted. device: "cpu", "cuda" or torch's device. argv: the script's arguments, if they
    are not the process's. names: what the script calls peers, and what `PEERS` does; others are left out. Numbers that
    are not known may be None or nan. A machine whose processors are half busy as this is called is not `alone`.
    """
    if path is None:
        return lambda **values: None
    words = list(sys.argv[1:] if argv is None else argv)
    if "--json" in words:
        del words[(at := words.index("--json")) : at + 2]
    common = {
        "script": script,
        "device": device_name(str(device)),
        "versions": library_versions(),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "alone": False if os.getloadavg()[0] > (os.cpu_count() or 1) / 2 else None,
        "command": shlex.join(["python", "-m", f"benchmarks.{script}", *words]),
    }

    def write(**values: object) -> None:
        own: dict[str, Any] = {**common, **values}
        for name in ("peers", "problems"):
            own[name] = {names[peer]: held for peer, held in own.get(name, {}).items() if peer in names}
        row = Row(**{**own, "peers": _known(own["peers"])})
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(as_line(row) + "\n")

    return write


def _known(peers: Mapping[str, Mapping[str, float | None]]) -> dict[str, dict[str, float]]:
    found = {
        peer: {name: _short(n) for name, n in of.items() if n is not None and not math.isnan(n)}
        for peer, of in peers.items()
    }
    return {peer: of for peer, of in found.items() if of}


def _short(number: float) -> float:
    """Five significant digits: more than any clock gives."""
    return int(number) if number == int(number) else float(f"{number:.5g}")


def device_name(device: str) -> str:
    """A GPU as its driver names it, or "CPU" with the processor's name, its widest vectors and torch's threads."""
    import torch

    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(torch.device(device)))
    names = re.findall(r"^model name\s*: (.*)$", _text(Path("/proc/cpuinfo")), re.MULTILINE)
    name = names[0] if names else platform.machine()
    return f"CPU {name}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"


def library_versions() -> dict[str, str]:
    """Of the libraries that figures depend on, as far as they are installed."""
    found = {}
    for name in ("torch", "triton", "transformers", "timm"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The checkout's commit; None outside a checkout."""
    try:
        head = _git("rev-parse", "--short=8", "HEAD")
        return head + (", with changes" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""

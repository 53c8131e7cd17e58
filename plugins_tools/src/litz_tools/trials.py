"""Thresholds by measurement: a program compiled with each of a few values of a figure, and timed in turns.

In: a device, and `TRIALS`. Out: for each figure the value that is surely the fastest, with the times of all. A value is
handed to the compile as a calibration file, so whatever reads the figure goes by it. Where two values give the same
kernels there is nothing to time.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from litz import report
from litz.target import figure_of, target_of
from litz_plugins import Target

from .clock import row_seconds
from .device_file import Measured, write_file
from .steady import Others
from .trial_programs import PROGRAMS, Program

GAIN = 0.03
"""The share of the time that another value has to save: less is within the noise of two builds of one kernel."""
ROUNDS = 5
"""Times that each way is measured, in turns: a machine's speed drifts."""


@dataclass(frozen=True)
class Trial:
    """figure: its full name. values: those that are tried beside the present one. programs: names of `PROGRAMS`."""

    figure: str
    values: tuple[Any, ...]
    programs: tuple[str, ...]


TRIALS = {
    "cpu": (
        Trial("cpp.most_columns", (1024, 16384), ("moments of columns",)),
        Trial("cpp.most_tiles", (2, 32), ("gradient of a gate, with its sums",)),
        Trial("cpp.parallel_values", (12288, 196608), ("short pointwise",)),
        Trial("cpp.row_bytes", (16384, 262144), ("long softmax",)),
    ),
    "cuda": (
        Trial("tilings.two_loads_elements", (8, 32), ("softmax 1024", "layer norm 256")),
        Trial("tilings.short_elements", (512, 2048), ("softmax 64",)),
        Trial("tilings.ragged_elements", (256, 1024), ("softmax 49",)),
        Trial("tilings.persistent_bytes", (4096, 32768), ("layer norm 4096",)),
        Trial("tilings.alone_elements", (8192, 65536), ("softmax 32768",)),
        Trial("tilings.alone_half_elements", (32768, 131072), ("softmax 50257",)),
        Trial("estimate.block_columns", (16, 128), ("gelu backward",)),
    ),
}
"""By type of device: the figures whose best value a program shows."""


@dataclass(frozen=True)
class Found:
    """The result of a trial. before, value: of the figure. seconds: by value and program, {} where all values make
    the same kernels. others: the share of the processors' time that other programs took while it was measured."""

    figure: str
    before: Any
    value: Any
    seconds: dict[Any, dict[str, float]] = field(default_factory=dict)
    others: float = 0.0

    def __str__(self) -> str:
        """Returns "16: moments of columns 11.2 ms; 4: moments of columns 12.0 ms"."""
        ways = (
            f"{value}: " + ", ".join(f"{name} {seconds * 1e3:.4g} ms" for name, seconds in times.items())
            for value, times in self.seconds.items()
        )
        return "; ".join(ways)


Build = Callable[[Program, torch.device, Path], tuple[Callable[[], object], Any]]
"""Compiles a program with a calibration file: what runs it, and its kernels' texts."""
Clock = Callable[[Callable[[], object], Target], float]


def run_trials(
    device: torch.device, until: float, only: Sequence[str] = (), *, clock: Clock | None = None
) -> Iterator[Found | str]:
    """Yields what each trial of a device found, and the name of each figure whose trial did not begin by the time
    `until`, in seconds of `time.perf_counter`. only: parts of the names of figures."""
    for trial in TRIALS.get(device.type, ()):
        if only and not any(part in trial.figure for part in only):
            continue
        yield trial.figure if time.perf_counter() > until else run_trial(trial, device, clock=clock)


def run_trial(trial: Trial, device: torch.device, *, build: Build | None = None, clock: Clock | None = None) -> Found:
    """Returns what a trial found. build, clock: for tests, in place of a compile and of the time that a run takes."""
    build, clock = build or compiled, clock or partial(row_seconds, seconds=0.1)
    target = target_of(device)
    before = figure_of(target, trial.figure)
    ways: dict[Any, dict[str, Callable[[], object]]] = {}
    texts: dict[Any, list[Any]] = {}
    with tempfile.TemporaryDirectory(prefix="litz-calibrate-") as folder:
        for number, value in enumerate((before, *(each for each in trial.values if each != before))):
            file = Path(folder) / f"{number}.toml"
            write_file(file, device.type, "", [Measured(trial.figure, {"value": value}, "a trial", "", "")])
            built = {name: build(PROGRAMS[name], device, file) for name in trial.programs}
            text = [kernels for _, kernels in built.values()]
            if text not in texts.values():
                texts[value], ways[value] = text, {name: run for name, (run, _) in built.items()}
        if len(ways) == 1:
            return Found(trial.figure, before, before)
        others = Others()
        times: dict[Any, dict[str, list[float]]] = {value: {name: [] for name in trial.programs} for value in ways}
        for _ in range(ROUNDS):
            for value, runs in ways.items():
                for name, run in runs.items():
                    times[value][name].append(clock(run, target))
    found = {value: {name: statistics.median(own) for name, own in by.items()} for value, by in times.items()}
    value = choose(before, found)
    if value != before and not wins(times[before], times[value]):
        value = before
    return Found(trial.figure, before, value, found, others.share())


def choose(before: Any, seconds: dict[Any, dict[str, float]]) -> Any:
    """Returns the value whose programs take the least time, as a mean of their shares; `before` unless another is
    faster by more than `GAIN`."""

    def share(value: Any) -> float:
        parts = [math.log(seconds[value][name] / took) for name, took in seconds[before].items()]
        return math.exp(sum(parts) / len(parts))

    best = min(seconds, key=share)
    return best if share(best) < 1 - GAIN else before


def wins(before: dict[str, list[float]], other: dict[str, list[float]]) -> bool:
    """Returns whether the other way is faster in every round but one at most: a machine that is disturbed for a moment
    decides nothing."""
    rounds = [
        sum(math.log(mine / was) for mine, was in zip(mines, wases, strict=True))
        for mines, wases in zip(zip(*other.values(), strict=True), zip(*before.values(), strict=True), strict=True)
    ]
    return sum(share < 0 for share in rounds) >= len(rounds) - 1


def compiled(program: Program, device: torch.device, file: Path) -> tuple[Callable[[], object], Any]:
    """Returns what runs a program that litz has compiled with the figures of a calibration file, and the texts of its
    kernels."""
    inputs = program.inputs(device)
    torch._dynamo.reset()
    options: dict[str, Any] = {"calibration": file, "graph_cache": False}
    call = torch.compile(program.function, backend="litz", options=options)
    with torch.no_grad(), report.collect() as reports:
        call(*inputs)

    def run() -> object:
        with torch.no_grad():
            return call(*inputs)

    return run, [sorted(one.kernel_sources.values()) for one in reports]

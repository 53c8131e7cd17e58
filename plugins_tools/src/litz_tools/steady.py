"""Whether a measurement can be believed. In: rounds of figures, and what else the machine did meanwhile. Out: one value
for each figure, or a MeasuringError that says what stands against it.

Three things stand against a figure: other programs had a part of the processors' time, the rounds differ, or no machine
is so slow or so fast.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from .errors import MeasuringError

ROUNDS = 5
"""Times that each speed is measured, in turns: what disturbs one round seldom disturbs the next."""
MOST_OTHERS = 0.1
"""The share of the processors' time that other programs may take."""
MOST_SPREAD = 0.15
"""How far the rounds may lie apart, as a share of the median, without the slowest and the fastest round."""
GLANCE_SECONDS = 0.4
"""How long the machine is looked at before anything is measured."""
CORE_HERTZ, CORE_FLOPS = 7e9, 4096
"""More than any core's clock, and than its FLOPs in a cycle: a core with AMX has 2,048 of bfloat16."""

BOUNDS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "cpu": {"bandwidth_gb_s": (2.0, 4000.0), "launch_us": (0.05, 200.0), "matrix_tflops": (1e-5, math.inf)},
    "cuda": {"bandwidth_gb_s": (20.0, 30000.0), "launch_us": (0.1, 100.0), "matrix_tflops": (1e-3, 2e4)},
}
"""By type of device and figure: the least and the most that a machine which does nothing else can have."""


@dataclass(frozen=True)
class Work:
    """The processors' seconds since the machine began: of all programs, of this one, and those that there were."""

    all: float
    own: float
    passed: float

    @staticmethod
    def now(stat: Path = Path("/proc/stat")) -> Work | None:
        """Returns what the system says; None where it does not say."""
        try:
            words = stat.read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
        except (OSError, UnicodeDecodeError):
            return None
        user, nice, system, _, _, irq, soft, steal = (int(word) / os.sysconf("SC_CLK_TCK") for word in words)
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        return Work(user + nice + system + irq + soft + steal, own, time.perf_counter() * (os.cpu_count() or 1))


@dataclass
class Others:
    """The share of the processors' time that other programs take, since this was made. work: for tests."""

    work: Callable[[], Work | None] = Work.now
    begun: Work | None = field(init=False)

    def __post_init__(self) -> None:
        self.begun = self.work()

    def share(self) -> float:
        """Returns the share, 0 where the system does not say."""
        now = self.work()
        if now is None or self.begun is None or now.passed <= self.begun.passed:
            return 0.0
        others = (now.all - self.begun.all) - (now.own - self.begun.own)
        return min(max(0.0, others / (now.passed - self.begun.passed)), 1.0)

    def check(self) -> None:
        """Errors: MeasuringError if other programs took too much."""
        share = self.share()
        if share > MOST_OTHERS:
            raise busy(f"other programs took {share:.0%} of the processors' time")


def busy(problem: str) -> MeasuringError:
    """Returns the error of a machine that does something else meanwhile."""
    return MeasuringError(
        f"the machine is busy, so nothing was written: {problem}",
        todo="stop what else runs here (`top`, `nvidia-smi` show it), and measure again",
    )


def check_idle(device: torch.device, others: Others | None = None) -> None:
    """Looks at the machine for a moment. Errors: MeasuringError if other programs take the processors or the GPU."""
    others = others or Others()
    time.sleep(GLANCE_SECONDS)
    others.check()
    if device.type == "cuda":
        used = _gpu_used(device)
        if used > MOST_OTHERS:
            raise busy(f"the GPU was in use for {used:.0%} of the time before anything was measured")


def _gpu_used(device: torch.device) -> float:
    """Returns the share of the last moment in which a kernel ran on the GPU; 0 where NVML's bindings are missing."""
    try:
        return float(torch.cuda.utilization(device)) / 100
    except Exception:
        return 0.0


def steady_figures(
    rounds: Sequence[Mapping[str, float]], device: torch.device, cores: int
) -> tuple[dict[str, float], float]:
    """Returns the median of each figure, to four significant digits, and the largest spread, as a share. cores: that
    the processor's library may use. Errors: MeasuringError if rounds differ, or a figure cannot be."""
    middle = {name: sorted(each[name] for each in rounds) for name in rounds[0]}
    inner = {name: values[1:-1] if len(values) > 3 else values for name, values in middle.items()}
    spread = {name: (values[-1] - values[0]) / statistics.median(values) for name, values in inner.items()}
    if unsteady := [name for name, share in spread.items() if share > MOST_SPREAD]:
        said = ", ".join(f"{name} was {inner[name][0]:.4g} to {inner[name][-1]:.4g}" for name in unsteady)
        raise busy(f"{len(rounds)} rounds differ: {said}")
    found = {name: float(f"{statistics.median(values):.4g}") for name, values in inner.items()}
    for name, value in found.items():
        least, most = bounds(name, device.type, cores)
        if not least <= value <= most:
            raise MeasuringError(
                f"no {device.type} device has {name} = {value:g}, so nothing was written: {least:g} to {most:g} can be",
                todo="measure again when the machine does nothing else, or write the file by hand (docs/options.md)",
            )
    return found, max(spread.values())


def bounds(name: str, type: str, cores: int) -> tuple[float, float]:
    """Returns the least and the most that a figure ("bandwidth_gb_s", "matrix_tflops.bf16") can be."""
    table = name.partition(".")[0]
    least, most = BOUNDS.get(type, {}).get(table, (0.0, math.inf))
    if type == "cpu" and table == "matrix_tflops":
        most = cores * CORE_HERTZ * CORE_FLOPS / 1e12
    return least, most

"""One run. In: a side and the decisions vetoed. Out: an `Outcome`; a script that fails or hangs has one too."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from litz_plugins.vetoes import parts_of

from .sides import Side

CHILD = Path(__file__).with_name("child.py")

FEWEST = 5
"""Calls of a function to take the median of, once it is warm."""
COLD = 2
"""First calls that are left out, or a quarter of all: they compile, measure and record."""
LAST_LINES = 12
"""How many lines of a failed script's output are kept."""

Clock = Literal["wall", "kernels"]


@dataclass(frozen=True)
class Script:
    """The script that is run. name: of a file, or of a module if `module`. args: the script's arguments."""

    name: str
    args: tuple[str, ...] = ()
    module: bool = False


@dataclass(frozen=True)
class Settings:
    """The settings of each run. timeout: seconds of one. repeat: times that each call of the script's is made. clock:
    what a call's time is: "wall", from one wait for the device to the next, or "kernels", the sum of its kernels'
    times. tolerance: of differences in results, None for one by their type."""

    timeout: float = 600.0
    repeat: int = 1
    clock: Clock = "wall"
    tolerance: float | None = None


@dataclass(frozen=True)
class Taken:
    """A decision as a run put it on record. gain: what its estimates say that it saves, as a part of what it would have
    taken without; None where nothing was weighed."""

    key: str
    subject: str = ""
    chosen: str = ""
    reason: str = ""
    plugin: str = ""
    gain: float | None = None

    @property
    def graph(self) -> str:
        """Returns the graph's name, the first part of the key."""
        return parts_of(self.key)[0]

    @property
    def maker(self) -> str:
        """Returns the name of the pass or stage that decided, the second part of the key."""
        return parts_of(self.key)[1]

    @property
    def about(self) -> str:
        """Returns the subject of the decision, the third part of the key; '' where the key has none."""
        return parts_of(self.key)[2]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    times: seconds of each timed call by function, in order; "backward" is that of autograd. calls: how many there were,
    timed or not; as many as were timed, unless it says otherwise. taken: the decisions that can be vetoed, in order.
    kernels: graph and name -> (nodes, loops, digest of its text). differences: of results from eager's, the worst
    first. options: the script's own. failure: why there is nothing to measure, '' if there is. log: what the script
    wrote.
    """

    times: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    taken: tuple[Taken, ...] = ()
    kernels: Mapping[str, tuple[str, tuple[str, ...], str]] = field(default_factory=dict)
    differences: tuple[Mapping[str, Any], ...] = ()
    dropped: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""
    log: str = ""

    @property
    def warm(self) -> dict[str, tuple[float, ...]]:
        """Returns the times of each function without its first calls."""
        return {site: times[_cold(times) :] for site, times in self.times.items()}

    @property
    def enough(self) -> bool:
        """Returns whether at least one function has enough timed calls after its first ones (`FEWEST`)."""
        return any(len(times) >= FEWEST for times in self.warm.values())

    @property
    def seconds(self) -> float:
        """Returns the seconds of one round: the median of each function, weighted by how often it is called beside the
        others."""
        warm = {site: times for site, times in self.warm.items() if len(times) >= FEWEST}
        count = {site: self.calls.get(site, len(self.times[site])) for site in warm}
        most = max(count.values(), default=1)
        return sum(statistics.median(times) * count[site] / most for site, times in warm.items())

    @property
    def spread(self) -> float:
        """Returns the error of the time as a share of it: the standard error of the functions' medians, 1.25 sigma /
        sqrt(n) each, with sigma from the quartiles (interquartile range / 1.35)."""
        error = 0.0
        for times in self.warm.values():
            if len(times) >= FEWEST:
                low, _, high = statistics.quantiles(times, n=4)
                error += ((high - low) * 0.93 / len(times) ** 0.5) ** 2  # 1.25 sigma / sqrt(n), sigma = IQR / 1.35
        return error**0.5 / self.seconds if self.seconds else 0.0

    @property
    def ratio(self) -> float:
        """Returns the largest difference in results, divided by what is allowed; infinite for a run that failed, 0 if
        nothing was compared."""
        if self.failure:
            return float("inf")
        return max((row["ratio"] for row in self.differences), default=0.0)


def _cold(times: Sequence[float]) -> int:
    return max(COLD, len(times) // 4)


class Runner:
    """Runs a script as a side has it, each time in a process of its own. folder: for what goes between the two."""

    def __init__(self, script: Script, settings: Settings, folder: Path) -> None:
        self.script, self.settings, self.folder = script, settings, folder
        self.count = 0
        self.reference = folder / "values.pt"

    def run(self, side: Side, veto: Sequence[str] = (), values: Literal["", "write", "read"] = "") -> Outcome:
        """Runs the script once. values: "write" keeps what its calls return, "read" compares it with what was kept."""
        self.count += 1
        place = self.folder / f"run{self.count}"
        out, keys, log = place.with_suffix(".json"), place.with_suffix(".keys"), place.with_suffix(".log")
        keys.write_text("\n".join(veto), encoding="utf-8")
        request = {
            "script": self.script.name,
            "args": list(self.script.args),
            "module": self.script.module,
            "side": {
                "backend": side.backend,
                "options": dict(side.options),
                "veto": [f"@{keys}"] if veto else [],
            },
            "path": list(side.path),
            "repeat": self.settings.repeat if not values else 1,
            "clock": "wall" if values else self.settings.clock,
            "values": {values: str(self.reference)} if values else {},
            "tolerance": self.settings.tolerance,
            "out": str(out),
        }
        asked = place.with_suffix(".request")
        asked.write_text(json.dumps(request), encoding="utf-8")
        with log.open("wb") as file:
            status = self._wait([sys.executable, str(CHILD), str(asked)], file)
        written = log.read_text(errors="replace", encoding="utf-8")
        if status is None:
            return Outcome(failure=f"it ran for more than {self.settings.timeout:.0f} s", log=written)
        if not out.is_file():
            return Outcome(failure=_ended(status), log=written)
        return _outcome(json.loads(out.read_text(encoding="utf-8")), written)

    def _wait(self, command: list[str], log: Any) -> int | None:
        """The exit status; None where it had to be stopped, with all that it started."""
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(self.settings.timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # its own session: what the script started goes too
                process.wait()


def _ended(status: int) -> str:
    if status >= 0:
        return f"its process ended with status {status}"
    try:
        return f"its process was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"its process was ended by signal {-status}"


def _outcome(data: Mapping[str, Any], log: str) -> Outcome:
    taken: dict[str, Taken] = {}
    kernels: dict[str, tuple[str, tuple[str, ...], str]] = {}
    for report in data["reports"]:
        for key in report["taken"]:
            subject, chosen, reason, considered, plugin = report["decisions"].get(key, ("", "", "", (), ""))
            taken.setdefault(key, Taken(key, subject, chosen, reason, plugin, _gain(considered)))
        for name, (nodes, fused, digest) in report["kernels"].items():
            kernels[f"{report['graph']}:{name}"] = (nodes, tuple(fused), digest)
    failure = ""
    if data["status"]:
        failure = (data["trace"].strip().splitlines() or [f"it ended with status {data['status']}"])[0]
    return Outcome(
        times={site: tuple(t for t in times if t is not None) for site, times in data["times"].items()},
        calls={site: len(times) for site, times in data["times"].items()},
        taken=tuple(taken.values()),
        kernels=kernels,
        differences=tuple(data["differences"]),
        dropped=tuple(data["dropped"]),
        options=data["options"],
        failure=failure,
        log=log + data["trace"].partition("\n")[2],
    )


def _gain(considered: Sequence[Sequence[Any]]) -> float | None:
    """Returns the share of the dearest candidate's estimate that the cheapest saves; None without estimates."""
    known = [us for _, us in considered if us is not None]
    if len(known) < 2 or max(known) <= 0:
        return None
    return float((max(known) - min(known)) / max(known))


__all__ = ["Outcome", "Runner", "Script", "Settings", "Taken"]

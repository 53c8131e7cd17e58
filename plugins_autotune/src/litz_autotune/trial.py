"""A trial: one kernel with several settings, built and timed in turns on the same made-up tensors.

In: a `Trial`, which is data and can be sent to another process. Out: a `Measurement` for each entrant. Each one's
results are compared with the first's before it is timed; no tensor of the user's is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from litz.cache.disk import Cache
from litz.options import Options
from litz.schedule.schedule import Schedule
from litz_plugins.errors import describe

from .duel import SEED, copied, differ, moved
from .measurement import Measurement, failed, summarize
from .race import executable_schedule, is_fatal, make_inputs
from .timing import Timer


@dataclass(frozen=True)
class WithSettings:
    """An entrant: the name of some settings, and the kernel with them as a schedule of its own."""

    name: str
    schedule: Schedule


@dataclass(frozen=True)
class Trial:
    """key: of the problem; the tensors of one trial are kept for the next of the same. seconds: for all runs. index:
    of the device, in the process that runs it."""

    key: str
    entrants: tuple[WithSettings, ...]
    timer: Timer
    options: Options
    cache: str
    seconds: float
    index: int | None = None

    def run(self, state: dict[str, Any]) -> tuple[Measurement, ...]:
        """Returns the result for each entrant. state: kept between calls. Raises if the first fails, or fatally."""
        device = self._device()
        schedules = [moved(entrant.schedule, device) for entrant in self.entrants]
        inputs = state.get(self.key)
        if inputs is None:
            state.clear()  # the last problem's tensors
            # Nobody else's random numbers are drawn.
            generator = torch.Generator(device).manual_seed(SEED)
            inputs = state.setdefault(self.key, make_inputs(schedules[0].program, generator))
        calls: dict[str, Callable[[], Sequence[Any]]] = {}
        problems: dict[str, str] = {}
        expected: Sequence[Any] | None = None
        for entrant, schedule in zip(self.entrants, schedules, strict=True):
            try:
                function = executable_schedule(schedule, self.options, Cache(Path(self.cache)))
                found = function(copied(inputs))
                problem = "" if expected is None else differ(found, expected)
            except Exception as error:
                if expected is None or is_fatal(error):
                    raise
                problem = describe(error)
            else:
                expected = found if expected is None else expected
            if problem:
                problems[entrant.name] = problem
            else:
                calls[entrant.name] = _call(function, copied(inputs) if _writes_inputs(schedule) else inputs)
        times = self.timer.time(calls, device, self.seconds) if len(calls) > 1 else {}
        return tuple(
            summarize(times[each.name])
            if each.name in times
            else failed(problems.get(each.name, "there is nothing to compare it with"))
            for each in self.entrants
        )

    def _device(self) -> torch.device:
        device = self.entrants[0].schedule.steps[0].device
        if device.type != "cuda":
            return device
        return torch.device("cuda", self.index if self.index is not None else device.index or 0)


def _writes_inputs(schedule: Schedule) -> bool:
    """Returns whether the kernel changes tensors that it is given: then it needs its own."""
    given = {str(item) for item in schedule.program.inputs}
    written = {name for step in schedule.steps for name in step.writes}
    taken = {name for kernel in schedule.kernels for name in kernel.inplace.values()}
    return not given.isdisjoint(written | taken)


def _call(function: Callable[[list[Any]], Sequence[Any]], values: Sequence[Any]) -> Callable[[], Sequence[Any]]:
    return lambda: function(list(values))


__all__ = ["Trial", "WithSettings"]

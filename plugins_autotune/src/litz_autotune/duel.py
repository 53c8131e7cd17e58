"""A duel: two schedules that compute the same, built and timed in turns on the same made-up tensors.

In: a `Duel`, which is data and can be sent to another process. Out: the times of each, run by run. Results are compared
first, on copies of the tensors of their own; no tensor of the user's is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from litz.cache.disk import Cache
from litz.contractions.subprogram import on_device
from litz.ir import Program
from litz.options import Options
from litz.origins.trust import make_trust
from litz.schedule.schedule import Kernel, Schedule, Step

from .race import executable_schedule, make_inputs, mismatch
from .timing import Timer

FIRST, SECOND = "as it is", "otherwise"
SEED = 5


class Different(Exception):
    """Raised where the second schedule computes something else than the first."""


@dataclass(frozen=True)
class Duel:
    """A timing of two schedules by turns. seconds: for all runs. index: of the device, in the process that runs it."""

    first: Schedule
    second: Schedule
    timer: Timer
    options: Options
    cache: str
    seconds: float = 0.3
    index: int | None = None

    def run(self, state: dict[str, Any]) -> tuple[list[float], list[float]]:
        """Returns µs of each run of the first and the second. Raises Different, and what building or running does."""
        device = self._device()
        schedules = [moved(schedule, device) for schedule in (self.first, self.second)]
        state.clear()  # what was kept for other measurements
        side = torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else None
        if side is None:
            return self._times(schedules, device)
        with torch.cuda.device(device), side:
            return self._times(schedules, device)

    def _times(self, schedules: Sequence[Schedule], device: torch.device) -> tuple[list[float], list[float]]:
        functions = [
            executable_schedule(schedule, self.options, Cache(Path(self.cache), trust=make_trust(self.options.trust)))
            for schedule in schedules
        ]
        # Nobody else's random numbers are drawn.
        inputs = make_inputs(schedules[0].program, torch.Generator(device).manual_seed(SEED))
        names = [str(item) for item in schedules[0].program.inputs]
        given = [ordered(names, inputs, schedule.program) for schedule in schedules]
        expected, found = (function(copied(values)) for function, values in zip(functions, given, strict=True))
        problem = differ(found, expected)
        if problem:
            raise Different(problem)
        del expected, found
        calls = [_call(function, copied(values)) for function, values in zip(functions, given, strict=True)]
        for call in calls:
            call()
        times = self.timer.time({FIRST: calls[0], SECOND: calls[1]}, device, self.seconds)
        return list(times[FIRST]), list(times[SECOND])

    def _device(self) -> torch.device:
        found = [step.device for schedule in (self.first, self.second) for step in schedule.steps]
        device = next((device for device in found if device.type != "cpu"), found[0])
        if device.type != "cuda":
            return device
        return torch.device("cuda", self.index if self.index is not None else device.index or 0)


ODD = 1e-3
"""Share of a result's elements that may be finite in one only: what overflows is a matter of rounding."""


def differ(found: Sequence[Any], expected: Sequence[Any]) -> str:
    """Returns how results differ, '' if they agree. Made-up tensors produce numbers that no model does: NaN on both
    sides, such as the root of a negative variance, is no difference."""
    pairs = [_finite(mine, theirs) for mine, theirs in zip(found, expected, strict=True)]
    for mine, _, odd in pairs:
        if odd > ODD * mine.numel():
            return f"{odd} of {mine.numel()} elements are finite in one only"
    problem = mismatch([mine for mine, _, _ in pairs], [theirs for _, theirs, _ in pairs])
    return problem.replace("the library", "as it is")


def _finite(mine: torch.Tensor, theirs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Two results, with 0 where one of them is not finite; and where only one is, how often."""
    if not mine.dtype.is_floating_point or mine.dtype.itemsize < 2 or mine.shape != theirs.shape:
        return mine, theirs, 0
    here, there = mine.isfinite(), theirs.isfinite()
    both = here & there
    if bool(both.all()):
        return mine, theirs, 0
    return torch.where(both, mine, 0.0), torch.where(both, theirs, 0.0), int((here != there).sum())


def ordered(names: Sequence[str], inputs: Sequence[Any], program: Program) -> list[Any]:
    """The inputs in the order of another program; what only that one takes is made for it."""
    known = dict(zip(names, inputs, strict=True))
    if any(str(item) not in known for item in program.inputs):
        device = next(iter(program.buffers.values())).device
        made = make_inputs(program, torch.Generator(device).manual_seed(SEED))
        known = dict(zip(map(str, program.inputs), made, strict=True)) | known
    return [known[str(item)] for item in program.inputs]


def copied(values: Sequence[Any]) -> list[Any]:
    """Returns copies with the same strides."""
    return [_copy(value) if isinstance(value, torch.Tensor) else value for value in values]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    flat = torch.as_strided(tensor, (tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    return flat.clone().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _call(function: Callable[[list[Any]], Sequence[Any]], values: list[Any]) -> Callable[[], Any]:
    return lambda: function(list(values))


def moved(schedule: Schedule, device: torch.device) -> Schedule:
    """Returns the same schedule on another device of the same type. Errors: ValueError for a schedule on several types
    of device."""
    types = {buffer.device.type for buffer in schedule.program.buffers.values()}
    if device.index is None or all(step.device in (device, torch.device("cpu")) for step in schedule.steps):
        return schedule
    if len(types) > 1:
        raise ValueError(f"what runs on {' and '.join(sorted(types))} cannot be measured on {device}")
    return Schedule(on_device(schedule.program, device), tuple(_moved_step(step, device) for step in schedule.steps))


def _moved_step(step: Step, device: torch.device) -> Step:
    if not isinstance(step, Kernel):
        return replace(step, device=device)
    beside = tuple(_moved_step(kernel, device) for kernel in step.beside)
    finish = tuple(replace(loop, device=device) for loop in step.finish)
    return replace(step, loop=replace(step.loop, device=device), finish=finish, beside=beside)  # type: ignore[arg-type]


__all__ = ["FIRST", "SECOND", "Different", "Duel", "copied", "differ", "moved"]

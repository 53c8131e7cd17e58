"""Cost models, asked. In: the examples' schedules, for this processor and for an H100. Out: a trial for each.

An answer has to be the same when it is asked for again, and may take no longer than `SLOW_US`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from litz import pipeline
from litz.schedule.schedule import Schedule
from litz_plugins import Plugins
from litz_plugins.errors import in_short

from .examples import Example
from .records import Trial
from .ways import Under

WHAT = "estimates"
SLOW_US = 5000.0
"""Microseconds, on average: a large model asks thousands of times."""


def estimate_trials(examples: Sequence[Example], under: Under, own: Plugins) -> list[Trial]:
    """Returns trials of a plugin's `litz_estimate_runtime`. own: the plugin alone."""
    trials = []
    for example in examples:
        for device in ("cpu", "cuda"):
            try:
                problem = _problem(_schedules(example, under, device), under, own)
            except Exception as error:
                problem = in_short(error)
            trials.append(Trial(WHAT, example.name, f"for {device}", problem))
    return trials


def _schedules(example: Example, under: Under, device: str) -> list[Schedule]:
    torch.compiler.reset()
    with FakeTensorMode():
        tensors = [torch.empty(given.shape, dtype=given.dtype, device=device) for given in example.inputs()]
    return pipeline.schedule_only(example.function, tensors, under.options, under.plugins)


def _problem(schedules: Sequence[Schedule], under: Under, own: Plugins) -> str:
    compiler = pipeline.make_compiler(None, under.options, under.plugins)
    seconds, asked = 0.0, 0
    for schedule in schedules:
        for step in schedule.steps:
            target = compiler.target_of(step.device)
            start = time.process_time()
            first, again = (own.estimate_runtime(step, target, schedule.program, compiler.options) for _ in range(2))
            seconds, asked = seconds + time.process_time() - start, asked + 2
            if first != again:
                return f"{step.name}: it says {first}, and then {again}"
    mean_us = 1e6 * seconds / max(asked, 1)
    return f"an answer takes {mean_us:.0f} µs on average, more than {SLOW_US:.0f}" if mean_us > SLOW_US else ""


__all__ = ["WHAT", "estimate_trials"]

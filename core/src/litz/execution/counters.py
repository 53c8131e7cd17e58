"""Counters of kernels with a `finish`: where each kernel's lie in one tensor of zeros per device.

In: a plan, and the sources of its kernels, whose tiling says how many counters there are. Out: `Counters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from litz_plugins import COUNTERS, KernelSource

from .plan import ExecutionPlan

WORDS = 4
"""Counters at whose multiples those of a kernel begin: 16 bytes."""


@dataclass(frozen=True)
class Counters:
    """first: kernel -> the number of its first counter on its device. count: device -> counters of all its kernels."""

    first: Mapping[str, int]
    count: Mapping[torch.device, int]


def place_counters(plan: ExecutionPlan, sources: Mapping[str, KernelSource]) -> Counters:
    """Returns the place of each kernel's counters: each kernel has its own, and one launch sets the counters of all
    kernels of a device to zero."""
    first: dict[str, int] = {}
    count: dict[torch.device, int] = {}
    for kernel in plan.launched:
        source = sources[kernel.name]
        if COUNTERS in source.arguments:
            first[kernel.name] = count.get(kernel.device, 0)
            count[kernel.device] = first[kernel.name] + -(-source.settings["counters"] // WORDS) * WORDS
    return Counters(first, count)

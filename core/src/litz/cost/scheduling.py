"""The scheduler's view of a device. In: a torch device and options. Out: the `Machine` that fusion compares loops on.

The one file of this room that knows the scheduler: it fills the scheduler's record with the table's or the measured
speeds, so that fusion and the estimates on record believe the same of a device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from litz_plugins import OptionsView

from .roofline import COMPUTE, MEMORY
from .speeds import device_info, speeds_of

if TYPE_CHECKING:
    from litz.schedule.estimate import Machine


def machine(device: torch.device, options: OptionsView | None = None) -> Machine:
    """The scheduler's record for a device, with what kernels usually reach of its peaks.

    A processor that nobody measured keeps the scheduler's own figures.
    """
    from litz.schedule.estimate import cpu_machine, machine_of  # here: who only counts work needs no scheduler

    on = speeds_of(device_info(device, options))
    base = cpu_machine() if device.type == "cpu" else machine_of(device)
    if device.type == "cpu" and not on.measured:
        return base
    bandwidth = on.bandwidth * (1.0 if "bandwidth_gb_s" in on.measured else MEMORY.usual)
    flops = base.flops if device.type == "cpu" else on.vector["fp32"] * COMPUTE["loop"].usual
    return replace(
        base, units=on.units, bandwidth=bandwidth, flops=flops, launch_us=on.launch_us, cache_bytes=on.cache_bytes
    )

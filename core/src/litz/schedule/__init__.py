"""Scheduling: a Program into ordered kernels and calls in a legal order. Imports `litz.ir` and `litz.target` only."""

from .check import IllegalSchedule, check_schedule
from .estimate import CostModel
from .schedule import Kernel, Schedule, Step
from .schedule_program import core_program_passes, core_schedule_passes, make_schedule, unscheduled

__all__ = [
    "CostModel",
    "IllegalSchedule",
    "Kernel",
    "Schedule",
    "Step",
    "check_schedule",
    "core_program_passes",
    "core_schedule_passes",
    "make_schedule",
    "unscheduled",
]

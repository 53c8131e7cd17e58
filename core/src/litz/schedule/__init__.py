"""Scheduling: a Program into ordered kernels and calls with a plan for their memory. Imports `litz.ir` and `target`."""

from .check import IllegalSchedule, check_schedule
from .estimate import CostModel
from .schedule import Kernel, MemoryPlan, Schedule, Step
from .schedule_program import core_program_passes, core_schedule_passes, make_schedule, prepare, unscheduled

__all__ = [
    "CostModel",
    "IllegalSchedule",
    "Kernel",
    "MemoryPlan",
    "Schedule",
    "Step",
    "check_schedule",
    "core_program_passes",
    "core_schedule_passes",
    "make_schedule",
    "prepare",
    "unscheduled",
]

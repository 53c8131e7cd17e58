"""Scheduling: a Program into ordered kernels and calls with a plan for their memory. Imports `litz.ir` only."""

from .check import IllegalSchedule, check_schedule
from .estimate import H100, CostModel, Machine, cpu_machine, machine_of
from .schedule import Kernel, MemoryPlan, Schedule, Step
from .schedule_program import core_program_passes, core_schedule_passes, make_schedule, prepare, unscheduled

__all__ = [
    "H100",
    "CostModel",
    "IllegalSchedule",
    "Kernel",
    "Machine",
    "MemoryPlan",
    "Schedule",
    "Step",
    "check_schedule",
    "core_program_passes",
    "core_schedule_passes",
    "cpu_machine",
    "machine_of",
    "make_schedule",
    "prepare",
    "unscheduled",
]

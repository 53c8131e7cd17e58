"""Scheduling: a Program into ordered kernels and calls in a legal order. Imports `litz.ir` only."""

from .check import IllegalSchedule, check_schedule
from .estimate import H100, CostModel, Machine, cpu_machine, machine_of
from .schedule import Kernel, Schedule, Step
from .schedule_program import core_program_passes, core_schedule_passes, make_schedule, prepare, unscheduled

__all__ = [
    "H100",
    "CostModel",
    "IllegalSchedule",
    "Kernel",
    "Machine",
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

"""A Schedule into an ExecutionPlan, which the wrapper prints. Imports `litz.ir` and `litz.schedule` only."""

from .check import IllegalPlan, check_plan
from .make import plan_execution
from .plan import ExecutionPlan, MemoryPlan

__all__ = ["ExecutionPlan", "IllegalPlan", "MemoryPlan", "check_plan", "plan_execution"]

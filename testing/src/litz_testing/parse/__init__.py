"""Reading back what a Program, a Schedule and a KernelPlan print (docs/ir.md): tests of passes are text in, text out.

In: text. Out: the object that prints so. Errors: `ParseError`, with line and column. No text is evaluated.
"""

from .cursor import ParseError
from .kernel_plans import parse_kernel_plan
from .programs import parse_program
from .schedules import parse_schedule

__all__ = ["ParseError", "parse_kernel_plan", "parse_program", "parse_schedule"]

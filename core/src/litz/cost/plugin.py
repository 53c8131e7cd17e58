"""The cost model as core's built-in plugin: in, the hook's arguments; out, the roofline's estimate."""

from __future__ import annotations

from litz.ir import Operation, Program
from litz_plugins import Estimate, Target, hookimpl

from . import roofline


class Roofline:
    """Answers `litz_estimate_runtime` for every operation but a Collective, for which plugins know the network."""

    @hookimpl(trylast=True)
    def litz_estimate_runtime(self, operation: Operation, target: Target, program: Program) -> Estimate | None:
        """Returns core's estimate of an operation, by `litz.cost.roofline.estimate`."""
        return roofline.estimate(operation, target, program)

"""What a cut becomes: its planned peak, its time, and what holds the peak.

In: a forward and a backward, and the `ExecutionPlan` of each. Out: bytes and µs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from litz.capture.joint.nouns import Halves, JointGraph
from litz.capture.torch_api import origin_of
from litz.schedule.lifetimes import Lifetimes

from .cut import Modules
from .notes import standing

if TYPE_CHECKING:  # a plan comes by the hook, so nothing of its stage is imported
    from litz.execution.plan import ExecutionPlan


@dataclass(frozen=True)
class Held:
    """Memory that is alive at a peak. name: of the node that made it, or "inputs and results". origin: module and line,
    '' where nobody knows. saved: did the forward make it for the backward?"""

    name: str
    nbytes: int
    origin: str = ""
    saved: bool = False


@dataclass(frozen=True, eq=False)
class Candidate:
    """A way to cut a joint graph, planned. name: what makes it another, for the report. us: the time that it is thought
    to take, forward and backward."""

    name: str
    joint: JointGraph
    modules: Modules
    plans: tuple[ExecutionPlan, ExecutionPlan]
    us: float

    @cached_property
    def peaks(self) -> tuple[int, int]:
        """Returns the planned peaks of forward and backward, in bytes."""
        forward, backward = self.plans
        fixed = self._fixed
        return fixed[0] + max(forward.memory.held, default=0), fixed[1] + max(backward.memory.held, default=0)

    @property
    def peak(self) -> int:
        """Returns the larger planned peak."""
        return max(self.peaks)

    @cached_property
    def _fixed(self) -> tuple[int, int]:
        """Returns the bytes alive during all of the forward, and of the backward, which plans do not count."""
        constants = [
            sum(plan.program.hint(each.nbytes) for each in plan.program.buffers.values() if each.kind == "constant")
            for plan in self.plans
        ]
        forward, backward = standing(Halves(self.name, *self.modules, self.joint.forward_outputs))
        return forward + constants[0], backward + constants[1]

    def held(self) -> Sequence[Held]:
        """Returns what is alive at the peak, the largest first."""
        half = self.peaks.index(self.peak)
        plan, nodes = self.plans[half], {node.name: node for node in self.joint.nodes}
        lifetimes, profile = Lifetimes(plan.program, plan.steps), plan.memory.held
        found = [Held("inputs, results and constants", self._fixed[half])]
        if profile:
            step = profile.index(max(profile))
            names = [name for name in lifetimes.alive(step, plan.memory.reuse) if name not in plan.memory.arena]
            saved = self._saved if half == 0 else frozenset(lifetimes.dying())
            found += (_held(name, plan, nodes, name in saved) for name in names)
            found.append(Held("small temporaries in one allocation", plan.memory.arena_bytes))
        return sorted((each for each in found if each.nbytes), key=lambda each: -each.nbytes)

    @cached_property
    def _saved(self) -> frozenset[str]:
        """The buffers that the forward returns for the backward alone."""
        outputs = list(_buffers(self.plans[0].program.outputs))
        return frozenset(outputs[self.joint.forward_outputs :]) - frozenset(outputs[: self.joint.forward_outputs])


def _buffers(outputs: Sequence[Any]) -> Iterator[str]:
    for item in outputs:
        yield getattr(item, "buffer", "")


def _held(name: str, plan: ExecutionPlan, nodes: Mapping[str, torch.fx.Node], saved: bool) -> Held:
    program = plan.program
    node = nodes.get(name)
    origin = str(origin_of(node)) if node is not None else ""
    if not origin:
        steps = [step for step in plan.steps if name in step.writes]
        origin = next((str(each) for step in steps for each in program.provenance.of(step.origins)), "")
    return Held(name, program.hint(program.buffers[name].nbytes), origin, saved)


__all__ = ["Candidate", "Held"]

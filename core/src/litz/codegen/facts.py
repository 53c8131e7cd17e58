"""What recording a CUDA graph must know of a plan, as plain data: the runtime knows nothing of plans."""

from __future__ import annotations

from typing import Any

from litz.execution import ExecutionPlan
from litz.ir import TensorRef


def replay_facts(plan: ExecutionPlan) -> dict[str, Any]:
    """Returns the facts that `litz.runtime.cuda_graphs.replayed` needs.

    static, mutated: positions of inputs that do not move, and that the graph writes. recordable: all memory is on
    devices whose calls can be recorded. unbacked: sizes that only a run tells. returned_inputs: per output, the
    position of the input that it is.
    """
    program = plan.program
    inputs = [item if isinstance(item, str) else None for item in program.inputs]
    written = {name for step in plan.steps for name in step.writes}
    return {
        "static": frozenset(n for n, item in enumerate(inputs) if item in program.static_inputs),
        "mutated": frozenset(n for n, item in enumerate(inputs) if item in written),
        "recordable": all("recording" in target.abilities for target in plan.targets.values()),
        "unbacked": any(step.unbacked for step in plan.externs),
        "returned_inputs": tuple(
            inputs.index(out.buffer) if isinstance(out, TensorRef) and out.buffer in inputs else None
            for out in program.outputs
        ),
    }

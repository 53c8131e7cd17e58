"""What recording a CUDA graph must know of a plan, as plain data: the runtime knows nothing of plans."""

from __future__ import annotations

from typing import Any

from litz.execution import ExecutionPlan
from litz.ir import TensorRef


def replay_facts(plan: ExecutionPlan) -> dict[str, Any]:
    """Returns the facts that `litz.runtime.cuda_graphs.replayed` needs.

    static, mutated: positions of inputs that do not move, and that the graph writes. obstacle: why no recording can be
    made, '' where one can. returned_inputs: per output, the position of the input that it is.
    """
    program = plan.program
    inputs = [item if isinstance(item, str) else None for item in program.inputs]
    written = {name for step in plan.steps for name in step.writes}
    return {
        "static": frozenset(n for n, item in enumerate(inputs) if item in program.static_inputs),
        "mutated": frozenset(n for n, item in enumerate(inputs) if item in written),
        "obstacle": _obstacle(plan),
        "returned_inputs": tuple(
            inputs.index(out.buffer) if isinstance(out, TensorRef) and out.buffer in inputs else None
            for out in program.outputs
        ),
    }


def _obstacle(plan: ExecutionPlan) -> str:
    for step in plan.externs:
        if step.unbacked:
            return f"only a run tells the sizes that {step.name} ({step.target}) gives, and a recording would fix them"
    for device, target in plan.targets.items():
        if "recording" not in target.abilities:
            names = [name for name, buffer in plan.program.buffers.items() if buffer.device == device]
            return f"a recording cannot hold memory on {device} ({', '.join(names[:3]) or 'of a step'})"
    return ""

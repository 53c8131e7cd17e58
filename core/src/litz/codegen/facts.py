"""What recording a CUDA graph must know of a schedule, as plain data: the runtime knows nothing of schedules."""

from __future__ import annotations

from typing import Any

from litz.ir import TensorRef
from litz.schedule.schedule import Schedule
from litz.target import target_of
from litz_plugins import TargetOf


def replay_facts(schedule: Schedule, target_of: TargetOf = target_of) -> dict[str, Any]:
    """For `litz.runtime.cuda_graphs.replayed`.

    static, mutated: positions of inputs that do not move, and that the graph writes. recordable: all memory is on
    devices whose calls can be recorded. unbacked: sizes that only a run tells. returned_inputs: per output, the
    position of the input that it is.
    """
    program = schedule.program
    inputs = [item if isinstance(item, str) else None for item in program.inputs]
    devices = {buffer.device for buffer in program.buffers.values()}
    written = {name for step in schedule.steps for name in step.writes}
    return {
        "static": frozenset(n for n, item in enumerate(inputs) if item in program.static_inputs),
        "mutated": frozenset(n for n, item in enumerate(inputs) if item in written),
        "recordable": all("recording" in target_of(device).abilities for device in devices),
        "unbacked": any(step.unbacked for step in schedule.externs),
        "returned_inputs": tuple(
            inputs.index(out.buffer) if isinstance(out, TensorRef) and out.buffer in inputs else None
            for out in program.outputs
        ),
    }

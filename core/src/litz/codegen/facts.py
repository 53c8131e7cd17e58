"""What plugins that wrap a graph's entry are told of its plan, as plain data: the runtime knows nothing of plans."""

from __future__ import annotations

from types import FunctionType

import torch

from litz.execution import ExecutionPlan
from litz.execution.memory import shared_bytes
from litz.ir import Extern, KernelCall, TensorRef
from litz.regions import ON_HOST
from litz_plugins import EntryFacts


def entry_facts(plan: ExecutionPlan) -> EntryFacts:
    """Returns what is known of a graph's entry. The name of the graph is left out, as equal graphs share the facts.
    Bytes are those of `shared_bytes`."""
    program = plan.program
    peak, growth = shared_bytes(program, plan.steps, plan.memory)
    inputs = [item if isinstance(item, str) else None for item in program.inputs]
    written = {name for step in plan.steps for name in step.writes}
    # What is no op of torch's own (a collective, a user's) may work on another stream, which only an allocation knows.
    elsewhere = {name for step in plan.externs if not _is_torchs(step) for name in step.reads}
    if not all(map(_is_torchs, (step for region in plan.inner.values() for step in region.externs))):
        elsewhere = {*program.buffers}
    return EntryFacts(
        devices=tuple(sorted(map(str, plan.targets))),
        obstacle=_obstacle(plan),
        static=frozenset(n for n, item in enumerate(inputs) if item in program.static_inputs),
        mutated=frozenset(n for n, item in enumerate(inputs) if item in written),
        varying=frozenset(
            n for n, item in enumerate(inputs) if item is None or program.buffers[item].layout.free_symbols
        ),
        made=frozenset(n for n, item in enumerate(inputs) if item in program.made_inputs - elsewhere),
        returned_inputs=tuple(
            inputs.index(out.buffer) if isinstance(out, TensorRef) and out.buffer in inputs else None
            for out in program.outputs
        ),
        peak=peak,
        growth=growth,
    )


def _is_torchs(step: Extern) -> bool:
    """Returns whether a step is a kernel, or a call of torch's or litz's own."""
    if isinstance(step, KernelCall):
        return True
    if isinstance(step.target, torch._ops.OpOverload):
        return step.target.namespace in ("aten", "prims")
    return isinstance(step.target, FunctionType) and step.target.__module__.startswith("litz.")


def _obstacle(plan: ExecutionPlan) -> str:
    for step in (step for each in (plan, *plan.inner.values()) for step in each.externs):
        if step.unbacked:
            return f"only a run tells the sizes that {step.name} ({step.target}) gives, and a recording would fix them"
        if step.target in ON_HOST:
            decides = f"the host decides by a value what {step.name} ({step.target_name}) runs"
            return f"{decides}, and a recording would fix that"
    for device, target in (pair for each in (plan, *plan.inner.values()) for pair in each.targets.items()):
        if "recording" not in target.abilities:
            names = [name for name, buffer in plan.program.buffers.items() if buffer.device == device]
            return f"a recording cannot hold memory on {device} ({', '.join(names[:3]) or 'of a step'})"
    return ""

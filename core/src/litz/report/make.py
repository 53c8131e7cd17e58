"""Making a report. In: the nouns of a finished compile. Out: a CompileReport."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from litz.cost import count_work
from litz.execution import ExecutionPlan
from litz.ir import Collective, KernelCall, Loop, Program, Template, Wait
from litz.ir.communication import flights
from litz.ir.dtypes import short
from litz.ir.operation import storage_roots
from litz.schedule.implementations import ContractionRecord
from litz_plugins import Decision, Estimate, Gate, Target

from .report import CompileReport
from .step import Step, origin_fields


def make_report(
    graph: Any,
    plan: ExecutionPlan,
    compiled: Any = None,
    sources: Mapping[str, Any] | None = None,
    decisions: Iterable[Decision] = (),
    stage_seconds: Mapping[str, float] | None = None,
    plugins: Iterable[str] = (),
    *,
    contractions: Iterable[ContractionRecord] = (),
    attachments: Mapping[str, str] | None = None,
    gate: Gate | None = None,
) -> CompileReport:
    """Returns the report of one compile.

    graph: the captured Graph (only `kind` is read). plan: the ExecutionPlan. compiled: the CompiledGraph, None for a
    plan that was not built. sources: KernelSource by kernel. decisions: of all stages.
    contractions: what runs each. attachments: file name -> text from plugins, for the report's folder. gate: what could
    be vetoed.
    """
    program, memory = plan.program, plan.memory
    ended = flights(plan.steps, storage_roots(plan.steps)).ended
    steps = tuple(
        _step(step, program, plan.estimates.get(step.name), tuple(one.name for one in ended.get(number, ())))
        for number, step in enumerate(plan.steps)
    )
    paths = getattr(compiled, "kernels", None) or {}
    return CompileReport(
        name=program.name,
        kind=str(getattr(graph, "kind", "inference")),
        device=_device_text(plan.steps, plan.targets),
        steps=steps,
        loops_before=plan.loops_before,
        kernels_after=len(plan.kernels),
        externs=Counter(step.what for step in steps if step.kind != "kernel"),
        decisions=tuple(decisions),
        contractions=tuple(contractions),
        memory_peak_bytes=memory.peak_bytes,
        memory_total_bytes=memory.total_bytes,
        memory_reused=len(memory.reuse),
        memory_held=memory.held,
        stage_seconds=dict(stage_seconds or {}),
        wrapper_path=None if compiled is None else Path(compiled.path),
        wrapper_source="" if compiled is None else compiled.text,
        kernel_paths={name: Path(path) for name, path in paths.items()},
        kernel_sources={name: source.text for name, source in (sources or {}).items()},
        cache_hits=getattr(compiled, "cache_hits", 0),
        plugins=tuple(plugins),
        attachments=dict(attachments or {}),
        taken=() if gate is None else tuple(gate.taken),
        left_out=() if gate is None else tuple(gate.left_out),
        weighed={} if gate is None else dict(gate.weighed),
        plan=plan,
        program=program,
    )


def _step(step: Any, program: Program, estimate: Estimate | None, waits_for: tuple[str, ...]) -> Step:
    loop, work = getattr(step, "loop", None), count_work(step, program)
    came_from = program.provenance.of(step.origins)
    return Step(
        name=step.name,
        kind=_kind(step),
        device=str(step.device),
        what=step.target_name if loop is None else _ranges(loop, program),
        fused=tuple(getattr(step, "fused", ())),
        origins=tuple(step.origins),
        **origin_fields(came_from),
        reads=tuple(step.reads),
        writes=tuple(step.writes),
        estimate=estimate,
        flops=work.total_flops,
        bytes_read=work.bytes_read,
        bytes_written=work.bytes_written,
        waits_for=waits_for,
        group=getattr(step, "group", ""),
    )


def _kind(step: Any) -> str:
    for kind, name in ((Template, "template"), (KernelCall, "kernel"), (Collective, "collective"), (Wait, "wait")):
        if isinstance(step, kind):
            return name
    return "extern" if getattr(step, "loop", None) is None else "kernel"


def _ranges(loop: Loop, program: Program) -> str:
    """Returns a loop's output ranges, reduction ranges and the dtype that it stores first, such as "[128, 64 | 1024]
    f32"."""
    text = ", ".join(str(r.size) for r in loop.ranges)
    if loop.reduction_ranges:
        text += " | " + ", ".join(str(r.size) for r in loop.reduction_ranges)
    stored = program.buffers.get(loop.stores[0].buffer)
    return f"[{text}]" + (f" {short(stored.dtype)}" if stored is not None else "")


def _device_text(steps: Sequence[Any], targets: Mapping[Any, Target]) -> str:
    """Returns the first device that is not the CPU, and the target that stands for it."""
    devices = [step.device for step in steps]
    target = targets.get(next((device for device in devices if device.type != "cpu"), devices[0] if devices else None))
    if target is None:
        return str(devices[0]) if devices else "no device"
    if target.assumed:
        return f"{target} ({target.source})"  # "no GPU here: taken for ..."
    return f"{target} ({target.name})" if target.name else str(target)

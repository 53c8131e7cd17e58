"""Results of library calls: which are used, and which are looked at because they may lie otherwise than planned.

In: steps and their memory plan. Out: a `Result` for each tensor that a call makes and somebody uses, by the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch

from litz.ir import Collective, Extern, KernelCall, Program, Template, Wait
from litz.origins.plugin_call import PluginCall
from litz.schedule.schedule import Step
from litz_plugins import Target

from .out_variants import out_variant
from .plan import MemoryPlan, Result

_TRUSTED = ("mm", "addmm", "bmm", "baddbmm")
"""Templates whose results have the strides that fake tensors say, in every version and on every device."""

_TORCHS = frozenset({"aten", "prims", "c10d", "_c10d_functional", "_c10d_functional_autograd", "quantized", "inductor"})
"""Namespaces of ops that return what their fake kernels say, strides aside."""


def plan_results(
    program: Program, steps: Sequence[Step], memory: MemoryPlan, targets: Mapping[torch.device, Target]
) -> Mapping[str, tuple[Result, ...]]:
    """Returns, by the call's name, the results of each library call that allocates its results by itself."""
    calls = [step for step in steps if isinstance(step, Extern) and not isinstance(step, KernelCall)]
    seen = _seen(program, steps, memory)
    collectives = (call for call in calls if isinstance(call, Collective))
    in_flight = {name for call in collectives for name in {*call.outputs} - call.aliases.keys()}
    return {
        call.name: tuple(_results(call, program, seen, in_flight))
        for call in calls
        if out_variant(call, program, targets, memory) is None
    }


def _results(call: Extern, program: Program, seen: set[str], in_flight: set[str | None]) -> Iterator[Result]:
    # Results of other ops than torch's are checked in full.
    found = is_torchs(call.target) and torch.Tag.dynamic_output_shape in getattr(call.target, "tags", ())
    for position, name in enumerate(call.outputs):
        if name is not None and (program.readers.get(name) or name in program.output_buffers or len(call.outputs) == 1):
            strides: Literal["trusted", "inside", "every"] = "trusted"
            if _may_differ(call, name, program, in_flight):
                strides = "every" if name in seen else "inside"
            yield Result(name, strides, found, _sizes_found_out(call, position))


def _seen(program: Program, steps: Sequence[Step], memory: MemoryPlan) -> set[str]:
    """Buffers whose strides somebody sees, along dimensions of size 1 too: callers, calls, and buffers that go on as
    the same tensor. A kernel knows where everything lies."""
    seen = {*program.output_buffers, *memory.reuse.values()}
    for step in steps:
        if isinstance(step, Extern) and not isinstance(step, KernelCall):
            seen.update(step.reads, step.mutates, step.aliases, step.aliases.values())
    return seen


def _may_differ(call: Extern, name: str, program: Program, in_flight: set[str | None]) -> bool:
    """Returns whether a result may lie otherwise than the kernels after it expect. Communication writes its result
    until the wait for it, so that what might be copied is looked at there."""
    if isinstance(call, Collective) or (isinstance(call, Template) and call.kind in _TRUSTED):
        return False
    if isinstance(call, Wait):
        given = call.refs[0]
        return given.layout == program.buffers[given.buffer].layout and given.buffer in in_flight
    return name not in call.aliases


def is_torchs(target: Any) -> bool:
    """Returns whether the op returns what its fake kernel says, strides aside."""
    if isinstance(target, PluginCall):
        return False
    return not isinstance(target, torch._ops.OpOverload) or target.namespace in _TORCHS


def _sizes_found_out(call: Extern, output: int) -> frozenset[int]:
    """The dimensions of a result whose sizes the call binds as they are."""
    found = set()
    for item in call.unbacked:
        head, *rest = item.path if item.path and isinstance(item.path[0], int) else (0, *item.path)
        if head == output and len(rest) == 1 and isinstance(rest[0], tuple) and rest[0][0] == "size":
            found.add(rest[0][1])
    return frozenset(found)

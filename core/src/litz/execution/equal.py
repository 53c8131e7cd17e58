"""Do two plans run the same code? In: a plan and the sources of its kernels. Out: a key, equal for equal code."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import fields
from typing import Any

import sympy
import torch

from litz.ir import Extern, KernelCall, Opaque, Region, TensorRef
from litz.ir.arguments import fold
from litz.ir.operation import Unbacked
from litz.origins.plugin_call import PluginCall
from litz_plugins import KernelSource

from .plan import ExecutionPlan


def code_key(plan: ExecutionPlan, sources: Mapping[str, KernelSource]) -> Hashable:
    """Returns all of the plan that its wrapper shows, as a hashable key: kernels by their sources instead of their
    names, estimates and likely sizes left out."""
    program, memory = plan.program, plan.memory
    used = dict.fromkeys(name for step in plan.steps for name in (*step.reads, *step.writes))
    buffers = [program.buffers[name] for name in (*program.input_buffers, *used)]
    return (
        _key((program.inputs, program.outputs)),
        tuple((buffer.name, buffer.dtype, buffer.device, buffer.layout) for buffer in buffers),
        tuple(_step(step, sources) for step in plan.steps),
        (plan.inputs, plan.tensors, tuple(plan.results.items())),
        (memory.allocate, tuple(memory.arena.items()), memory.arena_bytes),
    )


def _step(step: Any, sources: Mapping[str, KernelSource]) -> Hashable:
    if isinstance(step, Extern) and not isinstance(step, KernelCall):
        names = [field.name for field in fields(step) if field.name != "origins"]
        return type(step), _key([getattr(step, name) for name in names])
    source = sources[step.name]
    return step.device, source.text, repr(source.settings), _key(source.arguments)


def _key(value: Any) -> Hashable:
    """A nested value as one that can be hashed."""
    return fold(value, _leaf, _container)


def _container(given: Any, parts: list[Any]) -> Hashable:
    return (type(given), *(given if isinstance(given, Mapping) else ()), *parts)


_SPELLED = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Constants that a wrapper spells, by which 0.0 is not -0.0 and 1 is not True."""


def _leaf(value: Any) -> Hashable:
    if isinstance(value, (sympy.Basic, TensorRef, Unbacked, PluginCall, Region)):
        return value
    if isinstance(value, Opaque):
        return value.name if value.name is not None else id(value.value)
    return repr(value) if isinstance(value, _SPELLED) else id(value)

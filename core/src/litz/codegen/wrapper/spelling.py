"""How a plan's buffers, arguments and devices are spelled in its wrapper."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import partial
from pkgutil import resolve_name
from typing import Any

import sympy
import torch

from litz.execution import ExecutionPlan
from litz.ir import Buffer, Extern, Opaque, Region, TensorRef
from litz.ir.arguments import fold

from ..call_names import CallNames
from ..sizes import python_text, tuple_text

SMALL = 1 << 17
"""Bytes below which the C library keeps freed memory by itself, so that the pool is not asked."""


class Spelling:
    """The wrapper's texts for the buffers and sizes that a plan names."""

    def __init__(self, plan: ExecutionPlan, names: CallNames) -> None:
        self.plan, self.program, self.names = plan, plan.program, names
        guarded = sorted(
            (target.type, target.index or 0, target.guard) for target in plan.targets.values() if target.guard
        )
        self.guard = guarded[0][2] if guarded else ""
        """What makes a device the current one around a call: kernels and some allocators go by that."""
        self.addressed = frozenset(plan.inputs.addressed)

    def address(self, name: str) -> str:
        """Returns the address of a buffer's first byte, as text, for a kernel on its device."""
        if name in self.addressed:
            return f"_at_{name}"
        offset = self.plan.memory.arena.get(name)
        return f"{name}.data_ptr()" if offset is None else f"_arena + {offset}" if offset else "_arena"

    def fresh(self, buffer: Buffer) -> str:
        """Returns the call that allocates a buffer. A device with a pool takes large buffers, and those of symbolic
        size, from the pool. Small ones of such a device, and those of the device that is current in the wrapper where
        its target names a function for them, are allocated without torch's argument parsing."""
        place = f"{tuple_text(buffer.layout.size)}, {tuple_text(buffer.layout.stride)}, {buffer.dtype}"
        target = self.plan.targets[buffer.device]
        if target.allocator == "pool":
            small = buffer.nbytes.is_Integer and int(buffer.nbytes) < SMALL
            return f"_empty_cpu({place})" if small else f"_pool.empty({place}, {python_text(buffer.nbytes)})"
        if target.allocator == "cuda" and target.guard == self.guard:
            return f"_empty_cuda({place})"
        if ":" in target.allocator and target.guard == self.guard:
            return f"{self.names.target(resolve_name(target.allocator))}({place})"
        return f"_empty({place}, {device_name(buffer.device)})"

    def call(self, extern: Extern, target: Any = None, out: str | None = None) -> str:
        """Returns the text of a library call. target: in place of the call's own. out: the buffer to write into."""
        name = self.names.target(target or extern.target)
        own = self.plan.inputs.returned & {*extern.aliases.values()}
        aligned = extern.reads_aligned and self.plan.targets[extern.device].aligned
        parts = [self._text(value, own, aligned) for value in extern.args] + ([f"out={out}"] if out is not None else [])
        parts += [f"{key}={self._text(value, own, aligned)}" for key, value in extern.kwargs.items()]
        return f"{name}({', '.join(parts)})"

    def output(self, value: Any) -> str:
        """Returns the text of what the wrapper returns: a view of an input is not one of the input's aligned copy, and
        has the input's version, by which autograd finds out that the input was written before the backward."""
        text = self._text(value, self.plan.inputs.returned)
        given = isinstance(value, TensorRef) and value.buffer in self.program.input_buffers
        return text.replace("_view(", "_part(", 1) if given else text

    @staticmethod
    def own(name: str) -> str:
        """Returns the wrapper's name for the input itself, where the plain name may be of an aligned copy."""
        return f"_own_{name}"

    def _text(self, value: Any, own: Collection[str] = (), aligned: bool = False) -> str:
        """own: inputs that are meant themselves, not their aligned copies. aligned: whether all tensors are aligned."""
        return str(fold(value, partial(self._leaf, own, aligned), _container))

    def _leaf(self, own: Collection[str], aligned: bool, value: Any) -> str:
        if isinstance(value, TensorRef):
            text = self._tensor(value, self.own(value.buffer) if value.buffer in own else value.buffer)
            return f"_aligned({text})" if aligned else text
        if isinstance(value, sympy.Basic):
            return python_text(value)
        if isinstance(value, Region):
            return value.name
        if isinstance(value, Opaque):
            return value.name if value.name is not None else self.names.constant(value.value)
        return self.names.constant(value)

    def _tensor(self, ref: TensorRef, name: str) -> str:
        if ref.is_all_of(self.program.buffers[ref.buffer]):
            return name
        size, stride = tuple_text(ref.layout.size), tuple_text(ref.layout.stride)
        return f"_view({name}, {size}, {stride}, {python_text(ref.layout.offset)})"


def _container(given: Any, parts: list[str]) -> str:
    if isinstance(given, Mapping):
        return "{" + ", ".join(f"{key!r}: {part}" for key, part in zip(given, parts, strict=True)) + "}"
    if isinstance(given, list):
        return f"[{', '.join(parts)}]"
    return f"({', '.join(parts)},)" if parts else "()"


def device_name(device: torch.device) -> str:
    """Returns the wrapper's name for a device: "cuda:0" is `_cuda_0`."""
    return "_" + re.sub(r"\W", "_", str(device))

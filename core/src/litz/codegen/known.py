"""Kernels that were generated before under other names: a model's layers repeat, and so do their kernels.

In: a Kernel and its context. Out: its `KernelSource`; for a kernel that differs from an earlier one of the graph in the
names of its buffers only, the earlier one's text with the names among its arguments exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from litz.ir import Program
from litz.ir.structure import buffers_of, structure_of
from litz_plugins import CodegenContext, KernelSource

if TYPE_CHECKING:
    from litz.schedule.schedule import Kernel


class Known:
    """The kernels of one graph that were generated so far, by structure."""

    def __init__(self) -> None:
        self._sources: dict[Hashable, tuple[KernelSource, tuple[str, ...]]] = {}

    def source(self, kernel: Kernel, context: CodegenContext, write: Callable[[Kernel], KernelSource]) -> KernelSource:
        """Returns the source of a kernel, without those beside it: from `write(kernel)`, or from an earlier call for an
        equal kernel, with the names of this one."""
        program: Program = context.program
        names = buffers_of((kernel.loop, *kernel.finish))
        key = (context.target, _key(kernel, program, names))
        if key not in self._sources:
            self._sources[key] = write(kernel), names
        source, theirs = self._sources[key]
        mine = dict(zip(theirs, names, strict=True))
        return replace(source, name=kernel.name, arguments=tuple(_renamed(item, mine) for item in source.arguments))


def _key(kernel: Kernel, program: Program, names: tuple[str, ...]) -> Hashable:
    number = {name: number for number, name in enumerate(names)}
    inplace = frozenset((number[over], number[under]) for over, under in kernel.inplace.items())
    unaligned = tuple(program.is_unaligned(name) for name in names)
    settings = tuple(sorted(kernel.settings.items()))
    return structure_of((kernel.loop, *kernel.finish), program), inplace, unaligned, settings


def _renamed(argument: Any, names: dict[str, str]) -> Any:
    return names.get(argument, argument) if isinstance(argument, str) else argument

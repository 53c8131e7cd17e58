"""A few operations of a program as a program of their own: what is measured, and what a kernel means.

In: a Program and some of its operations, or others that stand in for them. Out: a Program whose inputs are what these
read (the tensors first, then the sizes), and whose outputs are what others need of what they write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from litz.ir import Buffer, Extern, KernelCall, Layout, Loop, Operation, Program, Range, Store, TensorRef
from litz.ir.build import const
from litz.ir.index import loop_var
from litz.ir.interpret import interpret
from litz.ir.printer import sizes_of
from litz_plugins import KernelSource


def cut(program: Program, operations: Sequence[Operation], outputs: Iterable[str]) -> Program:
    """Returns the operations as a Program of the results `outputs`. What they read and do not write are inputs."""
    written: set[str] = set()
    inputs: list[str] = []
    for operation in operations:
        inputs += [name for name in operation.reads if name not in written and name not in inputs]
        written.update(operation.writes)
    touched = dict.fromkeys([*inputs, *(name for op in operations for name in op.writes)])
    buffers = {name: program.buffers[name] for name in touched}
    buffers |= {name: replace(buffers[name], kind="input") for name in inputs}
    buffers |= {name: replace(buffers[name], kind="temporary") for name in written if name not in inputs}
    returned = tuple(TensorRef(name, _whole(buffers[name])) for name in outputs)
    made = Program("problem", tuple(inputs), buffers, tuple(operations), returned)
    symbols = sizes_of(made)
    return replace(made, inputs=(*inputs, *symbols), hints={symbol: program.hint(symbol) for symbol in symbols})


def _whole(buffer: Buffer) -> Layout:
    """A reference to all of a buffer counts its offset from the buffer's own start."""
    return Layout(buffer.layout.size, buffer.layout.stride)


@dataclass(frozen=True)
class Meaning:
    """The function that a kernel computes, of the tensors and sizes of a cut-out program: run by the interpreter, on
    the device that the tensors are on. more: arguments that follow, which an earlier kernel computes from the others,
    and which save the kernel work. label: its name, where that is not what its operations are called."""

    program: Program
    more: tuple[TensorRef, ...] = ()
    label: str = ""

    @property
    def __name__(self) -> str:
        return self.label or " + ".join(_label(operation) for operation in self.program.operations)

    def __call__(self, *args: Any) -> tuple[torch.Tensor, ...]:
        """Runs the program on tensors and sizes, in the order of its inputs, and returns its outputs. Tensors with
        dimensions say on which device."""
        devices = {value.device for value in args if isinstance(value, torch.Tensor) and value.dim()}
        program = on_device(self.program, devices.pop()) if len(devices) == 1 else self.program
        return tuple(interpret(program, list(args[: len(args) - len(self.more)])))

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Returns the arguments of a KernelCall that stands for the program: references to its inputs, and sizes."""
        buffers, inputs = self.program.buffers, self.program.inputs
        own = (TensorRef(each, _whole(buffers[each])) if isinstance(each, str) else each for each in inputs)
        return (*own, *self.more)


def call_of(operation: Operation, meaning: Meaning, source: KernelSource) -> KernelCall:
    """Returns the call of a kernel, by the name of the contraction whose place it takes."""
    name, device, origins = operation.name, operation.device, operation.origins
    outputs = tuple(each.buffer for each in meaning.program.outputs if isinstance(each, TensorRef))
    return KernelCall(name, device, meaning, meaning.arguments, outputs=outputs, origins=origins, source=source)


def filled(room: Buffer) -> Loop:
    """Returns what a kernel means by a buffer that it has to itself, whose content means nothing after it: zeros."""
    ranges = tuple(Range(loop_var(dim), size) for dim, size in enumerate(room.layout.size))
    store = Store(room.name, tuple(r.var for r in ranges), const(0, room.dtype))
    return Loop(room.name, room.device, ranges, (), (store,))


def _label(operation: Operation) -> str:
    if isinstance(operation, Extern):
        return operation.target_name
    return " + ".join(operation.origins) or "loop"


def on_device(program: Program, device: torch.device) -> Program:
    """Returns the same program for another device."""
    return replace(
        program,
        buffers={name: replace(buffer, device=device) for name, buffer in program.buffers.items()},
        operations=tuple(replace(operation, device=device) for operation in program.operations),
    )

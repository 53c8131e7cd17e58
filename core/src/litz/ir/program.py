"""Program: buffers, and operations in data-flow order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from litz.logs.units import likely_value
from litz.origins.operations import Provenance

from .buffer import Buffer, TensorRef
from .index import Expr, Symbol
from .operation import Extern, Loop, Operation, storage_roots
from .printer import program_lines


@dataclass(frozen=True)
class Opaque:
    """An input or output that is neither a tensor nor a size (None, a generator, a script object): passed along.

    As an input it has a name; as an output it has the name of the input that it is, or a constant value.
    """

    name: str | None = None  # of the input; None for a constant
    value: Any = None  # the constant, of an output without a name


ProgramInput = str | Expr | Opaque
"""A buffer's name, the size expression that a SymInt input holds, or something passed along."""
ProgramOutput = TensorRef | Expr | Opaque | int | float | bool | None


@dataclass(frozen=True)
class Program:
    """The noun that lowering makes and scheduling takes.

    inputs: in the order of the graph's placeholders. hints: values of the size symbols seen at compile time, for costs
    only: deciding by one is wrong for other sizes. static_inputs: names of inputs whose memory does not move between
    calls. dying_inputs: names of those that nobody else holds, so that their memory is free after their last use (for
    costs only: see `litz.capture.graph`). owned_inputs: names of those of them whose memory may be written then.
    made_inputs: names of inputs of a backward that its forward made, for its user as well. constants: tensors that
    belong to the graph, by name. regions: the Programs that calls name among their arguments (`litz.regions`), by name.
    provenance: where the nodes come from that operations name as their origins: for people, and no part of what a
    program is.
    """

    name: str  # the graph's
    inputs: tuple[ProgramInput, ...]
    buffers: Mapping[str, Buffer]  # by name
    operations: tuple[Operation, ...]  # in data-flow order
    outputs: tuple[ProgramOutput, ...]  # what the program returns
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    hints: Mapping[Symbol, int] = field(default_factory=dict)
    static_inputs: frozenset[str] = frozenset()
    dying_inputs: frozenset[str] = frozenset()
    owned_inputs: frozenset[str] = frozenset()
    made_inputs: frozenset[str] = frozenset()
    regions: Mapping[str, Program] = field(default_factory=dict)
    provenance: Provenance = field(default_factory=Provenance, compare=False, repr=False)

    def hint(self, expr: int | Expr) -> int:
        """Returns a likely value of a size, which is exact where the shapes are static."""
        return expr if isinstance(expr, int) else likely_value(expr, self.hints)

    @cached_property
    def writers(self) -> Mapping[str, tuple[Operation, ...]]:
        """Returns the operations that write each buffer, by the buffer's name, in program order."""
        return self._by_buffer(lambda operation: operation.writes)

    @cached_property
    def readers(self) -> Mapping[str, tuple[Operation, ...]]:
        """Returns the operations that read each buffer, by the buffer's name, in program order."""
        return self._by_buffer(lambda operation: operation.reads)

    def maker(self, name: str) -> Loop | None:
        """Returns the Loop that alone writes a buffer; None where there is none, or something else writes too."""
        writers = self.writers.get(name, ())
        return writers[0] if len(writers) == 1 and isinstance(writers[0], Loop) else None

    def _by_buffer(self, names: Callable[[Operation], tuple[str, ...]]) -> Mapping[str, tuple[Operation, ...]]:
        found: dict[str, list[Operation]] = {name: [] for name in self.buffers}
        for operation in self.operations:
            for name in names(operation):
                found.setdefault(name, []).append(operation)
        return {name: tuple(operations) for name, operations in found.items()}

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Returns the position of each operation, by its name."""
        return {operation.name: position for position, operation in enumerate(self.operations)}

    @cached_property
    def roots(self) -> Mapping[str, str]:
        """Returns which buffers share memory (`litz.ir.operation.storage_roots`)."""
        return storage_roots(self.operations)

    def is_view(self, name: str) -> bool:
        """Returns whether the buffer lies in another buffer's memory, through an Extern's alias."""
        return self.roots.get(name, name) != name

    def is_unaligned(self, name: str) -> bool:
        """Returns whether a buffer may start elsewhere than at a multiple of 16 bytes. Views may, and inputs that are
        written: those that are only read are copied where they do. False for a buffer that is not the program's."""
        buffer = self.buffers.get(name)
        return buffer is not None and (self.is_view(name) or (buffer.kind == "input" and bool(self.writers[name])))

    @cached_property
    def output_buffers(self) -> frozenset[str]:
        """Returns the names of the buffers that the program returns."""
        return frozenset(output.buffer for output in self.outputs if isinstance(output, TensorRef))

    @property
    def input_buffers(self) -> Iterator[str]:
        """Returns the names of the inputs that are tensors; the others are sizes."""
        return (item for item in self.inputs if isinstance(item, str))

    @property
    def loops(self) -> tuple[Loop, ...]:
        """Returns the operations that are Loops, in program order."""
        return tuple(operation for operation in self.operations if isinstance(operation, Loop))

    @property
    def externs(self) -> tuple[Extern, ...]:
        """Returns the operations that are Externs (Templates and Collectives among them), in program order."""
        return tuple(operation for operation in self.operations if isinstance(operation, Extern))

    def __str__(self) -> str:
        return "\n".join(program_lines(self))

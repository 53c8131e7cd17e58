"""A problem: what is to be computed, on what, where. Equal problems are tuned once, wherever they stand in a model.

A Problem is plain data: hashable, JSON, no torch in it, the same for the same work in any process.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from litz.cache.disk import digest
from litz.contractions.subprogram import canonical
from litz.ir import Program
from litz.ir.dtypes import short
from litz.ir.operation import Operation, Template
from litz.ir.printer import operation_lines
from litz_plugins import Target


@dataclass(frozen=True)
class Operand:
    """A tensor by its sizes and strides (numbers, or text over n0, n1, ...) in elements, and its dtype's short name."""

    size: tuple[int | str, ...]
    stride: tuple[int | str, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.size)}".replace("'", "")


@dataclass(frozen=True)
class Problem:
    """kind: of the contraction. operands: what it and its epilogue read, then what they write. body: the operations as
    text with canonical names. hints: the likely value of each symbolic size. device: the driver's name."""

    kind: str
    operands: tuple[Operand, ...]
    body: tuple[str, ...]
    hints: tuple[int, ...]
    device: str

    def to_json(self) -> str:
        """Returns a text that is equal for equal problems, and that `from_json` reads."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Problem:
        """Returns the problem in a text. Raises ValueError, KeyError or TypeError for what is no problem."""
        data = json.loads(text)
        operands = tuple(Operand(tuple(o["size"]), tuple(o["stride"]), o["dtype"]) for o in data["operands"])
        return Problem(data["kind"], operands, tuple(data["body"]), tuple(data["hints"]), data["device"])

    @property
    def key(self) -> str:
        """Returns the digest of the problem, under which its measurements are kept."""
        return digest(self.to_json())

    def __str__(self) -> str:
        inputs = ", ".join(map(str, self.operands))
        users = f" and {len(self.body) - 1} lines that use it" if len(self.body) > 1 else ""
        sizes = ", ".join(f"n{number} = {hint}" for number, hint in enumerate(self.hints))
        return f"{self.kind}({inputs}){users}{f' with {sizes}' if sizes else ''}"


def describe(program: Program, target: Target) -> Problem:
    """Returns the problem that a cut-out program is (`subprogram.cut`)."""
    named = canonical(program)
    operands = tuple(
        Operand(tuple(map(_plain, b.layout.size)), tuple(map(_plain, b.layout.stride)), short(b.dtype))
        for b in named.buffers.values()
    )
    body = tuple(line.strip() for op in named.operations for line in operation_lines(op, named.buffers))
    return Problem(kind_of(program.operations[0]), operands, body, tuple(named.hints.values()), target.name)


def kind_of(operation: Operation) -> str:
    """Returns the kind of a contraction ("mm", "bmm", ...); "loop" or the op's name for anything else."""
    if isinstance(operation, Template):
        return operation.kind
    return getattr(operation, "target_name", "loop")


def _plain(expr: object) -> int | str:
    return int(expr) if getattr(expr, "is_Integer", False) else str(expr)  # type: ignore[call-overload]

"""A problem: what is to be computed, on what, where. Equal problems are tuned once, wherever they stand in a model.

A Problem is plain data: hashable, JSON, no torch in it, the same for the same work in any process.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from litz.cache.disk import digest


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

"""InputSpec: how to make one input tensor. The same spec always makes the same tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

Kind = str
"""What values an input has: "plain" (multiples of 1/4 from -4 to 4), "special" (those with infinities, NaN and -0),
or "index" (from 0 to `high` - 1)."""


@dataclass(frozen=True)
class InputSpec:
    """A tensor of random values.

    order: the dimensions from the outermost in memory to the innermost. steps: distance of neighbours along each
    dimension, in units of the dense one. expanded: dimensions of stride 0. offset: elements before the first.
    alias: an expression over earlier inputs ("x0[1:]"); the input is that view, and the other fields do not count.
    """

    size: tuple[int, ...]
    dtype: torch.dtype
    seed: int
    kind: Kind = "plain"
    high: int = 0
    order: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    expanded: tuple[int, ...] = ()
    offset: int = 0
    alias: str = ""

    @property
    def stride(self) -> tuple[int, ...]:
        """In elements."""
        found = [0] * len(self.size)
        step = 1
        for dim in reversed(self.order or tuple(range(len(self.size)))):
            if dim in self.expanded:
                continue
            step *= self.steps[dim] if self.steps else 1
            found[dim] = step
            step *= max(self.size[dim], 1)
        return tuple(found)

    @property
    def storage_size(self) -> int:
        """In elements."""
        if 0 in self.size:
            return self.offset
        last = sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))
        return self.offset + last + 1

    def resized(self, sizes: Mapping[int, int]) -> InputSpec:
        """With other extents, by the old ones."""
        from dataclasses import replace

        size = tuple(sizes.get(n, n) for n in self.size)
        return replace(self, size=size, high=sizes.get(self.high, self.high))

    @property
    def text(self) -> str:
        """A Python expression for the tensor."""
        if self.alias:
            return self.alias
        count, seeded = self.storage_size, f"torch.Generator().manual_seed({self.seed})"
        values = f"torch.randint(-16, 17, ({count},), generator={seeded})"
        if self.kind == "index":
            values = f"torch.randint(0, {max(self.high, 1)}, ({count},), generator={seeded})"
        elif self.dtype == torch.bool:
            values = f"({values} > 0)"
        elif self.dtype == torch.uint8:
            values = f"{values}.abs()"
        elif self.dtype.is_floating_point:
            values = f"({values} / 4)"
            if self.kind == "special":
                table = "torch.tensor([nan, inf, -inf, -0.0])"
                values = (
                    f"torch.cat([{table}, {values}])[torch.randint(0, {count + 4}, ({count},), generator={seeded})]"
                )
        return f"{values}.to({self.dtype}).as_strided({self.size}, {self.stride}, {self.offset})"


def make_inputs(specs: tuple[InputSpec, ...], double: bool = False) -> list[torch.Tensor]:
    """The tensors, in memory of their own. double: floating point as float64, with the same values and strides."""
    made: dict[str, torch.Tensor] = {}
    for number, spec in enumerate(specs):
        names = {"torch": torch, "nan": float("nan"), "inf": float("inf"), **made}
        value = eval(spec.text, names)
        if double and not spec.alias and value.dtype.is_floating_point:
            storage = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
            value = storage.double().as_strided(value.shape, value.stride(), value.storage_offset())
        made[f"x{number}"] = value
    return list(made.values())

"""InputSpec: how to make one input tensor. The same spec always makes the same tensor."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import torch

Kind = str
"""What values an input has: "plain" (multiples of 1/4 from -4 to 4), "special" (those with infinities, NaN and -0),
"index" (from 0 to `high` - 1), "negated" (plain ones that lie in memory with the other sign: the negative bit), or one
of `SCALES` (plain ones times that)."""
SCALES = {"tiny": 2.0**-73, "huge": 2.0**60}
"""Kinds of numbers that float32 holds well: squares of the tiny ones are below its smallest number, third powers of the
huge ones beyond its largest."""
SCALED = frozenset((torch.float32, torch.bfloat16, torch.float64))
"""The types that hold the scaled numbers."""
REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
"""The dtype of a complex number's two parts."""


@dataclass(frozen=True)
class InputSpec:
    """A tensor of random values.

    windows: the outermost dimension in memory moves by one element, so that its rows overlap.
    order: the dimensions from the outermost in memory to the innermost. steps: distance of neighbours along each
    dimension, in units of the dense one. expanded: dimensions of stride 0. offset: elements before the first. spare:
    elements after the last.
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
    windows: bool = False
    spare: int = 0

    @property
    def stride(self) -> tuple[int, ...]:
        """Returns the strides, in elements."""
        found = [0] * len(self.size)
        step = 1
        for dim in reversed(self.order or tuple(range(len(self.size)))):
            if dim in self.expanded:
                continue
            step *= self.steps[dim] if self.steps else 1
            found[dim] = step
            step *= max(self.size[dim], 1)
        outermost = (self.order or (0,))[0]
        if self.windows and self.size and self.size[outermost] > 1 and found[outermost]:
            found[outermost] = 1
        return tuple(found)

    @property
    def storage_size(self) -> int:
        """Returns the size of the storage, in elements."""
        if 0 in self.size:
            return self.offset + self.spare
        last = sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))
        return self.offset + last + 1 + self.spare

    def resized(self, sizes: Mapping[int, int]) -> InputSpec:
        """Returns the input with other extents. sizes: old extent -> new extent."""
        size = tuple(sizes.get(n, n) for n in self.size)
        return replace(self, size=size, high=sizes.get(self.high, self.high))

    @property
    def text(self) -> str:
        """Returns a Python expression for the tensor."""
        if self.alias:
            return self.alias
        count, seeded = self.storage_size, f"torch.Generator().manual_seed({self.seed})"
        values = f"torch.randint(-16, 17, ({count},), generator={seeded})"
        place = f"as_strided({self.size}, {self.stride}, {self.offset})"
        if self.kind == "negated" or self.dtype in REAL:
            pairs = f"torch.complex(*(torch.randint(-16, 17, (2, {count}), generator={seeded}) / 4))"
            if self.dtype in REAL:
                return f"{pairs}.to({self.dtype}).{place}"
            whole = next(name for name, real in REAL.items() if real == self.dtype)
            return f"{pairs}.to({whole}).{place}.conj().imag"
        if self.kind == "index":
            values = f"torch.randint(0, {max(self.high, 1)}, ({count},), generator={seeded})"
        elif self.dtype == torch.bool:
            values = f"({values} > 0)"
        elif self.dtype == torch.uint8:
            values = f"{values}.abs()"
        elif self.dtype.is_floating_point:
            values = f"({values} / 4)"
            if self.kind in SCALES:
                values = f"({values} * {SCALES[self.kind]!r})"
            if self.kind == "special":
                table = "torch.tensor([nan, inf, -inf, -0.0])"
                values = (
                    f"torch.cat([{table}, {values}])[torch.randint(0, {count + 4}, ({count},), generator={seeded})]"
                )
        return f"{values}.to({self.dtype}).{place}"


def in_one_memory(specs: tuple[InputSpec, ...], shift: int) -> tuple[InputSpec, ...]:
    """Returns tensors of these sizes and strides, those of one type as views of one memory, each of which begins
    `shift` elements after the one before. Those that are views already, or whose values are no plain ones, stay as they
    are."""
    groups: dict[torch.dtype, list[int]] = {}
    for number, spec in enumerate(specs):
        if spec.kind == "plain" and not spec.alias:
            groups.setdefault(spec.dtype, []).append(number)
    found = list(specs)
    for first, *rest in groups.values():
        base, end = specs[first], specs[first].storage_size
        for place, number in enumerate(rest, 1):
            spec = replace(specs[number], offset=base.offset + place * shift)
            found[number] = replace(spec, alias=f"x{first}.as_strided({spec.size}, {spec.stride}, {spec.offset})")
            end = max(end, spec.storage_size)
        found[first] = replace(base, spare=base.spare + end - base.storage_size)
    return tuple(found)


def in_own_memory(specs: tuple[InputSpec, ...]) -> tuple[InputSpec, ...]:
    """Returns what `in_one_memory` was given, but keeps the elements before the first and after the last."""
    return tuple(replace(spec, alias="") if "as_strided" in spec.alias else spec for spec in specs)


def lie_apart_alike(
    specs: tuple[InputSpec, ...], others: tuple[InputSpec, ...], written: Collection[int] | None = None
) -> bool:
    """Returns whether the same inputs have elements in common, while other inputs are views of one memory. written: the
    numbers of the inputs that a program writes; two that it only reads may have elements in common or not. None for
    all."""
    met, others_met = _meetings(specs, written), _meetings(others, written)
    return [s.alias for s in specs] != [s.alias for s in others] and met == others_met


def _meetings(specs: tuple[InputSpec, ...], written: Collection[int] | None) -> frozenset[tuple[int, int]]:
    """Pairs of inputs, by their numbers, that have an element in common, and one of which is written."""
    values = make_inputs(specs)
    places = [addresses(value) for value in values]
    counted = range(len(values)) if written is None else written
    pairs = ((a, b) for a, b in combinations(range(len(values)), 2) if a in counted or b in counted)
    return frozenset((a, b) for a, b in pairs if places[a] & places[b])


def addresses(value: torch.Tensor) -> set[int]:
    """Returns the addresses of all bytes of all elements."""
    found = torch.tensor(value.data_ptr())
    steps = [step * value.itemsize for step in value.stride()]
    for size, stride in [*zip(value.shape, steps, strict=True), (value.itemsize, 1)]:
        found = found.unsqueeze(-1) + torch.arange(size) * stride
    return set(found.flatten().tolist())


def is_inexact(dtype: torch.dtype) -> bool:
    """Returns whether numbers of the dtype are rounded."""
    return dtype.is_floating_point or dtype.is_complex


def double_of(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype that judges numbers of an inexact dtype."""
    return torch.complex128 if dtype.is_complex else torch.float64


def make_inputs(specs: tuple[InputSpec, ...], double: bool = False) -> list[torch.Tensor]:
    """Returns the tensors, in memory of their own. double: floating point as float64 and complex as complex128, with
    the same values and strides."""
    made: dict[str, torch.Tensor] = {}
    for number, spec in enumerate(specs):
        names = {"torch": torch, "nan": float("nan"), "inf": float("inf"), **made}
        if double and spec.kind == "negated" and not spec.alias:
            spec = replace(spec, dtype=torch.float64)
        value = eval(spec.text, names)
        if double and not spec.alias and spec.kind != "negated" and is_inexact(value.dtype):
            storage = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
            value = storage.to(double_of(value.dtype)).as_strided(value.shape, value.stride(), value.storage_offset())
        made[f"x{number}"] = value
    return list(made.values())

"""The table of what a statement may be, and what its makers draw from.

A maker takes a `Draw` and returns a `Draft` of a statement, or None where nothing fits. A maker need not be careful:
the reference run rejects what eager does not accept.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from .inputs import InputSpec
from .reference import Reference

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True)
class Draft:
    """A statement that has no target yet; the fields are `Statement`'s."""

    text: str
    exact: bool = False
    rough: bool = False
    writes: str = ""
    effect: bool = False
    """The statement has no result; it is there for what eager refuses or does."""
    unsized: bool = False
    centred: bool = False
    deep: bool = False


Maker = Callable[["Draw"], "Draft | None"]
Fits = Callable[[torch.Tensor], bool]
Place = tuple[str, int, int]
"""A variable, one of its dimensions, and how many elements that has."""
S = TypeVar("S")


@dataclass(frozen=True)
class Row:
    """One row of the table. static: only where sizes are numbers. mutates: changes memory. kind: "plain"; "data", for
    programs that dynamo captures; "nested", for those of them with a graph inside; "raising", for the last statement of
    a program that eager refuses."""

    maker: Maker
    weight: float
    static: bool
    mutates: bool
    kind: str = "plain"


TABLE: list[Row] = []


def operation(
    weight: float = 1.0, static: bool = False, mutates: bool = False, kind: str = "plain"
) -> Callable[[Maker], Maker]:
    """Returns a decorator that puts a maker into the table."""

    def register(maker: Maker) -> Maker:
        TABLE.append(Row(maker, weight, static, mutates, kind))
        return maker

    return register


def operation_on(
    subject: Callable[[Draw], S | None], weight: float = 1.0, **row: Any
) -> Callable[[Callable[[Draw, S], Draft | None]], Maker]:
    """Returns a decorator that enters a maker of a `subject` too, which makes nothing where there is no subject."""

    def register(make: Callable[[Draw, S], Draft | None]) -> Maker:
        def maker(draw: Draw) -> Draft | None:
            found = subject(draw)
            return None if found is None else make(draw, found)

        return operation(weight, **row)(maker)

    return register


def some(fits: Fits = lambda t: True, exact: bool = False) -> Callable[[Draw], str | None]:
    """Returns a function that draws a variable, by `Draw.any`."""
    return lambda draw: draw.any(fits, exact)


def place(fits: Fits, least: int = 0, exact: bool = False) -> Callable[[Draw], Place | None]:
    """Returns a function that draws a variable's dimension of `least` elements or more, with its extent."""

    def find(draw: Draw) -> Place | None:
        name = draw.any(fits, exact)
        dim = None if name is None else draw.dim(name, least)
        return None if name is None or dim is None else (name, dim, int(draw.value(name).shape[dim]))

    return find


def is_number(t: torch.Tensor) -> bool:
    """Returns whether the tensor holds numbers, not bools."""
    return t.dtype != torch.bool


def tuple_text(sizes: Sequence[str]) -> str:
    """Returns sizes as the text of a tuple."""
    return "(" + "".join(f"{size}, " for size in sizes) + ")"


@dataclass
class Draw:
    """Random choices among what a program has so far."""

    rng: random.Random
    reference: Reference
    pool: tuple[int, ...]
    """The extents that inputs may have."""
    dynamic: bool
    new_inputs: list[InputSpec] = field(default_factory=list)
    """Inputs that the draft at hand needs."""
    input_count: int = 0

    # Variables.

    @property
    def names(self) -> list[str]:
        """Returns the names of all variables so far."""
        return list(self.reference.eager)

    def value(self, name: str) -> torch.Tensor:
        """Returns what a variable holds in the reference run."""
        return self.reference.eager[name]

    def any(self, fits: Fits = lambda t: True, exact: bool = False) -> str | None:
        """Returns a variable that fits, a late one likelier, or None. exact: it must be free of rounding errors."""
        names = [n for n in self.names if fits(self.value(n)) and not (exact and not self.reference.is_exact(n))]
        if not names:
            return None
        recent = names[-4:]
        return self.rng.choice(recent if self.rng.random() < 0.6 else names)

    def partner(self, name: str, fits: Fits = lambda t: True, exact: bool = False) -> str:
        """Returns the text of what broadcasts with the variable: another one, a part of it, a new input."""
        shape = self.value(name).shape
        other = self.any(lambda t: fits(t) and _broadcasts(t.shape, shape), exact)
        roll = self.rng.random()
        if other is not None and other != name and roll < 0.75:
            return other
        if roll < 0.85 and shape and fits(self.value(name)):
            dim = self.rng.randrange(len(shape))
            return f"{name}.narrow({dim}, 0, 1)" if shape[dim] else f"{name}.flip({dim})"
        if roll < 0.95 and fits(self.value(name)):
            return name
        size = list(shape[self.rng.randint(0, len(shape)) :])
        size = [1 if self.rng.random() < 0.3 else n for n in size]
        dtype = self.rng.choice([d for d in (*FLOATS, *INTS, torch.bool) if fits(torch.empty(0, dtype=d))])
        return self.input(tuple(size), dtype)

    def input(self, size: Sequence[int], dtype: torch.dtype, kind: str = "plain", high: int = 0) -> str:
        """Adds an input, and returns its name."""
        self.new_inputs.append(
            InputSpec(tuple(int(n) for n in size), dtype, self.rng.randrange(10**6), kind=kind, high=high)
        )
        return f"x{self.input_count + len(self.new_inputs) - 1}"

    def index(self, size: Sequence[int], high: int) -> str:
        """Makes an input of int64 indices below `high`, which is not 0. Makers that want computed indices compute them
        themselves."""
        return self.input(size, torch.int64, "index", high)

    # Numbers.

    def dim(self, name: str, least: int = 0) -> int | None:
        """Returns a dimension of the variable with `least` elements or more; None if there is none."""
        dims = [d for d, n in enumerate(self.value(name).shape) if n >= least]
        return self.rng.choice(dims) if dims else None

    def dims(self, name: str) -> str:
        """Returns some dimensions, as text: "1" or "(0, 2)"."""
        rank = self.value(name).dim()
        chosen = sorted(self.rng.sample(range(rank), self.rng.randint(1, max(rank, 1)))) if rank else []
        if len(chosen) == 1 and self.rng.random() < 0.7:
            return str(chosen[0] - (rank if self.rng.random() < 0.3 else 0))
        return str(tuple(chosen))

    def size(self, name: str, dim: int) -> str:
        """Returns the extent of a dimension as text: a number, or an expression that holds for every size."""
        return f"{name}.size({dim})" if self.dynamic else str(self.value(name).shape[dim])

    def shape(self, name: str) -> list[str]:
        """Returns the extents of a variable as texts."""
        return [self.size(name, d) for d in range(self.value(name).dim())]

    def scalar(self, name: str) -> str:
        """Returns a number, as text, to combine with the variable."""
        if self.value(name).dtype.is_floating_point or self.rng.random() < 0.15:
            return self.rng.choice(["0.5", "2.0", "-1.5", "1", "-2", "0.25", "3", "-0.0", "0.1"])
        return self.rng.choice(["1", "2", "-1", "3", "5", "-4", "0"])

    def chance(self, p: float) -> bool:
        """Returns True with probability `p`."""
        return self.rng.random() < p


def _broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b), strict=False))


def load_table() -> list[Row]:
    """Returns the table, with all makers in it."""
    from . import (  # noqa: F401  (they register themselves)
        contracting,
        data,
        edges,
        indexing,
        layers,
        mutating,
        narrowing,
        nesting,
        pointwise,
        raising,
        reducing,
        views,
    )

    return TABLE

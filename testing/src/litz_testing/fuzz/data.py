"""Statements whose sizes come from data, for programs that dynamo captures: eager and compiled code find the sizes out
as they run. What a program is told of them with `torch._check` holds for its first inputs, and may break for others."""

from __future__ import annotations

import torch

from litz_testing.torch_compile import TORCH

from .operations import Draft, Draw, operation, operation_on, some, tuple_text
from .pointwise import NUMBER_USES, NUMBERS
from .program import NAMES
from .reference import REFUSALS

# The fake kernel of torch 2.11's `_unique2` gives inverse and counts the type of the input (litz refuses that at run
# time): there is nothing to compare.
UNIQUES = (
    ("torch.unique({0}, return_counts=True)[1]", "torch.unique({0}, return_inverse=True)[1]")
    if TORCH >= (2, 12)
    else ()
)
FOUND = (
    "{0}.nonzero()", "torch.nonzero({0} > 0)", "{0}[{0} > 0]", "torch.masked_select({0}, {0} != 1)",
    "torch.unique({0})", "{0}[torch.where({0} >= 0)]", "torch.argwhere({0})", *UNIQUES,
    "torch.bincount({0}.abs().flatten().to(torch.int64))",
    "torch.where({0} < 0)[0]", "{0}.flatten().repeat_interleave({0}.flatten().abs().to(torch.int64) % 3)",
)  # fmt: skip
FACTS = (
    *("{0}.size(0) == {1}",) * 4, "{0}.size(0) <= {1}", "{0}.size(0) >= {1}", "{0}.size(0) < {1} + 1",
    "{0}.size(0) != {1} + 1", "{0}.size(0) % 2 == {1} % 2", "{0}.numel() > {1} - 1",
)  # fmt: skip
SLICES = (
    "{0}[: int({1} % ({0}.size(0) + 1))]", "{0}[int({1} % {0}.size(0)) :]", "{0}.narrow(0, int({1} % {0}.size(0)), 1)",
    "{0}[int({1} % {0}.size(0))]", "{0}.new_zeros((int({1} % 9), 3))", "{0}.expand((int({1} % 4 + 1), *{0}.shape))",
)  # fmt: skip


_small = some(lambda t: t.dim() > 0 and 0 < t.numel() < 500 and not t.dtype.is_complex, exact=True)
"""A variable without rounding errors, of real numbers."""


def _unsized(draw: Draw) -> str | None:
    """A variable whose sizes come from data."""
    names = [n for n in draw.reference.unsized if draw.value(n).dim() > 0 and draw.value(n).size(0) < 200]
    return draw.rng.choice(names) if names else None


def _sum(name: str) -> str:
    """An integer that is read off a variable."""
    return f"{name}.abs().sum().to(torch.int64).item()"


@operation_on(_small, 30.0, kind="data")
def found(draw: Draw, name: str) -> Draft | None:
    """Makes a tensor whose size depends on the values of another (nonzero, masked_select, unique ...)."""
    text = draw.rng.choice(FOUND)
    if draw.value(name).dtype == torch.bool:
        text = draw.rng.choice(FOUND[:1])
    return Draft(text.format(name), exact=True, unsized=True)


@operation(40.0, kind="data")
def fact(draw: Draw) -> Draft | None:
    """Makes a check of a true fact about a size. What a check is about runs before whatever relies on the check."""
    name = _unsized(draw)
    if name is None and draw.chance(0.2):
        name = draw.any(lambda t: t.dim() > 0 and t.size(0) < 200)
    if name is None:
        return None
    text = draw.rng.choice(FACTS).format(name, draw.value(name).size(0))
    return Draft(f"torch._check({text})", effect=True)


TOLD = (
    "z * 2", "z.sum(0)", "z.flatten()[:{0}] * 2", "z.reshape({0}, -1) + 1", "z.select(0, {0} - 1)",
    "torch.cat([z, z])[{0}]", "z.new_zeros({0}) + z.flatten()[:{0}]", "z.flip(0)[:{0}]",
    "torch.ones({0}) * z.flatten()[{0} - 1]", "z.mT.contiguous()",
)  # fmt: skip
"""What a program does with a tensor `z` of which it was told the first extent."""


def told(draw: Draw, off: int = 0) -> Draft | None:
    """Makes a tensor of a size from data, a check of that size, which is wrong by `off`, and what relies on it."""
    name = _small(draw)
    if name is None:
        return None
    made = draw.rng.choice(FOUND if draw.value(name).dtype != torch.bool else FOUND[:1]).format(name)
    try:
        count = eval(made, dict(NAMES), dict(draw.reference.eager)).size(0) + off
    except REFUSALS:
        return None  # counts of what is infinite, say
    if count < 1:
        return None
    use = draw.rng.choice(TOLD).format(count)
    return Draft(f"(lambda z: [torch._check(z.size(0) == {count}), {use}][1])({made})", exact=True)


@operation(40.0, kind="data")
def told_truly(draw: Draw) -> Draft | None:
    """Makes a tensor whose size comes from data, and a check of the size that it has."""
    return told(draw)


@operation(6.0, kind="data")
def element(draw: Draw) -> Draft | None:
    """Picks a row by its number, which is there for the sizes that the program has at first."""
    name = _unsized(draw) or draw.any(lambda t: t.dim() > 0 and 0 < t.size(0) < 200)
    if name is None or draw.value(name).size(0) == 0:
        return None
    return Draft(f"{name}[{draw.rng.randrange(draw.value(name).size(0))}]")


@operation(10.0, kind="data")
def read(draw: Draw) -> Draft | None:
    """Uses Python's numbers that are read off a tensor, as sizes and as operands."""
    source, name = _small(draw), draw.any(lambda t: t.dim() > 0 and t.numel() < 500)
    if source is None or name is None:
        return None
    if draw.chance(0.5):
        return Draft(draw.rng.choice(SLICES).format(name, _sum(source)), unsized=True)
    number = draw.rng.choice(NUMBERS).format(_sum(source) if draw.chance(0.7) else f"{source}.double().sum().item()")
    return Draft(
        draw.rng.choice(NUMBER_USES).format(name, number, tuple_text(draw.shape(name))), exact=True, rough=True
    )

"""Statements with numbers alone, and with numbers at the edges of what a type holds."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .operations import Draft, Draw, operation, operation_on, some

# {0}, {1}: numbers.
ALONE = (
    "torch.ops.aten.add({0}, {1})", "torch.ops.aten.mul({0}, {1})", "torch.ops.aten.sub({0}, {1})",
    "torch.ops.aten.div({0}, {1})", "torch.ops.aten.add({0} * 0.5, {1})", "torch.ops.aten.eq({0}, {1})",
)  # fmt: skip

# {0}: a tensor; {1}: a number that its type may not hold.
REFUSED = (
    "torch.clamp({0}, max={1})", "torch.clamp({0}, min={1})", "{0}.masked_fill({0} > 0, {1})",
    "torch.full_like({0}, {1})", "torch.where({0} > 0, {0}, {1})", "torch.add({0}, {0}, alpha={1})",
    "torch.nn.functional.pad({0}, (1, 1), value={1})", "torch.nn.functional.threshold({0}, 0, {1})",
    "{0}.new_full((3,), {1})", "torch.index_fill({0}, 0, torch.tensor([0], device={0}.device), {1})",
)  # fmt: skip
TAKEN = (
    "{0} + {1}", "{0} * {1}", "{0} == {1}", "{0} < {1}", "{0} >= {1}", "torch.clamp({0}, max={1})",
    "{0}.masked_fill({0} > 0, {1})", "torch.full_like({0}, {1})",
)  # fmt: skip

EDGES: Mapping[torch.dtype, tuple[float, ...]] = {
    torch.uint8: (0, 255, 256, -1, -255, -256, 300, 1000),
    torch.int8: (-128, 127, 128, -129, 300, -1000),
    torch.int16: (-(2**15), 2**15 - 1, 2**15, 70000),
    torch.int32: (-(2**31), 2**31 - 1, 2**31, 2**40),
    torch.float16: (65504, -65504, 65536, 1e5, -1e9),
}
"""By type, numbers that it just holds, and some that it does not hold."""

_narrow = some(lambda t: t.dim() > 0 and t.numel() > 0 and t.dtype in EDGES, exact=True)


@operation(0.5)
def numbers_alone(draw: Draw) -> Draft | None:
    """Computes with numbers and no tensor."""
    first, second = (draw.rng.choice(["4", "3.3", "-2", "0.75", "7", "True"]) for _ in range(2))
    return Draft(draw.rng.choice(ALONE).format(first, second), rough=True)


@operation_on(_narrow, 0.7)
def numbers_that_fit(draw: Draw, name: str) -> Draft | None:
    """Computes with a number that the tensor's type just holds."""
    dtype = draw.value(name).dtype
    texts = TAKEN[2:] if dtype.is_floating_point else TAKEN  # such sums of a half type are rounded
    return Draft(draw.rng.choice(texts).format(name, draw.rng.choice(EDGES[dtype][:2])), exact=True)


@operation_on(_narrow, 3.0, kind="raising")
def numbers_too_large(draw: Draw, name: str) -> Draft | None:
    """Gives an op a number that the tensor's type may not hold."""
    number = draw.rng.choice(EDGES[draw.value(name).dtype])
    return Draft(draw.rng.choice(REFUSED).format(name, number))


__all__ = ["numbers_alone", "numbers_that_fit", "numbers_too_large"]

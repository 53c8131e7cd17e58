"""Where nearest-neighbour resampling finds the source of each output, by eager's own arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from litz.capture import torch_api


def step(n: int, out: int, scale: float | None) -> float:
    """Returns how far the source position moves from one output to the next, rounded to float32. n, out: elements of
    the input and of the output. scale: what the user gave, if anything."""
    return float(torch.tensor(1.0 / scale if scale is not None and scale > 0 else n / out, dtype=torch.float32))


def sources(n: int, out: int, scale: float | None, exact: bool) -> torch.Tensor:
    """Returns the source position of each output along one dimension. exact: of the op's "exact" variant."""
    steps = torch.arange(out, dtype=torch.float32) + (0.5 if exact else 0.0)
    return (steps * step(n, out, scale)).floor().to(torch.int64).clamp(max=n - 1)


def blocks(
    sizes: Sequence[int], outs: Sequence[int], scales: Sequence[float | None], exact: bool
) -> tuple[int, ...] | None:
    """Returns for each dimension the f for which the source of each output o is o // f; None if one has none."""
    given = scales or (None,) * len(sizes)
    found = [_block(n, out, scale, exact) for n, out, scale in zip(sizes, outs, given, strict=True)]
    return tuple(found) if all(found) else None


@cache
def _block(n: int, out: int, scale: float | None, exact: bool) -> int:
    """The f of one dimension; 0 if there is none."""
    if n == 0 or out % n != 0:
        return 0
    with torch_api.real_mode():  # also while a graph is traced
        wanted = torch.arange(out) // (out // n)
        return out // n if torch.equal(sources(n, out, scale, exact), wanted) else 0

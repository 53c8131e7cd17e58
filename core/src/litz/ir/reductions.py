"""The kinds of reduction and scan, a row each.

A `reduce` node takes its values over all the reduction ranges of its loop. `welford_mean` and `welford_m2` of the
same value are computed together, in one pass: the mean, and the sum of squared deviations from it (Welford, "Note on
a method for calculating corrected sums of squares and products", 1962). Their `_combine` twins join partial results
`(mean, m2, weight)`, as a split reduction leaves them (Chan, Golub and LeVeque, 1979).
`argmax` and `argmin` give the row-major position within the reduction ranges, the first of equals; NaN is the extreme.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Reduction:
    """How to reduce. `torch` takes tensors with the reduction as last dimension, and drops that dimension.

    `combine` is the kind that joins partial results of a split reduction, None if such a reduction is never split.
    """

    name: str
    arity: int
    result: Callable[[torch.dtype], torch.dtype]
    torch: Callable[..., torch.Tensor]
    combine: str | None


def _keep(dtype: torch.dtype) -> torch.dtype:
    return dtype


def _bool(dtype: torch.dtype) -> torch.dtype:
    return torch.bool


def _int64(dtype: torch.dtype) -> torch.dtype:
    return torch.int64


def _typed(function: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.any(-1) if x.dtype == torch.bool else function(x, -1, dtype=x.dtype)


def _mean(x: torch.Tensor) -> torch.Tensor:
    return x.mean(-1)


def _m2(x: torch.Tensor) -> torch.Tensor:
    return ((x - x.mean(-1, keepdim=True)) ** 2).sum(-1)


def _combined_mean(mean: torch.Tensor, m2: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (mean * weight).sum(-1) / weight.sum(-1)


def _combined_m2(mean: torch.Tensor, m2: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    centre = _combined_mean(mean, m2, weight).unsqueeze(-1)
    return (m2 + weight * (mean - centre) ** 2).sum(-1)


REDUCTIONS: Mapping[str, Reduction] = {
    row.name: row
    for row in (
        Reduction("sum", 1, _keep, _typed(torch.sum), "sum"),
        Reduction("prod", 1, _keep, _typed(torch.prod), "prod"),
        Reduction("max", 1, _keep, lambda x: x.amax(-1), "max"),
        Reduction("min", 1, _keep, lambda x: x.amin(-1), "min"),
        Reduction("any", 1, _bool, lambda x: x.any(-1), "any"),
        Reduction("all", 1, _bool, lambda x: x.all(-1), "all"),
        Reduction("argmax", 1, _int64, lambda x: x.argmax(-1), None),
        Reduction("argmin", 1, _int64, lambda x: x.argmin(-1), None),
        Reduction("welford_mean", 1, _keep, _mean, "welford_combine_mean"),
        Reduction("welford_m2", 1, _keep, _m2, "welford_combine_m2"),
        Reduction("welford_combine_mean", 3, _keep, _combined_mean, "welford_combine_mean"),
        Reduction("welford_combine_m2", 3, _keep, _combined_m2, "welford_combine_m2"),
    )
}

SCANS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: torch.cumsum(x, -1, dtype=x.dtype),
    "prod": lambda x: torch.cumprod(x, -1, dtype=x.dtype),
    "max": lambda x: torch.cummax(x, -1).values,
    "min": lambda x: torch.cummin(x, -1).values,
}
"""Inclusive scans along the last dimension."""

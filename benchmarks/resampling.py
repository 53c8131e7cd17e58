"""Resampling, and its gradient: what the decoders of image models do.

    python -m benchmarks.resampling [--dtype float32] [--device cuda] [--peers eager litz] [CASE ...]

The table is that of `benchmarks.function_cases`. `last` is channels last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from .function_cases import Case, print_table

MODES: Mapping[str, dict[str, Any]] = {
    "nearest 2": {"scale_factor": 2},
    "nearest 1.5": {"scale_factor": 1.5},
    "bilinear 2": {"scale_factor": 2, "mode": "bilinear"},
    "bilinear 4": {"scale_factor": 4, "mode": "bilinear"},
    "bicubic 2": {"scale_factor": 2, "mode": "bicubic"},
}
"""Case: the arguments of `F.interpolate`."""


def _resampled(options: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    return lambda x: F.interpolate(x, **options) * 2


CASES: Mapping[str, Case] = {
    f"{name}{order}": Case(_resampled(options), [(8, 320, 32, 32)], [(4, 64, 32, 32)], 1, bool(order))
    for name, options in MODES.items()
    for order in ("", " last")
}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    print_table("resampling", (__doc__ or "").splitlines()[0], CASES, argv)


if __name__ == "__main__":
    main()

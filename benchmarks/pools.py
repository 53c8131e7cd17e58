"""Max pools, alone and after a batch norm and a relu: what a stem of a convolutional network does.

    python -m benchmarks.pools [--dtype float32] [--device cuda] [--peers eager litz] [CASE ...]

The table is that of `benchmarks.function_cases`. A case is named by its window: the kernel, `s` and the stride, `p` and
the padding; `last` is channels last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch.nn.functional as F
from torch import Tensor

from .function_cases import Case, print_table

WINDOWS = {
    "3 s2 p1": ((3, 2, 1), 112),
    "2 s2": ((2, 2, 0), 112),
    "3 s2": ((3, 2, 0), 147),
    "3 s1 p1": ((3, 1, 1), 56),
    "5 s1 p2": ((5, 1, 2), 28),
}
"""By name: (kernel, stride, padding), and the input's height and width."""


def _pool(window: tuple[int, int, int]) -> Callable[[Tensor], Tensor]:
    return lambda x: F.max_pool2d(x, *window)


def _stem(window: tuple[int, int, int]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda x, w, b: F.max_pool2d(F.relu(F.batch_norm(x, None, None, w, b, True)), *window)


def _cases() -> dict[str, Case]:
    found = {}
    for name, (window, side) in WINDOWS.items():
        gpu, cpu = (64, 64, side, side), (8, 64, side, side)
        for order in ("", " last"):
            found[name + order] = Case(_pool(window), [gpu], [cpu], 1, bool(order))
        for order in ("", " last"):
            norm = [(64,), (64,)]
            found[f"stem {name}{order}"] = Case(_stem(window), [gpu, *norm], [cpu, *norm], 3, bool(order))
    return found


CASES: Mapping[str, Case] = _cases()


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    print_table("pools", (__doc__ or "").splitlines()[0], CASES, argv)


if __name__ == "__main__":
    main()

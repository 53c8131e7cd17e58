"""Group norms of images in channels last, and their gradients: what diffusion models and some ResNets do.

    python -m benchmarks.group_norms [--dtype bfloat16] [--device cuda] [--peers eager litz] [CASE ...]

The table is that of `benchmarks.function_cases`. A case is the channels of a group; all have scales, and end in a ReLU.
On a GPU eager's result lies channels first, on a CPU as the input does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch.nn.functional as F
from torch import Tensor

from .function_cases import Case, print_table

CHANNELS = 256


def _normed(channels: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda x, scale, shift: F.group_norm(x, CHANNELS // channels, scale, shift).relu()


CASES: Mapping[str, Case] = {
    f"{channels} channels": Case(
        _normed(channels),
        [(64, CHANNELS, 56, 56), (CHANNELS,), (CHANNELS,)],
        [(4, CHANNELS, 28, 28), (CHANNELS,), (CHANNELS,)],
        3,
        channels_last=True,
    )
    for channels in (2, 4, 8, 32)
}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    print_table("group_norms", (__doc__ or "").splitlines()[0], CASES, argv)


if __name__ == "__main__":
    main()

"""Convolutions for the template's kernel, a matrix in which each two values meet: see `support.gemm_matrix`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from litz_contractions.products.configs import Config
from support.gemm_functions import HALF, conv
from support.gemm_problem import SMALL, SPLIT, WIDE, Case
from support.pairwise import Axes, Row, Rule, matrix

F = torch.nn.functional

AXES: Axes = {
    "dimensions": ("2d", "1d", "3d"),
    "type": ("f32", "half"),
    "channels": ("few", "sixteen"),
    "taps": ("3-taps", "1-tap", "2-taps", "4-taps"),
    "stride": ("stride-1", "stride-2", "stride-3", "mixed-strides"),
    "padding": ("padded", "unpadded"),
    "dilation": ("dense", "dilated"),
    "groups": ("one-group", "grouped"),
    "direction": ("forwards", "transposed"),
    "memory": ("channels-first", "channels-last"),
    "bias": ("biased", "bare"),
    "users": ("alone", "relu"),
    "tile": ("small", "wide", "split"),
    "sizes": ("static", "dynamic"),
}
NEVER: Sequence[Rule] = (
    {"dimensions": "1d", "memory": "channels-last"},
    {"dimensions": ("1d", "3d"), "stride": "mixed-strides"},
    {"dimensions": ("1d", "3d"), "sizes": "dynamic"},
    {"dimensions": "3d", "taps": "4-taps"},  # longer than the images, which are small
    # A transposed convolution's result is a multiple of the stride, and its taps are side by side.
    {"direction": "transposed", "dilation": "dilated", "stride": ("stride-2", "stride-3", "mixed-strides")},
    # Parts of the depth need a number of tiles that is known.
    {"sizes": "dynamic", "tile": "split"},
)
STRIDES = {"stride-1": 1, "stride-2": 2, "stride-3": 3, "mixed-strides": 2}
TILES: Mapping[str, Config] = {"small": SMALL, "wide": WIDE, "split": SPLIT}
EXTENTS = {1: (20,), 2: (9, 7), 3: (5, 5, 6)}


def case_of(row: Row) -> Case:
    """The case of a row of the matrix."""
    dims = int(row["dimensions"][0])
    taps = int(row["taps"][0])
    groups = 2 if row["groups"] == "grouped" else 1
    inner = 16 if row["channels"] == "sixteen" else 5
    outer, backwards = 9, row["direction"] != "forwards"
    longest = STRIDES[row["stride"]]
    stride = (1, *[longest] * (dims - 1)) if row["stride"] == "mixed-strides" else (longest,) * dims
    padding = int(row["padding"] == "padded" and taps > 1)
    given: dict[str, Any] = {
        "stride": stride,
        "padding": padding,
        "dilation": 2 if row["dilation"] == "dilated" else 1,
        "groups": groups,
    }
    if backwards:
        given["output_padding"] = tuple(-(taps - 2 * padding) % each for each in stride)
    function = getattr(F, f"conv{'_transpose' * backwards}{dims}d")
    image = (2, groups * inner, *EXTENTS[dims])
    first, second = (groups * inner, outer) if backwards else (groups * outer, inner)
    weight = (first, second, *[taps] * dims)
    sizes = [image, weight, *([(groups * outer,)] if row["bias"] == "biased" else [])]
    dtype = torch.float16 if row["type"] == "half" else torch.float32

    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        y = function(x, w, b, **given)
        return y.relu() if row["users"] == "relu" else y

    made = conv(*sizes, dtype=dtype, last=row["memory"] == "channels-last")

    def make() -> Sequence[torch.Tensor]:
        tensors = made()
        if row["sizes"] == "dynamic":
            torch._dynamo.mark_dynamic(tensors[0], (2, 3))
        return tensors

    return Case(
        f,
        make,
        TILES[row["tile"]],
        dynamic=None if row["sizes"] == "dynamic" else False,
        tolerance=HALF if row["type"] == "half" else 1e-5,
    )


ROWS = matrix(AXES, NEVER)
FIRST = 8
"""Rows that CI runs."""
ORDINARY_ROW = {axis: values[0] for axis, values in AXES.items()}
CALLED: Mapping[str, Row] = {
    "conv1x1-last": {"taps": "1-tap", "memory": "channels-last"},
    "conv3x3-last-relu": {"memory": "channels-last", "users": "relu", "channels": "sixteen"},
    "conv-taps-of-one-step": {"channels": "sixteen", "taps": "2-taps"},
    "conv3x3-dynamic": {"bias": "bare", "sizes": "dynamic"},
    "conv-grouped-last": {"groups": "grouped", "memory": "channels-last", "channels": "sixteen", "stride": "stride-2"},
    "conv-transposed-odd-taps": {"direction": "transposed", "stride": "stride-2", "users": "relu"},
}
"""Rows that tests call by name, nearly ordinary ones."""
CONVOLUTIONS = {
    **{f"conv-{name}": case_of(row) for name, row in ROWS.items()},
    **{name: case_of({**ORDINARY_ROW, **row}) for name, row in CALLED.items()},
}

__all__ = ["AXES", "CALLED", "CONVOLUTIONS", "FIRST", "NEVER", "ROWS", "case_of"]

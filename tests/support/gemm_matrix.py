"""Matrix products for the templates' kernels: a matrix in which each two values meet, each case as a function, its
inputs and a configuration. Convolutions have theirs in `support.convolution_matrix`.

`python -m support.gemm_matrix SHARD SHARDS` (with TRITON_INTERPRET=1) runs the kernels in Triton's interpreter against
float64 and prints, for each case, "" or what went wrong, as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from litz_contractions.products.configs import Config
from support.convolution_matrix import CONVOLUTIONS
from support.convolution_matrix import FIRST as FIRST_CONVOLUTIONS
from support.convolution_matrix import ROWS as CONVOLUTION_ROWS
from support.gemm_functions import (
    HALF,
    INT4,
    OF_INT4,
    by_blocks,
    in_blocks,
    int4,
    linear_int4,
    made_and_scaled,
    mm,
    mm_mm,
    quantised,
    scaled,
    scaled_exactly,
    scaled_mm,
    scaled_v2,
)
from support.gemm_problem import SMALL, SPLIT, TMA, WIDE, Case
from support.interpreted import print_share
from support.kernel_programs import randn
from support.pairwise import Axes, Row, Rule, matrix
from support.versions import OLD_TORCH

F = torch.nn.functional
Tensor = torch.Tensor

AXES: Axes = {
    "type": ("f32", "bf16", "fp16"),
    "lengths": ("odd", "even", "aligned", "one-row", "one-column", "one-deep", "nothing-deep", "long"),
    "batch": ("one", "three", "activation-of-three", "shared-right", "shared-left"),
    "left": ("in-rows", "left-transposed", "left-sliced", "left-strided"),
    "right": ("right-in-rows", "right-transposed", "right-sliced", "right-strided"),
    "made": ("as-is", "of-exp", "of-exp-both", "gathered", "of-cast", "of-int8"),
    "bias": ("no-bias", "row-bias", "column-bias", "matrix-bias", "view-bias", "factors"),
    "users": ("alone", "relu", "three-users", "transposed-user", "cast-user", "residual"),
    "tile": ("small", "wide", "split", "tma"),
    "sizes": ("static", "dynamic"),
}
"""lengths: rows, depth and columns; "aligned": of 16 bytes, and no tile divides them; "long": of several parts.
made: how operands come about, as part of the kernel."""
DYNAMIC_TOO = {
    "type": ("f32",),
    "lengths": ("odd", "even", "long"),
    "batch": ("one", "three", "activation-of-three"),
    "left": ("in-rows",),
    "right": ("right-in-rows", "right-transposed"),
    "made": ("as-is", "of-exp", "gathered"),
    "bias": ("no-bias", "row-bias"),
    "users": ("alone", "relu", "three-users"),
    "tile": ("small", "split"),
}
"""What dynamic sizes are crossed with: a trace of them takes several times as long."""


def others(axis: str, *values: str) -> list[str]:
    """The other values of an axis."""
    return [value for value in AXES[axis] if value not in values]


NEVER: Sequence[Rule] = (
    *({"sizes": "dynamic", axis: others(axis, *crossed)} for axis, crossed in DYNAMIC_TOO.items()),
    # The accelerator's loads: of operands as they lie, in rows that begin at multiples of 16 bytes.
    {"tile": "tma", "lengths": others("lengths", "even", "aligned")},
    {"tile": "tma", "made": others("made", "as-is")},
    # What makes no operand at all, or one of several products' operands, stays a loop.
    {"lengths": "nothing-deep", "made": others("made", "as-is")},
    {"batch": others("batch", "one"), "made": ("gathered", "of-int8")},
    {"batch": ("shared-right", "shared-left"), "made": ("of-exp", "of-exp-both", "of-cast")},
    # A linear layer's bias is of a row; its activation is copied where it does not lie in rows.
    {"batch": "activation-of-three", "bias": others("bias", "no-bias", "row-bias")},
    {"batch": "activation-of-three", "left": others("left", "in-rows")},
    {"batch": "activation-of-three", "users": "transposed-user"},
    {"batch": "shared-left", "left": ("left-sliced", "left-strided")},
    {"batch": "shared-right", "right": ("right-sliced", "right-strided")},
    # Parts of a depth that only a run knows are added up by a loop.
    {"sizes": "dynamic", "tile": "split", "users": others("users", "alone")},
    {"sizes": "dynamic", "tile": "split", "made": others("made", "as-is")},
    # Triton's interpreter cuts bfloat16 off: of numbers that are all positive, each is too small.
    {"type": "bf16", "made": "of-exp-both"},
)
TYPES = {"f32": (torch.float32, 1e-5), "bf16": (torch.bfloat16, 1.2e-2), "fp16": (torch.float16, HALF)}
"""With the error that is allowed."""
LENGTHS: Mapping[str, tuple[int, int, int]] = {
    **{"odd": (37, 45, 29), "even": (64, 64, 64), "aligned": (72, 40, 88), "one-row": (1, 70, 33)},
    **{"one-column": (50, 70, 1), "one-deep": (20, 1, 30), "nothing-deep": (20, 0, 30), "long": (20, 300, 40)},
}
TILES = {"small": SMALL, "wide": WIDE, "split": SPLIT, "tma": TMA}
BATCHED = ("three", "shared-right", "shared-left")


def as_it_lies(how: str, *size: int, dtype: torch.dtype) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """A tensor, and how a matrix of that size is seen in it."""
    *outer, rows, columns = size
    if how == "transposed":
        return randn(*outer, columns, rows, dtype=dtype), lambda x: x.transpose(-1, -2)
    if how == "sliced":
        wide = randn(*outer, rows + 3, columns + 16, dtype=dtype)
        return wide, lambda x: x[..., 2 : 2 + rows, 8 : 8 + columns]
    if how == "strided":
        apart = -(-(rows + 1) // 8) * 8
        stride = (*(apart * columns for _ in outer), 1, apart)
        return randn(*size, dtype=dtype, stride=stride), lambda x: x
    return randn(*size, dtype=dtype), lambda x: x


def case_of(row: Row) -> Case:
    """The case of a row of the matrix."""
    dtype, tolerance = TYPES[row["type"]]
    m, k, n = LENGTHS[row["lengths"]]
    batch, made, bias, users = row["batch"], row["made"], row["bias"], row["users"]
    outer = () if batch == "one" else (3,)
    stored_rows = max(1, m // 2) if made == "gathered" else m
    left = (*((1,) if batch == "shared-left" else outer), stored_rows, k)
    right = (*(() if batch == "activation-of-three" else (1,) if batch == "shared-right" else outer), k, n)
    narrow = torch.bfloat16 if dtype == torch.float32 else torch.float32
    types = narrow if made == "of-cast" else dtype, torch.int8 if made == "of-int8" else dtype
    lies = row["left"].removeprefix("left-"), row["right"].removeprefix("right-")

    def sees(how: str, size: tuple[int, ...], own: torch.dtype) -> Callable[[Tensor], Tensor]:
        return as_it_lies(how, *size, dtype=own)[1]

    views = sees(lies[0], left, types[0]), sees(lies[1], right, types[1])
    biases: Mapping[str, tuple[int, ...]] = {
        **{"row-bias": (n,), "factors": (n,), "column-bias": (m, 1), "matrix-bias": (m, n)},
        **{"view-bias": (m + 5, n + 4)},
    }
    besides: Mapping[str, tuple[int, ...]] = {
        **{"three-users": (m, 1), "residual": (*outer, m, n)},
    }

    def make() -> tuple[Tensor, ...]:
        found = [as_it_lies(how, *size, dtype=own)[0] for how, size, own in zip(lies, (left, right), types)]
        found += [torch.randint(0, stored_rows, (m,))] if made == "gathered" else []
        found += [randn(n, dtype=dtype)] if made == "of-int8" else []
        found += [randn(*size, dtype=dtype) for size in (biases.get(bias), besides.get(users)) if size]
        return tuple(found)

    def f(left: Tensor, right: Tensor, *more: Tensor) -> Any:
        rest = iter(more)
        a, b = views[0](left), views[1](right)
        if made == "gathered":
            a = a[next(rest)]
        elif made == "of-int8":
            b = b.to(a.dtype) * next(rest)
        elif made == "of-cast":
            a = a.to(b.dtype)
        elif made != "as-is":
            a, b = a.exp(), b.exp() if made == "of-exp-both" else b
        y = multiplied(a, b, next(rest) if bias in biases else None)
        return used(y, next(rest) if users in besides else None)

    def multiplied(a: Tensor, b: Tensor, c: Tensor | None) -> Tensor:
        a, b = (x.expand(3, -1, -1) if batch in BATCHED and x.shape[0] == 1 else x for x in (a, b))
        if bias == "view-bias" and c is not None:
            c = c[2 : 2 + m, 1 : 1 + n]
        if batch == "activation-of-three":
            return F.linear(a, b.t(), c)
        if c is None:
            return a @ b
        factors = {"beta": 0.5, "alpha": -2} if bias == "factors" else {}
        return torch.baddbmm(c, a, b, **factors) if batch in BATCHED else torch.addmm(c, a, b, **factors)

    def used(y: Tensor, other: Tensor | None) -> Any:
        match users:
            case "relu":
                return y.relu()
            case "three-users":
                return y, y.relu(), (y + other).sigmoid()
            case "transposed-user":
                return y.transpose(-1, -2).contiguous().abs()
            case "cast-user":
                return y.float() * 0.5
            case "residual":
                return y + other
        return y

    return Case(
        f,
        make,
        TILES[row["tile"]],
        dynamic=row["sizes"] == "dynamic",
        tolerance=tolerance,
        left=int(row["sizes"] == "dynamic" and row["tile"] == "split"),
    )


ROWS = matrix(AXES, NEVER)
FIRST = 22
"""Rows that CI runs. They have all values, and seven of ten pairs."""
ORDINARY_ROW = {axis: values[0] for axis, values in AXES.items()}
CALLED: Mapping[str, Row] = {
    "mm": {"lengths": "even"},
    "mm-odd": {},
    "mm-dynamic": {"sizes": "dynamic"},
    "mm-sliced": {"left": "left-sliced", "right": "right-sliced"},
    "bmm": {"batch": "three"},
    "bmm-dynamic": {"batch": "three", "sizes": "dynamic"},
    "mm-three-users": {"users": "three-users"},
    "mm-rows-gathered": {"made": "gathered"},
    "mm-dynamic-split": {"sizes": "dynamic", "tile": "split", "lengths": "long"},
    "addmm-view": {"bias": "view-bias"},
    "bmm-split": {"batch": "three", "tile": "split", "lengths": "long"},
    "bmm-strided": {"batch": "three", "left": "left-strided", "right": "right-strided"},
    "linear-dynamic-gelu": {"batch": "activation-of-three", "right": "right-transposed", "bias": "row-bias"}
    | {"users": "relu", "sizes": "dynamic"},
    "linear-of-int8": {"type": "bf16", "made": "of-int8", "right": "right-transposed", "tile": "wide"},
    "of-cast": {"type": "bf16", "made": "of-cast"},
    "of-dynamic": {"made": "of-exp", "sizes": "dynamic"},
    "tma": {"lengths": "even", "tile": "tma"},
    "tma-transposed": {"lengths": "aligned", "tile": "tma", "left": "left-transposed", "right": "right-transposed"},
    "tma-strided": {"lengths": "aligned", "tile": "tma", "left": "left-sliced"},
    "tma-batch": {"lengths": "aligned", "tile": "tma", "batch": "three", "right": "right-transposed", "users": "relu"},
    "tma-batch-expanded": {"lengths": "aligned", "tile": "tma", "batch": "shared-right"},
}
"""Rows that tests call by name, nearly ordinary ones."""
OF_FLOAT8: dict[str, Any] = {"tolerance": HALF, "reference": scaled_exactly}
OTHERS: Mapping[str, Case] = {
    "mm-same-twice": Case(lambda a: a @ a, lambda: (randn(40, 40),), SMALL),
    "mm-expanded": Case(lambda a, b: a.expand(20, 33) @ b, lambda: (randn(1, 33), randn(33, 40)), SMALL),
    "mm-mm": Case(lambda a, b, c, d: a @ b + c @ d, mm_mm(), SMALL),
    "mm-mm-bf16": Case(lambda a, b, c, d: (a @ b + c @ d).relu() * 2, mm_mm(torch.bfloat16), SMALL, tolerance=HALF),
    "mm-mm-strided": Case(
        lambda a, b, c, d: a @ b + c @ d,
        lambda: (
            *(randn(57, 33, stride=(1, 64)), randn(33, 20, stride=(20, 1))),
            *(randn(57, 33, stride=(1, 64)), randn(33, 20, stride=(20, 1))),
        ),
        SMALL,
    ),
    "mm-mm-both-used": Case(lambda a, b, c, d: ((x := a @ b), (y := c @ d), x + y)[1:], mm_mm(), SMALL, left=1),
    "int-mm": Case(torch._int_mm, lambda: (randn(40, 48, dtype=torch.int8), randn(48, 56, dtype=torch.int8)), SMALL),
    "int-mm-scaled": Case(
        lambda a, b, s: torch._int_mm(a, b).float() * s,
        lambda: (randn(40, 48, dtype=torch.int8), randn(48, 56, dtype=torch.int8), randn(56)),
        SMALL,
    ),
    "mm-unfused": Case(lambda a, b: (a @ b).relu(), mm(33, 40, 50), SMALL, fuse=False, left=1),
    "mm-gelu-of-a-row": Case(
        lambda a, b, c: F.gelu(torch.addmm(c[:1], a, b)) * c[:33, None],
        lambda: (randn(33, 40), randn(40, 50), randn(50)),
        SMALL,
    ),
    "mm-softmax": Case(lambda a, b: torch.softmax(a @ b, -1), mm(37, 40, 20), SMALL, rows=True),
    "tma-softmax": Case(lambda a, b: torch.softmax(a @ b, -1), mm(70, 44, 28), TMA, rows=True),
    "linear-layernorm": Case(
        lambda x, w, b, s: F.layer_norm(F.linear(x, w, b), (24,), s, None, 1e-3),
        lambda: (randn(37, 40), randn(24, 40), randn(24), randn(24)),
        SMALL,
        rows=True,
    ),
    "bmm-sum-of-squares": Case(
        lambda a, b: ((y := torch.bmm(a, b)).square().sum(-1), y)[0],
        lambda: (randn(3, 33, 40), randn(3, 40, 32)),
        SMALL,
        rows=True,
    ),
    "linear-of-int4": Case(linear_int4(32), int4(3, 70, 256, 32), INT4, **OF_INT4),
    "linear-of-int4-split": Case(linear_int4(128), int4(1, 40, 512, 128), replace(INT4, split=3), **OF_INT4),
    "linear-of-int4-short": Case(linear_int4(12), int4(17, 40, 84, 12), INT4, **OF_INT4),
    "scaled-mm": Case(scaled_mm, scaled((1,), (1,)), SMALL, **OF_FLOAT8),
    "scaled-mm-rows": Case(scaled_mm, scaled((64, 1), (1, 96)), SMALL, **OF_FLOAT8),
    "scaled-mm-f8-out": Case(
        quantised,
        scaled((64, 1), (1, 96)),
        SMALL,
        tolerance=5e-2,
        reference=lambda *t: F.silu(scaled_exactly(*t)) / 8,
    ),
    "scaled-mm-made": Case(  # the activation is quantised as it is loaded
        made_and_scaled,
        lambda: (randn(40, 80, dtype=torch.bfloat16), torch.rand(()) + 1, randn(48, 80).to(torch.float8_e4m3fn).t()),
        SMALL,
        left=1,
        tolerance=5e-2,
        reference=lambda x, s, w: F.relu(x @ w) * s,
    ),
    "scaled-mm-v2": Case(scaled_v2(0), scaled((), ()), SMALL, **OF_FLOAT8),
    "scaled-mm-v2-rows": Case(scaled_v2(1), scaled((64, 1), (1, 96)), SMALL, **OF_FLOAT8),
    **{
        f"scaled-mm-{name}": Case(scaled_mm, make, config, tolerance=HALF, reference=by_blocks, fake=True)
        for name, make, config in (
            ("1x128-128x128", in_blocks((1, 128), (128, 128)), SMALL),
            ("1x128-1x128", in_blocks((1, 128), (1, 128)), Config(32, 32, 128, 2, 4)),
            ("128x128-1x128", in_blocks((128, 128), (1, 128), m=256), Config(32, 64, 64, 2, 4)),
            ("1x128-split", in_blocks((1, 128), (128, 128), m=8, k=1024), Config(16, 64, 128, 2, 4, split=4)),
        )
    },
}
"""What no axis has: two products in one, whole rows, packed and scaled operands."""
CASES: Mapping[str, Case] = {
    **{f"row-{name}": case_of(row) for name, row in ROWS.items()},
    **{name: case_of({**ORDINARY_ROW, **row}) for name, row in CALLED.items()},
    **CONVOLUTIONS,
    **OTHERS,
}
LIKE_ANOTHER = (
    *(f"row-{name}" for name in list(ROWS)[FIRST:]),
    *(f"conv-{name}" for name in list(CONVOLUTION_ROWS)[FIRST_CONVOLUTIONS:]),
    *("mm-odd", "mm-dynamic", "mm-sliced", "bmm", "bmm-dynamic", "of-cast", "of-dynamic", "tma"),
    *("mm-rows-gathered", "linear-of-int8", "addmm-view", "tma-strided", "bmm-strided", "tma-transposed"),
    *("mm-dynamic-split", "linear-dynamic-gelu", "bmm-split", "mm-three-users", "conv3x3-dynamic", "conv1x1-last"),
    "conv-grouped-last",
    *("linear-of-int4-split", "linear-of-int4-short", "scaled-mm-v2", "scaled-mm-1x128-split"),
    "scaled-mm-1x128-128x128",
)
"""What `make test-all` runs: of each another case has the same parts of the kernel, in other pairs."""


ONE_SCALE = "torch 2.11's CPU has one scale a tensor only"
UNSUPPORTED = (
    dict.fromkeys(("scaled-mm-rows", "scaled-mm-v2", "scaled-mm-v2-rows", "scaled-mm-f8-out"), ONE_SCALE)
    if OLD_TORCH
    else {}
)
"""Cases that eager cannot run on a CPU, and why."""


def case_params(names: Iterable[str], thorough: Collection[str] = ()) -> list[Any]:
    """The names as parameters of a test, some of them for `make test-all`; what eager cannot run is skipped with the
    reason."""
    listed = list(names)
    assert set(thorough) <= set(listed)

    def marks(name: str) -> list[pytest.MarkDecorator]:
        skipped = [pytest.mark.skip(reason=UNSUPPORTED[name])] if name in UNSUPPORTED else []
        return [*skipped, *([pytest.mark.thorough] if name in thorough else [])]

    return [pytest.param(name, marks=marks(name)) for name in listed]


if __name__ == "__main__":
    print_share(CASES)

__all__ = ["AXES", "CASES", "FIRST", "LIKE_ANOTHER", "NEVER", "ROWS", "Case", "case_params"]

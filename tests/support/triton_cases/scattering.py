"""Scatters of every mode and type: rows, single elements, along rows, results of reductions."""

from __future__ import annotations

from functools import cache

import torch

from litz.ir import Buffer, Layout, Store
from litz.ir.build import bounded, call, const, load, reduce
from litz.ir.index import FloorDiv, PythonMod, to_expr

from .case import (
    CASES,
    CUDA,
    Case,
    S,
    arg0,
    bf16,
    case,
    f32,
    f64,
    i0,
    i1,
    make,
    r0,
    random,
)


def _scatter(mode: str, dtype: torch.dtype) -> Case:
    target = random(12, dtype=dtype, seed=7)
    row = bounded(load("rows", (i0,), torch.int64), 12)
    wanted = call("ne", load("rows", (i0,), torch.int64), const(5, torch.int64))
    return make(
        {"t": target, "rows": torch.randint(0, 12, (30,)), "a": random(30, dtype=dtype)},
        [],
        [30],
        [],
        [Store("t", (arg0,), load("a", (i0,), dtype), (row,), mode, wanted)],  # type: ignore[arg-type]
        tolerance=1e-5 if mode != "prod" else 1e-3,
        interpreted=dtype != bf16 or mode != "add",  # the interpreter has no such atomic
    )


for _dtype in (f32, bf16, f64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool):
    for _mode in ("add", "prod", "max", "min"):
        _text = f"scatter-{_mode}-{str(_dtype).removeprefix('torch.')}"
        CASES[_text] = cache(lambda m=_mode, d=_dtype: _scatter(m, d))


def _special(mode: str, dtype: torch.dtype) -> Case:
    """NaN on either side (of either sign), infinities, zeros of both signs, and many values of one element."""
    bits = torch.int32 if dtype == f32 else torch.int64
    nan = torch.tensor([float("nan")], dtype=dtype)
    negative_nan = (nan.view(bits) | torch.iinfo(bits).min).view(dtype)
    inf = torch.tensor([float("inf"), -float("inf"), 0.0, -0.0, -2.5, 3.5], dtype=dtype)
    target = torch.cat([nan, negative_nan, inf, inf])
    values = torch.cat([random(40, dtype=dtype), -random(40, dtype=dtype).abs(), inf, nan, negative_nan, -inf])
    rows = torch.cat([torch.arange(80) % 8, 2 + torch.arange(6), torch.tensor([8, 9]), 8 + torch.arange(6)])
    row = bounded(load("rows", (i0,), torch.int64), 14)
    store = Store("t", (arg0,), load("a", (i0,), dtype), (row,), mode)  # type: ignore[arg-type]
    return make({"t": target, "rows": rows, "a": values}, [], [len(values)], [], [store], tolerance=0.0)


for _dtype in (f32, f64):
    for _mode in ("max", "min"):
        _text = f"scatter-special-{_mode}-{str(_dtype).removeprefix('torch.')}"
        CASES[_text] = cache(lambda m=_mode, d=_dtype: _special(m, d))


@case("scatter-rows")
def _() -> Case:
    """The backward of an embedding: rows meet, columns do not."""
    row = bounded(load("rows", (i0,), torch.int64), 6)
    return make(
        {"t": torch.zeros(6, 20), "rows": torch.randint(0, 6, (11,)), "a": random(11, 20)},
        [],
        [11, 20],
        [],
        [Store("t", (arg0, i1), load("a", (i0, i1), f32), (row,), "add")],
        tolerance=1e-5,
    )


@case("scatter-copies")
def _() -> Case:
    """Each iteration into the copy that its own position says (`litz_passes.program.spread`)."""
    at = PythonMod(i1 + FloorDiv(i1, to_expr(8)), to_expr(32))
    row = bounded(load("rows", (i0, i1), torch.int64), 4)
    rows = torch.arange(3 * 50).reshape(3, 50) % 4
    stores = [Store("t", (arg0, at), load("a", (i0, i1), f32), (row,), "add")]
    return make({"t": random(4, 32), "rows": rows, "a": random(3, 50)}, [], [3, 50], [], stores)


@case("scatter-one")
def _() -> Case:
    """All meet at one element."""
    return make({"t": torch.zeros(()), "a": random(40)}, [], [40], [],
                [Store("t", (), load("a", (i0,), f32), mode="add")], tolerance=1e-5)  # fmt: skip


@case("scatter-along-rows")
def _() -> Case:
    """Fused with a reduction: each element is scaled by its row's sum and added up elsewhere. S rows: with a mask."""
    x = load("a", (i0, r0), f32)
    row = bounded(load("rows", (i0,), torch.int64), 6)
    return make(
        {"t": torch.zeros(4, 20), "rows": torch.randint(0, 4, (9,)), "a": random(9, 20)},
        [],
        [S],
        [20],
        [Store("t", (arg0, r0), call("mul", x, reduce("sum", x)), (row,), "add")],
        buffers=[
            Buffer("a", f32, CUDA, Layout.contiguous((S, 20)), "input"),
            Buffer("rows", torch.int64, CUDA, Layout.contiguous((S,)), "input"),
        ],
        hints={S: 4096},
        sizes={S: 9},
        tolerance=1e-4,
    )


@case("scatter-result")
def _() -> Case:
    """Row sums, added up where they belong."""
    row = bounded(load("rows", (i0,), torch.int64), 4)
    return make(
        {"t": torch.zeros(4), "rows": torch.randint(0, 4, (9,)), "a": random(9, 20)},
        [],
        [9],
        [20],
        [Store("t", (arg0,), reduce("sum", load("a", (i0, r0), f32)), (row,), "add")],
        tolerance=1e-5,
    )

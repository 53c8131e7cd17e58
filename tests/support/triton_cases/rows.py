"""Rows that are not aligned, and long ones whose neighbours are reduced together."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch

from litz.ir import Layout, Node, Store
from litz.ir.build import call, cast, const, load, reduce
from litz.ir.index import loop_var, reduction_var, to_expr

from .case import CASES, Case, bf16, f16, f32, f64, i0, make, output, r0, random

INF, NAN = float("inf"), float("nan")
i1, r1 = loop_var(1), reduction_var(1)


def _peculiar(a: torch.Tensor) -> torch.Tensor:
    """Rows with infinities, with nothing but -inf, with NaN; the first and the last element count."""
    a[0, 0], a[0, -1] = 9.0, 8.0
    if a.shape[0] > 4:
        a[1, : a.shape[1] // 2] = -INF
        a[2] = -INF
        a[3, 5 % a.shape[1]] = INF
        a[4, -1] = NAN
    return a


def _wide(name: str, dtype: torch.dtype) -> Node:
    value = load(name, (i0, r0), dtype)
    return cast(value, f32) if dtype in (bf16, f16) else value


def rows(
    count: int,
    width: int,
    dtype: torch.dtype,
    result: torch.dtype,
    pitch: int = 0,
    start: int = 0,
    out_pitch: int = 0,
    units: int = 0,
) -> Case:
    """A softmax of rows that lie `pitch` elements apart, the first `start` from the memory's beginning; with their
    maxima and sums. out_pitch: of the rows of the result. units: as in `Case`."""
    pitch = pitch or width
    held = _peculiar(random(count, width, dtype=dtype))
    memory = torch.zeros(start + count * pitch + 16, dtype=dtype)
    a = memory.as_strided((count, width), (pitch, 1), start).copy_(held)
    x = _wide("a", dtype)
    top = reduce("max", x)
    power = call("exp", call("sub", x, top))
    total = reduce("sum", power)
    value = call("div", power, total)
    made = output("o", (count, width), result)
    if out_pitch:
        layout = replace(made.layout, stride=(made.layout.stride[0] * 0 + out_pitch, made.layout.stride[1]))
        made = replace(made, layout=layout)
    position = (i0, r0)
    return make(
        {"a": a},
        [made, output("top", (count,), f32), output("total", (count,), f32)],
        [count],
        [width],
        [
            Store("o", position, cast(value, result)),
            Store("top", (i0,), cast(top, f32)),
            Store("total", (i0,), cast(total, f32)),
        ],
        tolerance=2e-5,
        units=units,
    )


def _register(name: str, *args: object, interpreted: bool = True, **rest: object) -> None:
    """interpreted: False for what takes Triton's interpreter minutes."""
    CASES[name] = cache(lambda: replace(rows(*args, **rest), interpreted=interpreted))  # type: ignore[arg-type]


_register("rows-197-bf16", 37, 197, bf16, bf16)
_register("rows-197-f32", 37, 197, f32, f32)
_register("rows-49-f16-to-f32", 70, 49, f16, f32)
_register("rows-pitch", 6, 57, bf16, bf16, pitch=61, out_pitch=61)
_register("rows-other-pitch", 6, 57, bf16, bf16, pitch=61, out_pitch=63)
_register("rows-1-bf16", 9, 1, bf16, bf16)
_register("rows-5-bf16", 21, 5, bf16, bf16)
_register("rows-121-bf16", 7, 121, bf16, bf16)  # 128 lanes are full with 7 before the row
_register("rows-122-bf16", 7, 122, bf16, bf16)  # and would not be enough
_register("rows-50257-bf16", 2, 50257, bf16, bf16)
_register("rows-70001-bf16", 2, 70001, bf16, bf16)
_register("rows-50257-f32", 5, 50257, f32, f32, interpreted=False)
_register("rows-40000-bf16", 5, 40000, bf16, bf16, interpreted=False)
_register("rows-40001-f64", 5, 40001, f64, f64, interpreted=False)


def _reduced(width: int, dtype: torch.dtype) -> Case:
    """Of rows that are read only: several reductions, an online softmax among them."""
    x = _wide("a", dtype)
    top = reduce("max", x)
    values = {
        "top": top,
        "total": reduce("sum", call("exp", call("sub", x, top))),
        "squares": reduce("sum", call("mul", x, x)),
        "least": reduce("min", x),
        "place": reduce("argmax", x),
        "some": reduce("any", call("gt", x, const(3.5, f32))),
        "all": reduce("all", call("gt", x, const(-3.5, f32))),
    }
    return make(
        {"a": _peculiar(random(5, width, dtype=dtype))},
        [output(name, (5,), value.dtype) for name, value in values.items()],
        [5],
        [width],
        [Store(name, (i0,), value) for name, value in values.items()],
        tolerance=2e-5,
    )


for _width in (9000, 9001):
    for _dtype in (bf16, f32):
        _name = str(_dtype).removeprefix("torch.")
        CASES[f"rows-reduced-{_width}-{_name}"] = cache(lambda w=_width, d=_dtype: _reduced(w, d))


def _moments(width: int, dtype: torch.dtype) -> Case:
    x = _wide("a", dtype)
    values = {"mean": reduce("welford_mean", x), "m2": reduce("welford_m2", x)}
    return make(
        {"a": random(3, width, dtype=dtype) + 30},
        [output(name, (3,), f32) for name in values],
        [3],
        [width],
        [Store(name, (i0,), value) for name, value in values.items()],
        tolerance=2e-5,
    )


for _width in (9000, 9001, 16384):
    CASES[f"rows-moments-{_width}"] = cache(lambda w=_width: _moments(w, bf16))
CASES["rows-moments-f32"] = cache(lambda: _moments(9000, f32))


def _mixed(rows: int = 11, units: int = 0) -> Case:
    """Loads of 2, 4 and 1 bytes and of a row that all share, stores of 2 and 4."""
    a, b = cast(load("a", (i0, r0), bf16), f32), load("b", (i0, r0), f32)
    kept = load("m", (i0, r0), torch.bool)
    value = call("where", kept, call("add", call("mul", a, load("w", (r0,), f32)), b), const(0, f32))
    centred = call("sub", value, reduce("max", value))
    return make(
        {
            "a": random(rows, 99, dtype=bf16),
            "b": random(rows, 99, seed=3),
            "m": random(rows, 99, dtype=torch.bool),
            "w": random(99, seed=5),
        },
        [output("o", (rows, 99), f32), output("p", (rows, 99), bf16), output("q", (rows,), f32)],
        [rows],
        [99],
        [
            Store("o", (i0, r0), centred),
            Store("p", (i0, r0), cast(value, bf16)),
            Store("q", (i0,), reduce("sum", value)),
        ],
        tolerance=1e-5,
        units=units,
    )


CASES["rows-mixed"] = cache(_mixed)


def _in_place(width: int, rows: int = 6, units: int = 0) -> Case:
    """A row written where it is read; neighbours' ends are read beside it."""
    x = _wide("a", bf16)
    value = cast(call("sub", x, reduce("max", x)), bf16)
    built = make(
        {"a": random(rows, width, dtype=bf16)},
        [output("o", (rows, width), bf16)],
        [rows],
        [width],
        [Store("o", (i0, r0), value)],
    )
    return replace(built, inplace={"o": "a"}, interpreted=width < 1000, units=units)


CASES["rows-in-place"] = cache(lambda: _in_place(57))
CASES["rows-in-place-long"] = cache(lambda: _in_place(40001))


def _masked() -> Case:
    """Loads and stores that hold for some elements only, and one that runs against the row."""
    x = load("a", (i0, r0), f32, (), call("lt", load("n", (i0,), torch.int64), const(4, torch.int64)))
    value = call("add", x, load("a", (i0, 56 - r0), f32))
    return make(
        {"a": random(6, 57), "n": torch.arange(6)},
        [output("o", (6, 57), f32), output("t", (57, 6), f32), output("q", (6,), f32)],
        [6],
        [57],
        [
            Store("o", (i0, r0), value, mask=call("gt", value, const(0, f32))),
            Store("t", (r0, i0), value),
            Store("q", (i0,), reduce("sum", value)),
        ],
        tolerance=1e-5,
    )


CASES["rows-masked"] = cache(_masked)


# Rows enough that those of a program begin at the same lane.


def _norm(images: int, rows: int, width: int, pitch: int = 0) -> Case:
    """A layer norm with weights, and a shift of each image, for which rows are numbered along two ranges. pitch: of
    the images, in rows."""
    x, shift = cast(load("a", (i0, i1, r0), bf16), f32), load("s", (i0,), f32)
    mean, m2 = reduce("welford_mean", x), reduce("welford_m2", x)
    scale = call("rsqrt", call("add", call("div", m2, const(width, f32)), const(1e-5, f32)))
    normal = call("mul", call("mul", call("sub", x, mean), scale), cast(load("w", (r0,), bf16), f32))
    size = (images, rows, width)
    stride = ((pitch or rows) * width, width, 1)
    a = torch.empty_strided(size, stride, dtype=bf16).copy_(random(*size, dtype=bf16))
    layout = Layout(tuple(map(to_expr, size)), tuple(map(to_expr, stride)))
    return make(
        {"a": a, "w": random(width, dtype=bf16, seed=3), "s": random(images, seed=5)},
        [replace(output(name, size, bf16), layout=layout) for name in ("o", "p")],
        [images, rows],
        [width],
        [
            Store("o", (i0, i1, r0), cast(call("add", normal, shift), bf16)),
            Store("p", (i0, i1, r0), cast(call("sub", x, mean), bf16)),
        ],
        tolerance=2e-5,
        units=1,
    )


for _width, _dtype, _result in ((197, bf16, bf16), (105, f16, f32), (113, f32, bf16)):
    _name = f"rows-alike-{_width}-{str(_dtype).removeprefix('torch.')}"
    _register(_name, 32 * 8 + 3, _width, _dtype, _result, units=1)
_register("rows-alike-pitch", 600, 99, bf16, bf16, pitch=101, start=3, out_pitch=101, units=1)
_register("rows-alike-even", 260, 110, bf16, bf16, units=1)  # begin at lanes 0, 6, 4 and 2
CASES["rows-alike-mixed"] = cache(lambda: _mixed(300, units=1))
CASES["rows-alike-in-place"] = cache(lambda: _in_place(115, 300, units=1))
CASES["rows-alike-norm"] = cache(lambda: _norm(3, 111, 121))
CASES["rows-anyhow-norm"] = cache(lambda: _norm(3, 111, 121, pitch=112))


def _columns(rows: int, width: int, pitch: int, start: int, dtype: torch.dtype) -> Case:
    """The least of each row of a slice of columns: where `pitch` is whole groups of lanes, all rows begin alike."""
    least = reduce("min", load("a", (i0, r0 + start), dtype))
    return make(
        {"a": random(rows, pitch, dtype=dtype)}, [output("q", (rows,), dtype)], [rows], [width],
        [Store("q", (i0,), least)],
    )  # fmt: skip


CASES["rows-fixed-f32"] = cache(lambda: _columns(20, 9, 20, 11, f32))
CASES["rows-fixed-bf16"] = cache(lambda: _columns(260, 101, 120, 3, bf16))


def _norm_in_passes(width: int) -> Case:
    """A layer norm in float32 with a weight and a bias, near 100."""
    x = load("a", (i0, r0), f32)
    mean, m2 = reduce("welford_mean", x), reduce("welford_m2", x)
    scale = call("rsqrt", call("add", call("div", m2, const(width, f32)), const(1e-5, f32)))
    value = call(
        "add", call("mul", call("mul", call("sub", x, mean), scale), load("w", (r0,), f32)), load("b", (r0,), f32)
    )
    return make(
        {"a": random(3, width) + 100, "w": random(width, seed=1), "b": random(width, seed=2)},
        [output("o", (3, width), f32)],
        [3],
        [width],
        [Store("o", (i0, r0), value)],
        tolerance=1e-4,
    )


CASES["rows-norm-in-passes"] = cache(lambda: _norm_in_passes(3004))

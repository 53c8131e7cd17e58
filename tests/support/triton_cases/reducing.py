"""Reductions of every kind, softmax, layer norm, scans."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch

from litz.ir import Buffer, Layout, Node, Store
from litz.ir.build import call, cast, const, index, load, reduce, scan
from litz.ir.dtypes import HALF
from litz.ir.index import Expr, loop_var, reduction_var

from .case import (
    CASES,
    CUDA,
    Case,
    S,
    bf16,
    case,
    f32,
    f64,
    i0,
    make,
    output,
    r0,
    random,
)

_KINDS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")


def _reduce_values(dtype: torch.dtype, x: Node) -> list[tuple[str, Node]]:
    kinds = [k for k in _KINDS if dtype != torch.bool or k in ("sum", "any", "all")]
    if dtype in HALF or dtype == torch.int8:
        kinds = [k for k in kinds if k != "prod"]
    values = [(kind, reduce(kind, x)) for kind in kinds]
    if dtype.is_floating_point:
        values += [(kind, reduce(kind, x)) for kind in ("welford_mean", "welford_m2")]
    return values


def _reduction(a: torch.Tensor, kept: int, symbolic: bool = False, hint: int = 16) -> Case:
    """Every kind over the dimensions from `kept` on."""
    outer = tuple(loop_var(n) for n in range(kept))
    inner = tuple(reduction_var(n) for n in range(a.dim() - kept))
    values = _reduce_values(a.dtype, load("a", (*outer, *inner), a.dtype))
    results = [output(f"o_{kind}", a.shape[:kept], value.dtype) for kind, value in values]
    stores = [Store(f"o_{kind}", outer, value) for kind, value in values]
    if not symbolic:
        return make({"a": a}, results, a.shape[:kept], a.shape[kept:], stores, tolerance=1e-4)
    held = Buffer("a", a.dtype, CUDA, Layout.contiguous((*a.shape[:-1], S)), "input")
    reduced = (*a.shape[kept:-1], S)
    return make(
        {"a": a},
        results,
        a.shape[:kept],
        reduced,
        stores,
        buffers=[held],
        hints={S: hint},
        sizes={S: a.shape[-1]},
        tolerance=1e-4,
    )


def _peculiar(a: torch.Tensor) -> torch.Tensor:
    """With ties, and NaN in one row."""
    a = a.clone()
    flat = a.view(a.shape[0], -1)
    flat[0, 1] = flat[0, -1] = flat.max() + 1 if a.dtype != torch.bool else True
    if a.dtype.is_floating_point:
        flat[1, 3] = float("nan")
        flat[1, -2] = float("nan")
    return a


for _dtype in (f32, f64, bf16, torch.int64, torch.int8, torch.bool):
    _short = str(_dtype).removeprefix("torch.")
    CASES[f"reduce-row-{_short}"] = cache(lambda d=_dtype: _reduction(_peculiar(random(5, 19, dtype=d)), 1))
    CASES[f"reduce-long-{_short}"] = cache(lambda d=_dtype: _reduction(_peculiar(random(2, 70, dtype=d)), 1, True))
CASES["reduce-full"] = cache(lambda: _reduction(random(6, 7), 0))
CASES["reduce-two"] = cache(lambda: _reduction(random(4, 5, 6), 1))
CASES["reduce-one"] = cache(lambda: _reduction(random(4, 1), 1))
CASES["reduce-one-row"] = cache(lambda: _reduction(random(1, 9), 1))
CASES["reduce-two-long"] = cache(lambda: _reduction(random(3, 5, 9), 1, True))
CASES["reduce-columns"] = cache(lambda: _reduction(random(19, 21).t(), 1))
CASES["reduce-columns-long"] = cache(lambda: _reduction(random(70, 3).t(), 1))
CASES["reduce-middle"] = cache(lambda: _reduction(random(2, 11, 5).permute(0, 2, 1), 2))


@case("reduce-empty")
def _() -> Case:
    x = load("a", (i0, r0), f32)
    kinds = ["sum", "prod", "welford_mean"]
    return make(
        {"a": random(5, 0)},
        [output(kind, (5,), f32) for kind in kinds],
        [5],
        [0],
        [Store(kind, (i0,), reduce(kind, x)) for kind in kinds],
    )


@case("softmax-constant")
def _softmax_of_a_constant() -> Case:
    """Nine lanes of sixteen: the others are no part of the sum, though the exponential is the same in all."""
    zero = const(0.0, f32)
    total = reduce("sum", call("exp", call("sub", zero, reduce("max", zero))))
    a = random(5, dtype=f32, seed=1)
    value = call("add", load("a", (i0,), f32), call("log", total))
    return make({"a": a}, [output("o", (5,), f32)], [5], [9], [Store("o", (i0,), value)])


@case("reduce-huge")
def _() -> Case:
    """Longer than what is held in registers; a power of two, so that there is no mask."""
    x = load("a", (i0, r0), f32)
    return make(
        {"a": random(2, 16384)},
        [output("o", (2,), f32), output("p", (2,), f32)],
        [2],
        [16384],
        [Store("o", (i0,), reduce("sum", x)), Store("p", (i0,), reduce("welford_m2", x))],
        tolerance=1e-4,
        interpreted=False,
    )


@case("welford-combine")
def _() -> Case:
    parts = [load(name, (i0, r0), f32) for name in ("mean", "m2", "weight")]
    inputs = {"mean": random(4, 10), "m2": random(4, 10).abs(), "weight": torch.randint(0, 5, (4, 10)).float()}
    kinds = ["welford_combine_mean", "welford_combine_m2"]
    return make(
        inputs,
        [output(kind, (4,), f32) for kind in kinds],
        [4],
        [10],
        [Store(kind, (i0,), reduce(kind, *parts)) for kind in kinds],
        tolerance=1e-5,
    )


def _softmax(rows: int, columns: int, dtype: torch.dtype, symbolic: bool = False) -> Case:
    x = cast(load("a", (i0, r0), dtype), f32)
    shifted = call("sub", x, reduce("max", x))
    power = call("exp", shifted)
    value = cast(call("div", power, reduce("sum", power)), dtype)
    a = random(rows, columns, dtype=dtype)
    a[0, :] = -float("inf")
    a[0, 3] = 1.0
    width: int | Expr = S if symbolic else columns
    return make(
        {"a": a},
        [output("o", (rows, width), dtype)],
        [rows],
        [width],
        [Store("o", (i0, r0), value)],
        buffers=[Buffer("a", dtype, CUDA, Layout.contiguous((rows, width)), "input")],
        hints={S: 16},
        sizes={S: columns} if symbolic else {},
        tolerance=1e-5,
    )


CASES["softmax"] = cache(lambda: _softmax(4, 50, bf16))
CASES["softmax-f32"] = cache(lambda: _softmax(4, 64, f32))
CASES["softmax-long"] = cache(lambda: _softmax(3, 75, f32, symbolic=True))
CASES["softmax-long-bf16"] = cache(lambda: _softmax(3, 64, bf16, symbolic=True))


def _layer_norm(rows: int, columns: int, symbolic: bool) -> Case:
    width: int | Expr = S if symbolic else columns
    x = cast(load("a", (i0, r0), bf16), f32)
    mean, m2 = reduce("welford_mean", x), reduce("welford_m2", x)
    length = cast(index(width), f32) if symbolic else const(columns, f32)
    scale = call("rsqrt", call("add", call("div", m2, length), const(1e-5, f32)))
    normal = call("mul", call("sub", x, mean), scale)
    value = call("add", call("mul", normal, load("w", (r0,), f32)), load("b", (r0,), f32))
    return make(
        {"a": random(rows, columns, dtype=bf16), "w": random(columns), "b": random(columns, seed=4)},
        [output("o", (rows, width), bf16), output("mean", (rows,), f32), output("rstd", (rows,), f32)],
        [rows],
        [width],
        [Store("o", (i0, r0), cast(value, bf16)), Store("mean", (i0,), mean), Store("rstd", (i0,), scale)],
        buffers=[
            Buffer("a", bf16, CUDA, Layout.contiguous((rows, width)), "input"),
            Buffer("w", f32, CUDA, Layout.contiguous((width,)), "input"),
            Buffer("b", f32, CUDA, Layout.contiguous((width,)), "input"),
        ],
        hints={S: 16},
        sizes={S: columns} if symbolic else {},
        tolerance=1e-4,
    )


CASES["layer-norm"] = cache(lambda: _layer_norm(5, 48, False))
CASES["layer-norm-1024"] = cache(lambda: _layer_norm(3, 1024, False))
CASES["layer-norm-long"] = cache(lambda: _layer_norm(3, 75, True))


@case("late-store")
def _() -> Case:
    """A row written where it is read, and read again for the second pass: the store must come last."""
    x = load("a", (i0, r0), f32)
    y = call("sub", x, reduce("max", x))
    built = make(
        {"a": random(3, 40)},
        [output("o", (3, S), f32), output("total", (3,), f32)],
        [3],
        [S],
        [Store("o", (i0, r0), call("add", x, const(1, f32))), Store("total", (i0,), reduce("sum", y))],
        buffers=[Buffer("a", f32, CUDA, Layout.contiguous((3, S)), "input")],
        hints={S: 16},
        sizes={S: 40},
    )
    return replace(built, inplace={"o": "a"}, tolerance=1e-5)


def _scans(symbolic: bool) -> Case:
    columns = 45
    width: int | Expr = S if symbolic else columns
    x, n = load("a", (i0, r0), f32), load("n", (i0, r0), torch.int64)
    stores = [Store(f"o_{kind}", (i0, r0), scan(kind, x)) for kind in ("sum", "max", "min")]
    stores.append(Store("n_sum", (i0, r0), scan("sum", n)))
    stores.append(Store("total", (i0,), reduce("sum", scan("max", x))))
    stores.append(Store("p", (i0, r0), scan("prod", call("mul", x, const(0.5, f32)))))
    outputs = [output(s.buffer, (3,) if s.buffer == "total" else (3, width), s.value.dtype) for s in stores]
    held = [
        Buffer("a", f32, CUDA, Layout.contiguous((3, width)), "input"),
        Buffer("n", torch.int64, CUDA, Layout.contiguous((3, width)), "input"),
    ]
    return make(
        {"a": random(3, columns), "n": random(3, columns, dtype=torch.int64)},
        outputs,
        [3],
        [width],
        stores,
        buffers=held,
        hints={S: 16},
        sizes={S: columns} if symbolic else {},
        tolerance=1e-4,
    )


CASES["scan"] = cache(lambda: _scans(False))
CASES["scan-long"] = cache(lambda: _scans(True))


def _weighted(rows: int, columns: int) -> Case:
    """Values weighted by scores of which some are -inf, those of a whole row among them."""
    scores = random(rows, columns)
    scores[:, ::3], scores[-1] = -torch.inf, -torch.inf
    value = reduce("weighted_softmax", load("a", (i0, r0), f32), load("b", (i0, r0), f32))
    inputs = {"a": scores, "b": random(rows, columns, seed=1)}
    return make(inputs, [output("o", [rows], f32)], [rows], [columns], [Store("o", (i0,), value)], tolerance=1e-4)


CASES["weighted-softmax"] = cache(lambda: _weighted(5, 19))
CASES["weighted-softmax-long"] = cache(lambda: _weighted(2, 16385))

"""Pointwise structures: views, indirection, guards, symbolic sizes, large and empty tensors."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch

from litz.ir import Buffer, Layout, Node, Store
from litz.ir.build import bounded, call, cast, const, guard, index, load, reduce
from litz.ir.index import FloorDiv, PythonMod, loop_var, to_expr
from litz.schedule.segments import at_once

from .case import (
    CASES,
    CUDA,
    Case,
    S,
    T,
    arg0,
    bf16,
    case,
    f32,
    i0,
    i1,
    make,
    output,
    r0,
    random,
)


def _scale(x: Node) -> Node:
    return call("add", call("mul", x, const(2, x.dtype)), const(1, x.dtype))


def _pointwise(a: torch.Tensor) -> Case:
    position = tuple(loop_var(n) for n in range(a.dim()))
    x = load("a", position, a.dtype)
    value = _scale(x) if a.dtype != torch.bool else call("bitwise_not", x)
    return make({"a": a}, [output("o", a.shape, a.dtype)], a.shape, [], [Store("o", position, value)])


for _dtype in (f32, bf16, torch.int64, torch.bool):
    _short = str(_dtype).removeprefix("torch.")
    CASES[f"contiguous-{_short}"] = cache(lambda d=_dtype: _pointwise(random(3, 50, 7, dtype=d)))
    CASES[f"transposed-{_short}"] = cache(lambda d=_dtype: _pointwise(random(70, 40, dtype=d).t()))
    CASES[f"transposed-batch-{_short}"] = cache(
        lambda d=_dtype: _pointwise(random(2, 33, 3, 40, dtype=d).permute(0, 3, 2, 1))
    )
    CASES[f"expanded-{_short}"] = cache(lambda d=_dtype: _pointwise(random(1, 40, dtype=d).expand(9, 40)))
    CASES[f"scalar-{_short}"] = cache(lambda d=_dtype: _pointwise(random(1, dtype=d).reshape(())))
    CASES[f"empty-{_short}"] = cache(lambda d=_dtype: _pointwise(random(4, 0, dtype=d)))
    CASES[f"strided-{_short}"] = cache(lambda d=_dtype: _pointwise(random(20, 33, dtype=d)[::2, 1::2]))


@case("bias")
def _() -> Case:
    value = call("add", load("a", (i0, i1), bf16), load("b", (i1,), bf16))
    inputs = {"a": random(37, 24, dtype=bf16), "b": random(24, dtype=bf16)}
    return make(inputs, [output("o", (37, 24), bf16)], [37, 24], [], [Store("o", (i0, i1), value)])


@case("bias-odd-end")
def _() -> Case:
    """The programs but the last have no mask: the end would cut each access of 16 bytes."""
    value = call("add", load("a", (i0, i1), bf16), load("b", (i1,), bf16))
    inputs = {"a": random(701, 197, dtype=bf16), "b": random(197, dtype=bf16)}
    return make(inputs, [output("o", (701, 197), bf16)], [701, 197], [], [Store("o", (i0, i1), value)])


@case("reshaped")
def _() -> Case:
    """A view that is no affine function: 35 columns read as 7 by 15."""
    value = load("a", (PythonMod(i0, to_expr(7)), FloorDiv(i0, to_expr(7))), f32)
    return make({"a": random(7, 15)}, [output("o", (105,), f32)], [105], [], [Store("o", (i0,), value)])


@case("flipped")
def _() -> Case:
    return make(
        {"a": random(9, 20)},
        [output("o", (9, 20), f32)],
        [9, 20],
        [],
        [Store("o", (i0, i1), load("a", (i0, 19 - i1), f32))],
    )


@case("padded")
def _() -> Case:
    above, below = (const(n, torch.int64) for n in (2, 12))
    inside = call("bitwise_and", call("ge", index(i0), above), call("lt", index(i0), below))
    value = call("where", inside, load("a", (i0 - 2, i1), f32, mask=inside), const(7, f32))
    return make({"a": random(10, 6)}, [output("o", (15, 6), f32)], [15, 6], [], [Store("o", (i0, i1), value)])


@case("negative-division")
def _() -> Case:
    position = index(FloorDiv(i0 - 5, to_expr(3)))
    rest = index(PythonMod(i0 - 5, to_expr(3)))
    return make(
        {},
        [output("o", (12,), torch.int64), output("p", (12,), torch.int64)],
        [12],
        [],
        [Store("o", (i0,), position), Store("p", (i0,), rest)],
    )


@case("embedding")
def _() -> Case:
    row = bounded(load("rows", (i0,), torch.int64), 11)
    value = load("table", (arg0, i1), bf16, (row,))
    inputs = {"rows": torch.randint(0, 11, (13,)), "table": random(11, 24, dtype=bf16)}
    return make(inputs, [output("o", (13, 24), bf16)], [13, 24], [], [Store("o", (i0, i1), value)])


@case("dynamic-table")
def _() -> Case:
    """A fixed number of rows from a table of any length: its size is an argument only for the launcher's sake."""
    row = bounded(load("rows", (i0,), torch.int64), S)
    value = load("table", (arg0, i1), f32, (row,))
    return make(
        {"rows": torch.randint(0, 11, (13,)), "table": random(11, 24)},
        [output("o", (13, 24), f32)],
        [13, 24],
        [],
        [Store("o", (i0, i1), value)],
        buffers=[Buffer("table", f32, CUDA, Layout.contiguous((S, 24)), "input")],
        hints={S: 64},
        sizes={S: 11},
    )


@case("dynamic-first-row")
def _() -> Case:
    return make(
        {"table": random(11, 24)},
        [output("o", (24,), f32)],
        [24],
        [],
        [Store("o", (i0,), load("table", (to_expr(0), i0), f32))],
        buffers=[Buffer("table", f32, CUDA, Layout.contiguous((S, 24)), "input")],
        hints={S: 64},
        sizes={S: 11},
    )


@case("guarded-gather")
def _() -> Case:
    row = load("rows", (i0,), torch.int64)
    wanted = call("ge", row, const(0, torch.int64))
    value = call("where", wanted, guard(load("table", (arg0,), f32, (bounded(row, 11),)), wanted), const(-1, f32))
    inputs = {"rows": torch.tensor([3, -100, 10, 0, -100, 7]), "table": random(11)}
    return make(inputs, [output("o", (6,), f32)], [6], [], [Store("o", (i0,), value)])


@case("gather-of-one-row")
def _() -> Case:
    """The table is expanded from one element: which row the index names does not count, that it is in range does."""
    row = load("rows", (i0,), torch.int64)
    value = load("table", (0 * arg0,), f32, (bounded(row, 7),))
    inputs = {"rows": torch.tensor([3, 6, 0, 2, 5]), "table": random(1)}
    return make(inputs, [output("o", (5,), f32)], [5], [], [Store("o", (i0,), value)])


@case("positions")
def _() -> Case:
    causal = call("le", index(i1), index(i0))
    value = call("where", causal, cast(index(i0 * 20 + i1), f32), const(-1, f32))
    return make(
        {},
        [output("o", (9, 20), f32), output("p", (9, 20), torch.int64)],
        [9, 20],
        [],
        [Store("o", (i0, i1), value), Store("p", (i0, i1), index(i0 * 20 + i1))],
    )


@case("random")
def _() -> Case:
    seed = load("seed", (), torch.int64)
    names = ["random_uniform", "random_normal", "random_bits"]
    values = [call(name, seed, index(i0)) for name in names]
    return make(
        {"seed": torch.tensor(2**40 + 12345)},
        [output(name, (80,), value.dtype) for name, value in zip(names, values, strict=True)],
        [80],
        [],
        [Store(name, (i0,), value) for name, value in zip(names, values, strict=True)],
        tolerance=1e-5,
    )


@case("inplace")
def _() -> Case:
    value = call("add", call("exp", load("a", (i0,), f32)), load("b", (i0,), f32))
    built = make({"a": random(50), "b": random(50)}, [output("o", (50,), f32)], [50], [], [Store("o", (i0,), value)])
    return replace(built, inplace={"o": "a"})


@case("wide-row")
def _() -> Case:
    """A row longer than a signed number of 32 bits counts, though not an unsigned one: compiled only."""
    length = 2**31 + 5
    held = output("a", (length,), torch.int8)
    value = reduce("argmin", load("a", (r0,), torch.int8))
    return make(
        {},
        [output("o", (), torch.int64)],
        [],
        [length],
        [Store("o", (), value)],
        buffers=[replace(held, kind="input")],
        interpreted=False,
    )


@case("wide-offsets")
def _() -> Case:
    """More elements than 32 bits count: compiled only."""
    held = output("a", (70000, 70000), torch.int8)
    value = call("add", load("a", (i0, i1), torch.int8), const(1, torch.int8))
    built = make(
        {},
        [output("o", (70000, 70000), torch.int8)],
        [70000, 70000],
        [],
        [Store("o", (i0, i1), value)],
        buffers=[replace(held, kind="input")],
        interpreted=False,
    )
    return built


def _symbolic(rows: int, columns: int, hint: int) -> Case:
    layout = Layout.contiguous((S, T))
    held = Buffer("a", f32, CUDA, layout, "input")
    value = call("mul", load("a", (i0, i1), f32), load("b", (i1,), f32))
    return make(
        {"a": random(rows, columns), "b": random(columns)},
        [output("o", (S, T), f32)],
        [S, T],
        [],
        [Store("o", (i0, i1), value)],
        buffers=[held, Buffer("b", f32, CUDA, Layout.contiguous((T,)), "input")],
        hints={S: hint, T: hint},
        sizes={S: rows, T: columns},
    )


CASES["symbolic"] = cache(lambda: _symbolic(5, 37, 1024))
CASES["symbolic-16"] = cache(lambda: _symbolic(16, 48, 1024))
CASES["symbolic-empty"] = cache(lambda: _symbolic(0, 37, 64))


def gated(width: int, dtype: torch.dtype) -> Case:
    """The gradients of both operands of a gate side by side, and their sums over the rows."""
    inputs = {name: random(70, 2 * width, dtype=dtype, seed=n) for n, name in enumerate("ab")}
    a, b = (cast(load(name, (r0, i0), dtype), f32) for name in inputs)
    value = call("mul", a, call("sigmoid", b))
    stores = [Store("o", (r0, i0), cast(value, dtype)), Store("sum", (i0,), reduce("sum", value))]
    outputs = [output("o", (70, 2 * width), dtype), output("sum", (2 * width,), f32)]
    whole = make(inputs, outputs, (2 * width,), (70,), stores, tolerance=1e-4)
    (loop,) = whole.program.loops
    return replace(whole, program=replace(whole.program, operations=(at_once(loop, loop.ranges[0], 2),)))


CASES["segments-of-columns"] = cache(lambda: gated(37, f32))
CASES["segments-of-columns-bf16"] = cache(lambda: gated(64, bf16))


@case("segments")
def _() -> Case:
    """A rotation: each half of a row needs both."""
    inputs = {"x": random(9, 74), "w": random(74)}
    x, y = load("x", (i0, i1), f32), load("x", (i0, 73 - i1), f32)
    value = call("sub", call("mul", x, load("w", (i1,), f32)), y)
    whole = make(inputs, [output("o", (9, 74), f32)], (9, 74), (), [Store("o", (i0, i1), value)])
    (loop,) = whole.program.loops
    return replace(whole, program=replace(whole.program, operations=(at_once(loop, loop.ranges[1], 2),)))

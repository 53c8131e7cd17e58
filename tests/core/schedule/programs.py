"""Programs made by hand, for golden texts and for single rules: a small notation on top of `litz.ir.build`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from litz.ir import Buffer, Extern, Layout, Loop, Node, Operation, Program, Range, Store, TensorRef, build
from litz.ir.index import Expr, loop_var, placeholder, reduction_var, to_expr

CPU = torch.device("cpu")
F32 = torch.float32
Index = tuple[Any, ...]


def call(name: str, *args: Node | float) -> Node:
    """An op of the table; numbers become constants of the first node's type."""
    dtype = next(arg.dtype for arg in args if isinstance(arg, Node))
    return build.call(name, *[arg if isinstance(arg, Node) else build.const(arg, dtype) for arg in args])


class Writer:
    """A program in the making. Loops are written as functions of their variables."""

    def __init__(self) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.inputs: list[str] = []
        self.operations: list[Operation] = []

    def input(self, name: str, *size: int, dtype: torch.dtype = F32) -> str:
        self.buffers[name] = Buffer(name, dtype, CPU, Layout.contiguous(size), "input")
        self.inputs.append(name)
        return name

    def load(self, name: str, *index: Any, indirect: tuple[Node, ...] = (), mask: Node | None = None) -> Node:
        return build.load(name, tuple(map(to_expr, index)), self.buffers[name].dtype, indirect, mask)

    def pointwise(self, name: str, size: tuple[int, ...], body: Callable[..., Node]) -> str:
        """name[i0, i1, ...] = body(i0, i1, ...)"""
        at = tuple(loop_var(n) for n in range(len(size)))
        value = body(*at)
        self.buffers[name] = Buffer(name, value.dtype, CPU, Layout.contiguous(size))
        self.loop(size, (), Store(name, at, value))
        return name

    def reduce(
        self, name: str, kind: str, size: tuple[int, ...], inner: tuple[int, ...], body: Callable[..., Node]
    ) -> str:
        """name[i0, ...] = the reduction of body(i0, ..., r0, ...) over r0, ..."""
        at = tuple(loop_var(n) for n in range(len(size)))
        value = build.reduce(kind, body(*at, *(reduction_var(n) for n in range(len(inner)))))
        self.buffers[name] = Buffer(name, value.dtype, CPU, Layout.contiguous(size))
        self.loop(size, inner, Store(name, at, value))
        return name

    def loop(self, size: tuple[int, ...], inner: tuple[int, ...], *stores: Store) -> None:
        ranges = tuple(Range(loop_var(n), to_expr(extent)) for n, extent in enumerate(size))
        reduction = tuple(Range(reduction_var(n), to_expr(extent)) for n, extent in enumerate(inner))
        self.operations.append(Loop(f"op{len(self.operations)}", CPU, ranges, reduction, stores))

    def store_into(self, name: str, size: tuple[int, ...], body: Callable[..., Node]) -> None:
        """name[i0, ...] = body(i0, ...), over what is there."""
        at = tuple(loop_var(n) for n in range(len(size)))
        self.loop(size, (), Store(name, at, body(*at)))

    def call(self, name: str, target: Any, *sources: str, alias: bool = False, effect: bool = False) -> str:
        """name = target(sources), of the first one's shape."""
        refs = tuple(TensorRef(source, self.buffers[source].layout) for source in sources)
        first = self.buffers[sources[0]]
        self.buffers[name] = Buffer(name, first.dtype, CPU, first.layout)
        aliases = {name: sources[0]} if alias else {}
        operation = f"op{len(self.operations)}"
        self.operations.append(Extern(operation, CPU, target, refs, {}, (name,), (), aliases, effect=effect))
        return name

    def program(self, *outputs: str, name: str = "example") -> Program:
        refs = tuple(TensorRef(output, self.buffers[output].layout) for output in outputs)
        return Program(name, tuple(self.inputs), self.buffers, tuple(self.operations), refs)

    def args(self) -> list[torch.Tensor]:
        """Inputs: random floats; integers count up from 0, modulo 3."""
        generator = torch.Generator().manual_seed(0)
        found = []
        for name in self.inputs:
            buffer = self.buffers[name]
            size = [int(extent) for extent in buffer.layout.size]
            if buffer.dtype.is_floating_point:
                found.append(torch.rand(size, generator=generator, dtype=buffer.dtype) - 0.5)
            else:
                found.append((torch.arange(torch.Size(size).numel()) % 3).reshape(size).to(buffer.dtype))
        return found


def softmax(rows: int = 8, columns: int = 64) -> Writer:
    w = Writer()
    w.input("x", rows, columns)
    w.reduce("top", "max", (rows,), (columns,), lambda i, r: w.load("x", i, r))
    w.pointwise("e", (rows, columns), lambda i, j: call("exp", call("sub", w.load("x", i, j), w.load("top", i))))
    w.reduce("total", "sum", (rows,), (columns,), lambda i, r: w.load("e", i, r))
    w.pointwise("y", (rows, columns), lambda i, j: call("div", w.load("e", i, j), w.load("total", i)))
    return w


def layer_norm(batch: int = 4, time: int = 8, width: int = 32) -> Writer:
    """Statistics over (B*T, C), the rest over (B, T, C)."""
    w = Writer()
    w.input("x", batch * time, width)
    w.input("weight", width)
    w.input("bias", width)
    rows = batch * time
    w.reduce("mean", "welford_mean", (rows,), (width,), lambda i, r: w.load("x", i, r))
    w.reduce("m2", "welford_m2", (rows,), (width,), lambda i, r: w.load("x", i, r))
    w.pointwise("rstd", (rows,), lambda i: call("rsqrt", call("add", call("div", w.load("m2", i), width), 1e-5)))

    def apply(b: Expr, t: Expr, c: Expr) -> Node:
        row = b * time + t
        value = call("mul", call("sub", w.load("x", row, c), w.load("mean", row)), w.load("rstd", row))
        return call("add", call("mul", value, w.load("weight", c)), w.load("bias", c))

    w.pointwise("y", (batch, time, width), apply)
    return w


def bias_gelu(rows: int = 8, columns: int = 64) -> Writer:
    w = Writer()
    w.input("x", rows, columns)
    w.input("bias", columns)
    shape = (rows, columns)
    w.pointwise("s", shape, lambda i, j: call("add", w.load("x", i, j), w.load("bias", j)))
    w.pointwise("t", shape, lambda i, j: call("add", call("erf", call("mul", w.load("s", i, j), 0.70710678)), 1.0))
    w.pointwise("y", shape, lambda i, j: call("mul", call("mul", w.load("s", i, j), 0.5), w.load("t", i, j)))
    return w


def batch_norm(n: int = 4, c: int = 8, h: int = 6) -> Writer:
    """Training: statistics per channel, running mean updated in place, apply and relu."""
    w = Writer()
    w.input("x", n, c, h, h)
    w.input("running", c)
    w.reduce("mean", "welford_mean", (c,), (n, h, h), lambda k, a, i, j: w.load("x", a, k, i, j))
    w.reduce("m2", "welford_m2", (c,), (n, h, h), lambda k, a, i, j: w.load("x", a, k, i, j))

    def apply(a: Expr, k: Expr, i: Expr, j: Expr) -> Node:
        scale = call("rsqrt", call("add", call("div", w.load("m2", k), n * h * h), 1e-5))
        value = call("mul", call("sub", w.load("x", a, k, i, j), w.load("mean", k)), scale)
        return call("maximum", value, 0.0)

    w.pointwise("y", (n, c, h, h), apply)
    w.store_into(
        "running",
        (c,),
        lambda k: call("add", call("mul", w.load("running", k), 0.9), call("mul", w.load("mean", k), 0.1)),
    )
    return w


def batch_norm_backward(n: int = 4, c: int = 8, h: int = 6) -> Writer:
    w = Writer()
    w.input("dy", n, c, h, h)
    w.input("x", n, c, h, h)
    w.input("mean", c)
    w.input("rstd", c)
    shape = (n, c, h, h)
    w.pointwise(
        "xhat",
        shape,
        lambda a, k, i, j: call("mul", call("sub", w.load("x", a, k, i, j), w.load("mean", k)), w.load("rstd", k)),
    )
    w.reduce("db", "sum", (c,), (n, h, h), lambda k, a, i, j: w.load("dy", a, k, i, j))
    w.reduce(
        "dw",
        "sum",
        (c,),
        (n, h, h),
        lambda k, a, i, j: call("mul", w.load("dy", a, k, i, j), w.load("xhat", a, k, i, j)),
    )
    m = float(n * h * h)

    def body(a: Expr, k: Expr, i: Expr, j: Expr) -> Node:
        inner = call("mul", w.load("dy", a, k, i, j), m)
        inner = call("sub", inner, w.load("db", k))
        inner = call("sub", inner, call("mul", w.load("xhat", a, k, i, j), w.load("dw", k)))
        return call("mul", inner, call("div", w.load("rstd", k), m))

    w.pointwise("dx", shape, body)
    return w


def cross_entropy(rows: int = 8, columns: int = 32) -> Writer:
    w = Writer()
    w.input("x", rows, columns)
    w.input("target", rows, dtype=torch.int64)
    w.reduce("top", "max", (rows,), (columns,), lambda i, r: w.load("x", i, r))
    w.reduce(
        "total", "sum", (rows,), (columns,), lambda i, r: call("exp", call("sub", w.load("x", i, r), w.load("top", i)))
    )

    def loss(i: Expr) -> Node:
        chosen = build.bounded(w.load("target", i), columns)
        picked = w.load("x", i, placeholder(0), indirect=(chosen,))
        return call("sub", call("log", w.load("total", i)), call("sub", picked, w.load("top", i)))

    w.pointwise("losses", (rows,), loss)
    w.reduce("loss", "sum", (), (rows,), lambda r: w.load("losses", r))
    return w


def dropout(rows: int = 8, columns: int = 16) -> Writer:
    w = Writer()
    w.input("x", rows, columns)
    w.input("seed", 1, dtype=torch.int64)
    shape = (rows, columns)

    def keep(i: Expr, j: Expr) -> Node:
        drawn = build.call("random_uniform", w.load("seed", 0), build.index(i * columns + j))
        return build.call("gt", drawn, build.const(0.5, F32))

    w.pointwise("mask", shape, keep)
    w.pointwise(
        "y",
        shape,
        lambda i, j: build.call(
            "where", w.load("mask", i, j), call("mul", w.load("x", i, j), 2.0), build.const(0.0, F32)
        ),
    )
    return w


def cat(rows: int = 4, left: int = 8, right: int = 6) -> Writer:
    w = Writer()
    w.input("a", rows, left)
    w.input("b", rows, right)
    w.pointwise("a2", (rows, left), lambda i, j: call("mul", w.load("a", i, j), 2.0))
    w.pointwise("b2", (rows, right), lambda i, j: call("exp", w.load("b", i, j)))

    def body(i: Expr, j: Expr) -> Node:
        inside = build.call("lt", build.index(j), build.const(left, torch.int64))
        outside = build.call("ge", build.index(j), build.const(left, torch.int64))
        first = w.load("a2", i, j, mask=inside)
        return build.call("where", inside, first, w.load("b2", i, j - left, mask=outside))

    w.pointwise("y", (rows, left + right), body)
    return w


def transposed(rows: int = 4, columns: int = 8) -> Writer:
    w = Writer()
    w.input("x", rows, columns)
    w.pointwise("s", (rows, columns), lambda i, j: call("mul", w.load("x", i, j), 2.0))
    w.pointwise("y", (columns, rows), lambda i, j: call("add", w.load("s", j, i), 1.0))
    return w


def gather(rows: int = 8, columns: int = 4) -> Writer:
    """Rows of a computed table: only those that are asked for are computed."""
    w = Writer()
    w.input("table", rows, columns)
    w.input("ids", 5, dtype=torch.int64)
    w.pointwise("s", (rows, columns), lambda i, j: call("add", w.load("table", i, j), build.cast(build.index(i), F32)))
    w.pointwise(
        "y",
        (5, columns),
        lambda i, j: w.load("s", placeholder(0), j, indirect=(build.bounded(w.load("ids", i), rows),)),
    )
    return w


def two_reductions(rows: int = 8, columns: int = 16) -> Writer:
    """The variance, then the greatest deviation in units of it: over the same rows."""
    w = Writer()
    w.input("x", rows, columns)
    w.reduce("mean", "welford_mean", (rows,), (columns,), lambda i, r: w.load("x", i, r))
    w.reduce(
        "most", "max", (rows,), (columns,), lambda i, r: call("abs", call("sub", w.load("x", i, r), w.load("mean", i)))
    )
    return w


def large_sum(rows: int = 1000, columns: int = 1000) -> Writer:
    w = Writer()
    w.input("x", rows, columns)
    w.reduce("s", "sum", (), (rows, columns), lambda a, b: w.load("x", a, b))
    w.pointwise("y", (), lambda: call("sqrt", call("abs", w.load("s"))))
    return w


def scatter(rows: int = 8, columns: int = 4) -> Writer:
    """Zeros, added into at rows that are read from memory, then read: three kernels, as rows meet."""
    w = Writer()
    w.input("x", 5, columns)
    w.input("ids", 5, dtype=torch.int64)
    w.pointwise("sums", (rows, columns), lambda i, j: build.const(0.0, F32))
    at = loop_var(0), loop_var(1)
    row = build.bounded(w.load("ids", at[0]), rows)
    w.loop((5, columns), (), Store("sums", (placeholder(0), at[1]), w.load("x", *at), (row,), "add"))
    w.pointwise("y", (rows, columns), lambda i, j: call("mul", w.load("sums", i, j), 2.0))
    return w


def mutation(rows: int = 4, columns: int = 8) -> Writer:
    """The input is read before and after it is written, the first time from right to left."""
    w = Writer()
    w.input("x", rows, columns)
    w.pointwise("before", (rows, columns), lambda i, j: call("add", w.load("x", i, columns - 1 - j), 1.0))
    w.pointwise("same", (rows, columns), lambda i, j: call("mul", w.load("x", i, j), 3.0))
    w.store_into("x", (rows, columns), lambda i, j: call("sub", w.load("x", i, j), call("exp", w.load("x", i, j))))
    w.pointwise("after", (rows, columns), lambda i, j: call("neg", w.load("x", i, j)))
    return w


EXAMPLES: dict[str, tuple[Callable[[], Writer], tuple[str, ...]]] = {
    "softmax": (softmax, ("y",)),
    "layer_norm": (layer_norm, ("y", "mean", "rstd")),
    "bias_gelu": (bias_gelu, ("y",)),
    "batch_norm": (batch_norm, ("y", "mean")),
    "batch_norm_backward": (batch_norm_backward, ("dx", "dw", "db")),
    "cross_entropy": (cross_entropy, ("loss", "top", "total")),
    "dropout": (dropout, ("y", "mask")),
    "cat": (cat, ("y",)),
    "transposed": (transposed, ("y",)),
    "gather": (gather, ("y",)),
    "two_reductions": (two_reductions, ("most", "mean")),
    "large_sum": (large_sum, ("y",)),
    "scatter": (scatter, ("y",)),
    "mutation": (mutation, ("before", "same", "after")),
}
"""By name: what makes the program, and its outputs."""

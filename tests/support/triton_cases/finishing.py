"""Split reductions in one launch: the last program of a block of outputs combines what all have stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import torch

from litz.ir import Buffer, Layout, Loop, Node, Store
from litz.ir.build import call, cast, const, load, reduce
from litz.ir.index import to_expr
from litz.schedule.finish import why_not_finish
from litz.schedule.segments import at_once
from litz.target import target_named
from litz_passes.schedule.one_launch import as_finish
from support.own_plugins import prepare

from .case import CUDA, Case, S, bf16, case, f32, i0, i1, make, output, r0, r1, random

GPU = replace(target_named("H100"), launch_us=0.01)
"""One on which it pays to split small reductions too."""


def finished(whole: Case, units: int = 132) -> Case:
    """The case with each of its reductions split: the partial results of all of them, then what finishes them."""
    target = replace(GPU, units=units)
    program = prepare(whole.program, SimpleNamespace(fusion=True), lambda device: target)
    first, *others = program.loops
    assert first.name.endswith("_parts"), "not split"
    finish: list[Loop] = []
    for other in others:
        found = as_finish(first, other)
        assert found is not None
        assert why_not_finish(first, finish, found, {}) is None
        finish.append(found)
    return replace(whole, program=replace(program, operations=(first, *finish)))


def columns(
    a: torch.Tensor, values: Callable[[Node], Sequence[tuple[str, Node]]], layout: Layout | None = None
) -> Case:
    """Results per column of a matrix, or per last two dimensions of three."""
    kept = (i0,) if a.dim() == 2 else (i0, i1)
    found = values(load("a", (r0, *kept), a.dtype))
    outputs = [output(name, a.shape[1:], value.dtype) for name, value in found]
    stores = [Store(name, kept, value) for name, value in found]
    buffers = [] if layout is None else [Buffer("a", a.dtype, CUDA, layout, "input")]
    return make({"a": a}, outputs, a.shape[1:], a.shape[:1], stores, buffers=buffers, tolerance=1e-4)


def statistics(x: Node) -> list[tuple[str, Node]]:
    """A batch norm's, and what is computed of them."""
    x = cast(x, f32)
    spread = call("div", reduce("welford_m2", x), const(192.0, f32))
    scale = call("rsqrt", call("add", spread, const(1e-5, f32)))
    return [("mean", reduce("welford_mean", x)), ("scale", scale)]


@case("finish-columns")
def _() -> Case:
    return finished(columns(random(192, 40), lambda x: [("sum", reduce("sum", x)), ("max", reduce("max", x))]))


@case("finish-blocks-of-columns")
def _() -> Case:
    return finished(columns(random(192, 200, dtype=bf16), statistics))


@case("finish-short-last-piece")
def _() -> Case:
    return finished(columns(random(193, 40), lambda x: [("sum", reduce("sum", x)), ("min", reduce("min", x))]))


@case("finish-all")
def _() -> Case:
    a = random(3, 4099)
    value = reduce("sum", load("a", (r0, r1), f32))
    return finished(make({"a": a}, [output("o", (), f32)], (), a.shape, [Store("o", (), value)], tolerance=1e-4))


@case("finish-rows-in-pieces-of-two-ranges")
def _() -> Case:
    a = random(2, 3, 4100)
    values = statistics(load("a", (r0, i0, r1), f32))
    outputs = [output(name, (3,), f32) for name, _ in values]
    stores = [Store(name, (i0,), value) for name, value in values]
    return finished(make({"a": a}, outputs, (3,), (2, 4100), stores, tolerance=1e-4))


@case("finish-columns-apart")
def _() -> Case:
    """Two ranges of outputs that are not one in what is read, but are in the partial results."""
    a = random(192, 6, 9).transpose(1, 2)
    return finished(columns(a, lambda x: [("sum", reduce("sum", x))]))


@case("finish-symbolic-length")
def _() -> Case:
    a = random(8, 7, 40)
    held = Buffer("a", f32, CUDA, Layout.contiguous((to_expr(8), S, to_expr(40))), "input")
    stores = [Store("o", (i0,), reduce("sum", load("a", (r0, r1, i0), f32)))]
    whole = make(
        {"a": a}, [output("o", (40,), f32)], (40,), (8, S), stores,
        buffers=[held], hints={S: 64}, sizes={S: 7}, tolerance=1e-4,
    )  # fmt: skip
    return finished(whole, units=2)


@case("finish-writes-what-it-reads")
def _() -> Case:
    """Running statistics: the last program reads and writes them."""
    whole = finished(columns(random(192, 40), lambda x: [("running", reduce("sum", x))]))
    first, finish = whole.program.loops
    (store,) = finish.stores
    value = call("add", call("mul", load("running", store.index, f32), const(0.5, f32)), store.value)
    finish = replace(finish, stores=(replace(store, value=value),))
    buffers = {**whole.program.buffers, "running": replace(whole.program.buffers["running"], kind="input")}
    program = replace(whole.program, inputs=("a", "running"), buffers=buffers, operations=(first, finish))
    return replace(whole, program=program, inputs={**whole.inputs, "running": random(40, seed=1)})


@case("finish-twice")
def _() -> Case:
    """Two loops that finish one."""
    whole = finished(columns(random(192, 40), lambda x: [("sum", reduce("sum", x)), ("max", reduce("max", x))]))
    first, finish = whole.program.loops
    apart = [replace(finish, name=store.buffer, stores=(store,)) for store in finish.stores]
    return replace(whole, program=replace(whole.program, operations=(first, *apart)))


@case("finish-segments")
def _() -> Case:
    """Both halves of the columns at once, as where they are the gradients of two operands."""
    whole = finished(columns(random(192, 148, dtype=bf16), statistics))
    loops = [at_once(loop, next(r for r in loop.ranges if r.size == 148), 2) for loop in whole.program.loops]
    return replace(whole, program=replace(whole.program, operations=tuple(loops)))

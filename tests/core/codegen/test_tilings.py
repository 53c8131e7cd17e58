"""Tilings of kernels that memory bounds: which rows are held in registers, and how many warps columns have."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from functools import partial

import pytest
import torch

pytest.importorskip("triton")

from litz.ir import Store
from litz.ir.build import call, cast, const, load, reduce
from litz.ir.index import loop_var
from litz.target import target_named
from litz.targets.triton.finish import choose_tilings
from litz.tiles.shape import Tiling
from support.triton_cases import make, output
from support.triton_cases.case import Case, bf16, f32, i0, i1, i2, r0

H100 = target_named("H100")


def _tiling(case: Case) -> Tiling:
    return choose_tilings(case.plan, H100)[0]


def _softmax(columns: int, dtype: torch.dtype, further: int = 0) -> Case:
    """further: so many products before the softmax."""
    x = cast(load("a", (i0, r0), dtype), f32)
    for n in range(further):
        x = call("mul", x, const(2 + n, f32))
    power = call("exp", call("sub", x, reduce("max", x)))
    stores = [Store("o", (i0, r0), cast(call("div", power, reduce("sum", power)), dtype))]
    inputs = {"a": torch.empty(2048, columns, dtype=dtype)}
    return make(inputs, [output("o", (2048, columns), dtype)], [2048], [columns], stores)


def _norm(columns: int, dtype: torch.dtype, own: int = 1) -> Case:
    """A layer norm with weights of a sum of `own` tensors; three loads with one."""
    names = [f"a{n}" for n in range(own)]
    x = cast(load("a0", (i0, r0), dtype), f32)
    for name in names[1:]:
        x = call("add", x, cast(load(name, (i0, r0), dtype), f32))
    scale = call("rsqrt", call("div", reduce("welford_m2", x), const(columns, f32)))
    normal = call("mul", call("sub", x, reduce("welford_mean", x)), scale)
    value = call("mul", normal, cast(load("w", (r0,), dtype), f32))
    if own == 1:
        value = call("add", value, cast(load("b", (r0,), dtype), f32))
    inputs = {name: torch.empty(2048, columns, dtype=dtype) for name in names}
    inputs |= {name: torch.empty(columns, dtype=dtype) for name in ("w", "b")[: 3 - own]}
    stores = [Store("o", (i0, r0), cast(value, dtype))]
    return make(inputs, [output("o", (2048, columns), dtype)], [2048], [columns], stores)


@pytest.mark.parametrize(
    ("case", "held", "block", "warps"),
    [
        (lambda: _softmax(32768, f32), True, 32768, 16),
        (lambda: _softmax(50257, f32), False, 8192, 16),
        (lambda: _softmax(50257, bf16), True, 65536, 32),
        (lambda: _softmax(65536, bf16), True, 65536, 32),
        (lambda: _softmax(65536, bf16, further=8), False, 8192, 32),
        (lambda: _softmax(65537, bf16), False, 8192, 16),
        (lambda: _norm(4096, bf16), True, 4096, 8),
        (lambda: _norm(2048, f32), True, 2048, 8),
        (lambda: _norm(4096, f32), False, 4096, 8),
        (lambda: _norm(4095, f32), True, 4096, 8),
        (lambda: _norm(4096, f32, own=2), True, 4096, 8),
    ],
    ids=[
        "softmax 32768 f32",
        "softmax 50257 f32",
        "softmax 50257 bf16",
        "softmax 65536 bf16",
        "of many nodes",
        "softmax 65537 bf16",
        "norm 4096 bf16",
        "norm 2048 f32",
        "norm 4096 f32",
        "norm 4095 f32, not aligned",
        "norm of a sum 4096 f32",
    ],
)
def test_rows_in_registers_and_in_passes(case: Callable[[], Case], held: bool, block: int, warps: int) -> None:
    """As an H200 measured: softmax of 50257 in bf16 98.7 us held and 111.8 in passes, layer norm of 4096 in float32
    136.3 held and 131.5 in passes."""
    tiling = _tiling(case())
    r = tiling.axis("r")
    assert r is not None and (tiling.persistent, r.block, tiling.num_warps) == (held, block, warps)
    assert tiling.together == 1 or r.block < int(r.size)


def _gate(images: int, dtype: torch.dtype, sums: int = 3) -> Case:
    """The gradient of a gate, written and summed, and sums of further products: of 256 tokens a program."""
    x, grad, gate = load("x", (i0, r0, i1), dtype), load("grad", (i0, r0, i1), dtype), load("gate", (i0, i1), dtype)
    made = call("mul", cast(grad, f32), cast(gate, f32))
    summed = [made, call("mul", cast(grad, f32), cast(x, f32)), cast(grad, f32)][:sums]
    stores = [Store("made", (i0, r0, i1), cast(made, dtype))]
    stores += [Store(f"s{n}", (i0, i1), reduce("sum", value)) for n, value in enumerate(summed)]
    size = (images, 256, 1152)
    names = ["x", "grad"] if sums > 1 else ["grad"]
    inputs = {name: torch.empty(size, dtype=dtype) for name in names}
    inputs["gate"] = torch.empty(images, 1152, dtype=dtype)
    outputs = [output("made", size, dtype), *(output(f"s{n}", (images, 1152), f32) for n in range(sums))]
    return make(inputs, outputs, [images, 1152], [256], stores)


@pytest.mark.parametrize(
    ("images", "dtype", "warps"),
    [(16, bf16, 8), (32, bf16, 4), (32, f32, 4), (64, bf16, 8)],
    ids=["2.2 programs an SM", "4.4 programs", "4.4 programs, float32", "8.7 programs"],
)
def test_columns_whose_programs_are_all_at_work(images: int, dtype: torch.dtype, warps: int) -> None:
    """With 8 warps an SM holds 3 programs of three sums, of 66 to 80 registers a thread, with 4 warps 5: an H200 took
    33.1 and 26.5 us in bf16, 44.2 and 37.2 in float32."""
    tiling = _tiling(_gate(images, dtype))
    assert [axis.block for axis in tiling.axes] == [64, 32] and tiling.num_warps == warps


def test_a_column_sum_is_as_it_was() -> None:
    """One load and one sum: every other tiling was slower on an H200."""
    stores = [Store("o", (i0,), reduce("sum", cast(load("a", (r0, i0), bf16), f32)))]
    inputs = {"a": torch.empty(4096, 32768, dtype=bf16)}
    tiling = _tiling(make(inputs, [output("o", (32768,), f32)], [32768], [4096], stores))
    assert [axis.block for axis in tiling.axes] == [64, 256] and tiling.num_warps == 8


def _window(dtype: torch.dtype, kernel: int, step: int, last: bool) -> Case:
    """The greatest of kernel x kernel taps of 4096 images of 113 x 113, 64 of them side by side in channels last."""
    out = 1 + (113 - kernel) // step
    taps = itertools.product(range(kernel), range(kernel))
    if last:
        size, made = (64, 113, 113, 64), (64, out, out, 64)
        loads = [load("a", (i0, step * i1 + y, step * i2 + x, loop_var(3)), dtype) for y, x in taps]
        index = (i0, i1, i2, loop_var(3))
    else:
        size, made = (4096, 113, 113), (4096, out, out)
        loads = [load("a", (i0, step * i1 + y, step * i2 + x), dtype) for y, x in taps]
        index = (i0, i1, i2)
    greatest = functools.reduce(partial(call, "maximum"), loads)
    inputs = {"a": torch.empty(size, dtype=dtype, device="meta")}
    return make(inputs, [output("o", made, dtype)], list(made), [], [Store("o", index, greatest)])


@pytest.mark.parametrize(
    ("dtype", "kernel", "step", "last", "elements"),
    [
        (bf16, 3, 2, False, 1),
        (bf16, 3, 1, False, 2),
        (f32, 3, 2, False, 1),
        (bf16, 1, 1, False, 16),
        (bf16, 3, 2, True, 8),
        (bf16, 4, 1, True, 8),
    ],
)
def test_loads_of_one_element_are_shared_by_many_threads(
    dtype: torch.dtype, kernel: int, step: int, last: bool, elements: int
) -> None:
    """Max pools by windows of 3 and steps of 2 took 143 us with 8 elements a thread on an H100, and 61 with 1."""
    tiling = _tiling(_window(dtype, kernel, step, last))
    (axis,) = tiling.axes
    assert axis.block // (32 * tiling.num_warps) == elements


@pytest.mark.parametrize(("columns", "rows", "block"), [(65536, 183, 16), (65536, 2250, 32), (4096, 2250, 64)])
def test_rows_of_a_statistic_at_a_time(columns: int, rows: int, block: int) -> None:
    """Statistics of 2250 values took 102.6 us with 16 rows at a time on an H100, and 82.8 with 32."""
    value = cast(load("a", (r0, i0), bf16), f32)
    stores = [Store(name, (i0,), reduce(f"welford_{name}", value)) for name in ("mean", "m2")]
    inputs = {"a": torch.empty(rows, columns, dtype=bf16, device="meta")}
    outputs = [output(name, (columns,), f32) for name in ("mean", "m2")]
    tiling = _tiling(make(inputs, outputs, [columns], [rows], stores))
    assert [axis.block for axis in tiling.axes] == [32, block] and tiling.num_warps == 4

"""float8: every byte read, values that are hard to round, copies, a quantised row."""

from __future__ import annotations

from functools import cache

import torch

from litz.ir import Store
from litz.ir.build import bitcast, call, cast, const, index, load, reduce
from litz.ir.dtypes import FLOAT8

from ..float8 import every_byte, halfway, sampled
from .case import CASES, Case, bf16, f16, f32, i0, i1, make, output, r0, random

FEW = 2**17 - 1
"""The distance of the samples of float32: 64 of each exponent and sign."""
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def _read(dtype: torch.dtype) -> Case:
    x = load("a", (i0,), dtype)
    stores = [Store("f", (i0,), cast(x, f32)), Store("h", (i0,), cast(x, bf16)), Store("c", (i0,), x)]
    stores.append(Store("b", (i0,), bitcast(x, torch.uint8)))
    outputs = [output(name, [256], kind) for name, kind in zip("fhcb", (f32, bf16, dtype, torch.uint8), strict=True)]
    return make({"a": every_byte(dtype)}, outputs, [256], [], stores, tolerance=0)


def _written(source: torch.Tensor, dtype: torch.dtype) -> Case:
    value = cast(load("a", (i0,), source.dtype), dtype)
    count = source.numel()
    outputs = [output("o", [count], dtype), output("f", [count], f32)]
    stores = [Store("o", (i0,), value), Store("f", (i0,), cast(value, f32))]
    return make({"a": source}, outputs, [count], [], stores, tolerance=0)


def _halves(dtype: torch.dtype) -> torch.Tensor:
    """All of them, but for bfloat16's subnormal numbers, which Triton's interpreter reads as others."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    return every[(every.abs() >= torch.finfo(dtype).tiny) | (every == 0) | every.isnan()] if dtype == bf16 else every


def _hard_halves(half: torch.dtype, dtype: torch.dtype) -> torch.Tensor:
    """Those beside which a rounding changes what it does, and some of the whole range."""
    hard = halfway(dtype).to(half)
    every = _halves(half)
    return torch.cat([hard[torch.isin(hard, every)], every[::31], every[every.isnan()][:2]])


for _dtype in sorted(FLOAT8, key=str):
    _short = str(_dtype).removeprefix("torch.")
    CASES[f"read-{_short}"] = cache(lambda d=_dtype: _read(d))
    CASES[f"written-{_short}"] = cache(lambda d=_dtype: _written(torch.cat([sampled(FEW), halfway(d)]), d))
    CASES[f"written-{_short}-dense"] = cache(lambda d=_dtype: _written(sampled(), d))
    for _source in (bf16, f16):
        _name = f"written-{_short}-{str(_source)[6:]}"
        CASES[_name] = cache(lambda d=_dtype, s=_source: _written(_hard_halves(s, d), d))
        CASES[f"{_name}-all"] = cache(lambda d=_dtype, s=_source: _written(_halves(s), d))


def _selected() -> Case:
    """Some from a copy under a mask, some converted, the rest from bits."""
    size = 50
    few = call("lt", index(i0), const(20, torch.int64))
    made = cast(load("b", (i0, i1), f32), E4M3)
    value = call("where", few, load("a", (i0, i1), E4M3, mask=few), made)
    turned = call("where", few, bitcast(load("c", (i0, i1), torch.uint8), E4M3), value)
    inputs = {"a": random(size, 33).to(E4M3), "b": random(size, 33), "c": every_byte(E4M3).view(torch.uint8)[:33]}
    inputs["c"] = inputs["c"].expand(size, 33)
    outputs = [output("o", [size, 33], E4M3), output("p", [size, 33], E4M3)]
    return make(
        inputs, outputs, [size, 33], [], [Store("o", (i0, i1), value), Store("p", (i0, i1), turned)], tolerance=0
    )


def _transposed() -> Case:
    value = cast(call("mul", cast(load("a", (i1, i0), E5M2), f32), const(0.5, f32)), E5M2)
    inputs = {"a": random(70, 40).to(E5M2)}
    return make(inputs, [output("o", [40, 70], E5M2)], [40, 70], [], [Store("o", (i0, i1), value)], tolerance=0)


def _quantised() -> Case:
    """The greatest magnitude of a row, a scale, and the row divided by it."""
    value = cast(load("a", (i0, r0), bf16), f32)
    scale = call("div", reduce("max", call("abs", value)), const(448.0, f32))
    stores = [Store("s", (i0,), scale), Store("q", (i0, r0), cast(call("div", value, scale), E4M3))]
    outputs = [output("s", [37], f32), output("q", [37, 523], E4M3)]
    return make({"a": random(37, 523, dtype=bf16)}, outputs, [37], [523], stores, tolerance=0)


def _scaled_rows() -> Case:
    """A float8 for each row, which a program has one of: fewer than a register holds."""
    rows = call("mul", cast(load("a", (i0, r0), bf16), f32), cast(load("s", (i0,), E4M3), f32))
    inputs = {"a": random(5, 3000, dtype=bf16), "s": random(5).to(E4M3)}
    return make(inputs, [output("o", [5], f32)], [5], [3000], [Store("o", (i0,), reduce("max", rows))], tolerance=0)


CASES["float8-scaled-rows"] = cache(_scaled_rows)
CASES["float8-selected"] = cache(_selected)
CASES["float8-transposed"] = cache(_transposed)
CASES["float8-quantised"] = cache(_quantised)

"""Op rows: many in one kernel, an output each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from litz.ir import Node, Store
from litz.ir.build import bitcast as bitcast_node
from litz.ir.build import call, cast, const, load
from litz.ir.dtypes import FLOAT, HALF, INTEGER
from litz.ir.ops import OPS
from litz.targets.cpp.dialect import CPP
from litz.targets.triton.dialect import TRITON

from .case import (
    CASES,
    Case,
    bf16,
    case,
    f16,
    f32,
    f64,
    i0,
    make,
    output,
    random,
)

_POSITIVE = {"log", "log2", "log10", "sqrt", "rsqrt", "lgamma", "reciprocal", "acosh", "pow", "log1p"}
_UNIT = {"asin", "acos", "atanh", "erfinv"}


def _operand(name: str, x: Node) -> Node:
    """Values that an op is defined for: |x| + 1, or x / (|x| + 1)."""
    one = const(1, x.dtype)
    if name in _POSITIVE:
        return call("add", call("abs", x), one)
    if name in _UNIT:
        return call("div", x, call("add", call("abs", x), one))
    return x


def _op_stores(names: Sequence[str], dtype: torch.dtype, loads: Sequence[Node]) -> list[tuple[str, Node]]:
    stores = []
    for name in names:
        row = OPS[name]
        args = [*loads[: row.arity]]
        if name == "where":
            args = [call("gt", loads[0], loads[1]) if dtype != torch.bool else loads[0], loads[0], loads[1]]
        args[0] = _operand(name, args[0]) if dtype.is_floating_point else args[0]
        stores.append((name, call(name, *args)))
    return stores


def _rows(dtype: torch.dtype) -> list[str]:
    """The rows that take arguments of a dtype (random numbers are cases of their own)."""
    kind = "float" if dtype in FLOAT else "bool" if dtype == torch.bool else "int"
    names = []
    for name, row in OPS.items():
        if name.startswith("random"):
            continue
        try:
            dtypes = (torch.bool, dtype, dtype) if name == "where" else (dtype,) * row.arity
            row.rule(dtypes)
            TRITON.op(name, dtype)
            CPP.op(name, dtype)
        except (TypeError, NotImplementedError):
            continue
        if dtype in HALF and name == "nextafter":
            continue  # in float32 it is another function
        if kind == "bool" and name in ("sub", "neg", "abs", "shift_left", "shift_right", "truncdiv", "floordiv"):
            continue
        if kind != "float" and name in ("sign", "abs", "neg") and dtype in (torch.uint8,):
            continue
        names.append(name)
    return names


def _op_case(dtype: torch.dtype, names: Sequence[str], special: bool = True) -> Case:
    count = 70
    a, b, c = (random(count, dtype=dtype, seed=n) for n in range(3))
    if dtype.is_floating_point and special:
        a[:6] = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 2.5])
        b[1:5] = torch.tensor([1.0, float("nan"), 0.5, -1.0])
    if dtype in INTEGER:
        b[b == 0] = 3
        b[::7] = 70 if dtype != torch.uint8 else 130  # 130: a power that needs all bits of the exponent
        a[0], a[7] = torch.iinfo(dtype).max, 2
    loads = [load(name, (i0,), dtype) for name in "abc"]
    pairs = _op_stores(names, dtype, loads)
    inputs = {name: t for name, t in zip("abc", (a, b, c), strict=True)}
    used = {node.buffer for _, value in pairs for node in _walk(value) if node.op == "load"}
    return make(
        {name: t for name, t in inputs.items() if name in used},
        [output(f"out_{name}", (count,), value.dtype) for name, value in pairs],
        [count],
        [],
        [Store(f"out_{name}", (i0,), value) for name, value in pairs],
        tolerance=1e-5 if dtype != f64 else 1e-9,
        # The interpreter's own errors: NaN goes through fmax, and ~ of uint8 overflows.
        interpreted=not {"fmax", "fmin"} & set(names) and (dtype != torch.uint8 or "bitwise_not" not in names),
    )


def _walk(node: Node) -> Sequence[Node]:
    from litz.ir.node import walk

    return tuple(walk(node))


_OUTSIDE = ("fmax", "fmin")
for _dtype in (f32, f64):
    _text = f"ops-{str(_dtype).removeprefix('torch.')}-fmax"
    CASES[_text] = cache(lambda dtype=_dtype: _op_case(dtype, _OUTSIDE))
for _dtype in (f32, f64, bf16, f16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool):
    for _arity in (1, 2, 3):
        _names = [name for name in _rows(_dtype) if OPS[name].arity == _arity and name not in _OUTSIDE]
        if not _names:
            continue
        _text = f"ops-{str(_dtype).removeprefix('torch.')}-{_arity}"
        CASES[_text] = cache(lambda dtype=_dtype, names=tuple(_names): _op_case(dtype, names))


@case("casts")
def _() -> Case:
    dtypes = [f32, f64, bf16, f16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
    inputs = {
        f"in{n}": random(40, dtype=dtype, seed=n).abs() if dtype != torch.bool else random(40, dtype=dtype)
        for n, dtype in enumerate(dtypes)
    }
    stores, outputs = [], []
    for n, source in enumerate(dtypes):
        for m, target in enumerate(dtypes):
            if source != target:
                stores.append(Store(f"o{n}_{m}", (i0,), cast(load(f"in{n}", (i0,), source), target)))
                outputs.append(output(f"o{n}_{m}", (40,), target))
    return make(inputs, outputs, [40], [], stores)


@case("bitcasts")
def _() -> Case:
    a, b = random(33), random(33, dtype=bf16)
    return make(
        {"a": a, "b": b},
        [output("o", (33,), torch.int32), output("p", (33,), torch.int16), output("q", (33,), bf16)],
        [33],
        [],
        [
            Store("o", (i0,), bitcast_node(load("a", (i0,), f32), torch.int32)),
            Store("p", (i0,), bitcast_node(load("b", (i0,), bf16), torch.int16)),
            Store("q", (i0,), bitcast_node(bitcast_node(load("b", (i0,), bf16), torch.int16), bf16)),
        ],
    )


@case("constants")
def _() -> Case:
    values = [0.0, -0.0, 1.5, -2.0, float("inf"), -float("inf"), float("nan"), 1e30]
    x = load("a", (i0,), f32)
    stores = [Store(f"o{n}", (i0,), call("copysign", x, const(v, f32))) for n, v in enumerate(values)]
    stores += [Store(f"p{n}", (i0,), const(v, f32)) for n, v in enumerate(values)]
    stores.append(Store("q", (i0,), call("add", load("b", (i0,), torch.int64), const(2**40, torch.int64))))
    stores.append(Store("t", (i0,), call("where", call("gt", x, const(0, f32)), const(1, f64), const(0.1, f64))))
    outputs = [output(s.buffer, (20,), s.value.dtype) for s in stores]
    return make({"a": random(20), "b": random(20, dtype=torch.int64)}, outputs, [20], [], stores)

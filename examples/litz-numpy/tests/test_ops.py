"""Every row of the IR's tables, as NumPy text against its meaning in torch."""

from __future__ import annotations

import math

import pytest
import torch
from kernels import I, R, check, load

from litz.ir import Store, build
from litz.ir.dtypes import FLOAT, INTEGER, SUPPORTED
from litz.ir.ops import OPS
from litz.ir.reductions import REDUCTIONS, SCANS
from litz_numpy import body
from litz_numpy.dialect import NUMPY
from litz_numpy.dialect import REDUCTIONS as REDUCTION_TEXTS

SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-6, 65504.0]
RANDOM = [name for name in OPS if name.startswith("random_")]
INTEGERS = sorted(INTEGER - {torch.uint16, torch.uint32, torch.uint64}, key=str)
"""Those that torch has more than casts for."""
DIVISIONS = ["truncdiv", "floordiv", "remainder", "fmod", "pow", "shift_left", "shift_right"]


def values(dtype, seed, count=101):
    """Random ones among those that are special. Whole numbers are small, but for the least and the greatest."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(count, generator=generator) < 0.5
    if dtype in FLOAT:
        found = torch.cat([torch.tensor(SPECIAL), 3 * torch.randn(count, generator=generator)])
        return found[torch.randperm(len(found), generator=generator)].to(dtype)
    info = torch.iinfo(dtype)
    found = torch.randint(max(info.min, -20), 20, (count,), generator=generator)
    edges = torch.tensor([info.min, min(info.max, 2**63 - 1)])
    return torch.cat([found, edges])[torch.randperm(count + 2, generator=generator)].to(dtype)


def takes(name, dtype):
    """Does an op take arguments of a type, and does torch compute it?"""
    row = OPS[name]
    try:
        row.rule((dtype,) * row.arity)
        row.torch(*[torch.ones(1, dtype=dtype)] * row.arity)
    except (TypeError, RuntimeError):
        return False
    # Constants, which no lowering computes.
    return not (name in ("isnan", "isinf", "signbit") and dtype not in FLOAT)


def check_ops(names, tensors, **tolerance):
    inputs = {f"x{number}": tensor for number, tensor in enumerate(tensors)}
    nodes = [load(name, tensor) for name, tensor in inputs.items()]
    stores, outputs = [], {}
    for name in names:
        value = build.call(name, *nodes[: OPS[name].arity])
        outputs[f"{name}_of"] = torch.empty(tensors[0].shape, dtype=value.dtype)
        stores.append(Store(f"{name}_of", (I[0],), value))
    return check([len(tensors[0])], stores, inputs, outputs, **tolerance)


def test_the_dialect_has_exactly_the_ops_types_and_casts_of_the_ir():
    assert set(NUMPY.ops) == set(OPS)
    assert set(NUMPY.elements) == set(NUMPY.values) == SUPPORTED
    for name in OPS:
        for dtype in (torch.float32, torch.int32, torch.bool):
            if takes(name, dtype):
                assert NUMPY.op(name, dtype)


@pytest.mark.parametrize("dtype", sorted(FLOAT, key=str), ids=str)
def test_float_ops(dtype):
    names = [name for name in OPS if takes(name, dtype) and (name != "nextafter" or dtype.itemsize > 2)]
    rounding = {torch.float64: 1e-12, torch.float32: 4e-6}.get(dtype, 1e-2)
    tensors = [values(dtype, seed) for seed in range(3)]
    loose = [name for name in names if name in ("lgamma", "pow", "tan", "sinh", "cosh", "sin", "cos")]
    check_ops([name for name in names if name not in loose], tensors, rtol=rounding, atol=rounding)
    moderate = [tensor.nan_to_num(1.0, 30.0, -30.0).clamp(-30, 30) for tensor in tensors]
    check_ops(loose, moderate, rtol=max(rounding, 1e-11), atol=rounding)


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool], ids=str)
def test_whole_ops(dtype):
    names = [name for name in OPS if takes(name, dtype) and name not in DIVISIONS]
    check_ops(names, [values(dtype, seed) for seed in range(3)])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_whole_divisions_powers_and_shifts(dtype):
    """Eager raises on a zero divisor, so there is none."""
    left, right = (values(dtype, seed) for seed in range(2))
    left, right = left.clamp(-30, 30), torch.where(right == 0, torch.ones_like(right), right)
    check_ops(DIVISIONS[:4], [left, right])
    check_ops(["pow"], [left % 5, right.clamp(0, 9)])
    check_ops(["shift_left", "shift_right"], [left, torch.arange(len(left)).to(dtype) % (8 * dtype.itemsize)])


def test_where_and_random_numbers():
    condition, x, y = values(torch.bool, 0), values(torch.bool, 1), values(torch.bool, 2)
    check_ops(["where"], [condition, x, y])
    seed, position = torch.full((200,), -123456789), torch.arange(200)
    check_ops(["random_bits"], [seed, position])
    check_ops(["random_uniform", "random_normal"], [seed, position], rtol=1e-6, atol=1e-6)
    assert set(RANDOM) == {"random_bits", "random_uniform", "random_normal"}


@pytest.mark.parametrize("source", sorted(SUPPORTED, key=str), ids=str)
def test_casts_and_bitcasts(source):
    x = values(source, 5)
    if source in FLOAT:
        x = x.nan_to_num(1.0, 100.0, 100.0).abs().clamp(0, 100)  # out of range is undefined in torch too
    node = load("x", x)
    outputs, stores = {}, []
    for target in sorted(SUPPORTED, key=str):
        made = {"cast": (build.cast(node, target), x.to(target))}
        if source.itemsize == target.itemsize and torch.bool not in (source, target):
            made["bitcast"] = build.bitcast(node, target), x.view(target)
        for how, (value, wanted) in made.items():
            outputs[f"{how}_{target}"] = wanted
            stores.append(Store(f"{how}_{target}", (I[0],), value))
    check([len(x)], stores, {"x": x}, outputs, wanted=list(outputs.values()))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.bool], ids=str
)
@pytest.mark.parametrize("shape", [(5, 7), (1, 1), (3, 64), (0, 4)], ids=str)
@pytest.mark.parametrize("texts", [REDUCTION_TEXTS, {}], ids=["by hand", "by their rows"])
def test_reductions(dtype, shape, texts, monkeypatch):
    """All kinds in one kernel, each stored in the type that its row says; also those that NumPy has as they would be
    written if it had not."""
    monkeypatch.setattr(body, "TEXTS", texts)
    torch.manual_seed(0)
    x = (torch.randn(shape) * 2).to(dtype)
    if dtype in FLOAT and shape[1] > 1:
        x[-1:, 1] = math.nan
    outputs, stores = {}, []
    for kind, row in REDUCTIONS.items():
        if row.takes_states or not row.means(dtype) or (kind.startswith("welford") and dtype not in FLOAT):
            continue
        if dtype == torch.bool and kind in ("argmax", "argmin", "max", "min"):
            continue  # torch has none of bool
        value = build.reduce(kind, *[load("x", x, I[0], R[0])] * row.arity)
        outputs[kind] = torch.empty(shape[0], dtype=value.dtype)
        stores.append(Store(kind, (I[0],), value))
    assert len(outputs) >= 4
    rounding = 1e-2 if dtype == torch.bfloat16 else 1e-5
    check([shape[0]], stores, {"x": x}, outputs, [shape[1]], rtol=rounding, atol=rounding)


@pytest.mark.parametrize("kind", [kind for kind, row in REDUCTIONS.items() if row.takes_states])
def test_merging_states(kind):
    """Rows without a text of their own are written from their merge, and so is a plugin's."""
    row = REDUCTIONS[kind]
    state = row.form(torch.float32).state
    torch.manual_seed(1)
    parts = [torch.randint(1, 9, (4, 13)).to(node.dtype) for node in state]
    inputs = {f"part{number}": part for number, part in enumerate(parts)}
    value = build.reduce(kind, *(load(name, part, I[0], R[0]) for name, part in inputs.items()))
    source = check(
        [4], [Store("o", (I[0],), value)], inputs, {"o": torch.empty(4, dtype=value.dtype)}, [13], rtol=1e-5, atol=1e-5
    )
    assert ("def merge" in source.text) == (len(state) > 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float16], ids=str)
def test_scans(dtype):
    torch.manual_seed(2)
    x = torch.randint(1, 3, (3, 12)).to(dtype)
    stores = [Store(kind, (I[0], R[0]), build.scan(kind, load("x", x, I[0], R[0]))) for kind in SCANS]
    check([3], stores, {"x": x}, {kind: torch.empty_like(x) for kind in SCANS}, [12])

"""Rows of a few elements in C++: they pass through tiles, in which they are columns."""

from __future__ import annotations

import pytest
import sympy
import torch

from litz.ir import Layout, Node, Store, build
from litz.ir.index import to_expr
from support.cpp_kernels import Case, I, R, load

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
TYPES = [F16, BF16, F32, F64, torch.int64, torch.uint8, torch.float8_e5m2]
S0 = sympy.Symbol("s0", integer=True, positive=True)


def numbers(*size: int, dtype: torch.dtype) -> torch.Tensor:
    values = torch.randn(size, generator=torch.Generator().manual_seed(sum(size)), dtype=F64)
    return values.to(dtype) if dtype.is_floating_point else (values.abs() * 20).to(dtype)


def normal(x: Node) -> Node:
    """x less the row's mean, over the root of the row's largest square: two walks before the stores' own."""
    x = x if x.dtype in (F32, F64) else build.cast(x, F32)
    centred = build.call("sub", x, build.reduce("welford_mean", x))
    largest = build.reduce("max", build.call("mul", centred, centred))
    return build.call("div", centred, build.call("add", build.call("sqrt", largest), build.const(1.0, x.dtype)))


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("count", [4, 5, 7, 8, 11, 16])
@pytest.mark.parametrize("rows", [65, 67, 1000])
def test_rows(dtype: torch.dtype, count: int, rows: int) -> None:
    """Tiles that are whole and cut, by fewer rows than a block has too; rows that lie apart in memory."""
    for step in (count, count + 3):
        x = numbers(rows, step, dtype=dtype)[:, :count]
        value = normal(load("x", x, I[0], R[0]))
        kept = build.cast(value, dtype if dtype in (F16, BF16) else value.dtype)
        stores = [Store("o", (I[0], R[0]), kept), Store("most", (I[0],), build.reduce("max", value))]
        outputs = {
            "o": torch.empty(rows, step, dtype=kept.dtype)[:, :count],
            "most": torch.empty(rows, dtype=value.dtype),
        }
        tolerance = 2e-2 if kept.dtype in (F16, BF16) else 1e-5
        source = Case((rows,), stores, {"x": x}, outputs, (count,)).check(rtol=tolerance, atol=tolerance)
        assert source.text.split("int kernel")[1].count("transpose(") == 2


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", ["argmax", "min", "sum"])
def test_reductions_alone(dtype: torch.dtype, kind: str) -> None:
    x = numbers(203, 6, dtype=dtype)
    read = load("x", x, I[0], R[0])
    value = build.reduce(kind, build.cast(read, F32) if dtype.itemsize == 1 and dtype.is_floating_point else read)
    store = Store("o", (I[0],), value)
    outputs = {"o": torch.empty(203, dtype=value.dtype)}
    source = Case((203,), [store], {"x": x}, outputs, (6,)).check(
        rtol=1e-2 if dtype in (F16, BF16) else 1e-5, atol=1e-5
    )
    assert source.text.split("int kernel")[1].count("transpose(") == 1


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [F16, BF16, F32, torch.uint8], ids=str)
@pytest.mark.parametrize("count", [5, 24, 32])
def test_scans_of_longer_rows_too(dtype: torch.dtype, count: int) -> None:
    """A scan has no vectors along its row."""
    x = numbers(300, count, dtype=dtype)
    read = load("x", x, I[0], R[0])
    value = build.cast(build.scan("sum", build.cast(read, F32)), dtype if dtype.is_floating_point else F32)
    outputs = {"o": torch.empty(300, count, dtype=value.dtype)}
    case = Case((300,), [Store("o", (I[0], R[0]), value)], {"x": x}, outputs, (count,))
    text = case.check(rtol=1e-2, atol=1e-2).text.split("int kernel")[1]
    assert text.count("transpose(") == 2


@pytest.mark.parametrize("dtype", [F16, F32], ids=str)
def test_in_place_and_sizes_that_vary(dtype: torch.dtype) -> None:
    for rows in (1, 7, 64, 777):
        x, shape = numbers(rows, 7, dtype=dtype), (S0, to_expr(7))
        value = build.cast(normal(build.load("x", (I[0], R[0]), dtype)), dtype)
        layouts = {name: Layout(shape, (to_expr(7), to_expr(1))) for name in ("x", "o")}
        stores = [Store("o", (I[0], R[0]), value)]
        case = Case((S0,), stores, {"x": x}, {"o": torch.empty_like(x)}, (7,), {"o": "x"}, layouts, {S0: rows})
        text = case.check(rtol=2e-3, atol=2e-3).text.split("int kernel")[1]
        assert text.count("transpose(") == 2


def test_what_lies_otherwise_stays_where_it_is() -> None:
    """A weight of the row's places, a number of each row, and rows of columns."""
    x, w, b, y = (numbers(*size, dtype=F32) for size in ((130, 6), (6,), (130,), (6, 130)))
    reads = load("x", x, I[0], R[0]), load("w", w, R[0]), load("b", b, I[0]), load("y", y, R[0], I[0])
    value = build.call("mul", build.call("add", reads[0], reads[1]), build.call("add", reads[2], reads[3]))
    stores = [Store("o", (R[0], I[0]), normal(value))]
    inputs = {"x": x, "w": w, "b": b, "y": y}
    text = Case((130,), stores, inputs, {"o": torch.empty(6, 130)}, (6,)).check(rtol=1e-5, atol=1e-5).text
    assert text.split("int kernel")[1].count("transpose(") == 1


@pytest.mark.parametrize("shape", [(64, 64), (65, 37), (3, 200)], ids=str)
def test_copies_of_halves_keep_their_bits(shape: tuple[int, int]) -> None:
    """A transposed copy of float16: NaNs of all kinds, and beside it a product."""
    bits = torch.randint(-(2**15), 2**15, shape[::-1], generator=torch.Generator().manual_seed(1)).to(torch.int16)
    x = bits.view(F16)
    case = Case(
        shape, [Store("o", (I[0], I[1]), load("x", x, I[1], I[0]))], {"x": x}, {"o": torch.empty(shape, dtype=F16)}
    )
    assert torch.equal(case.run()["o"].view(torch.int16), bits.t())
    x = numbers(*shape[::-1], dtype=F16)
    product = build.call("mul", build.cast(load("x", x, I[1], I[0]), F32), build.const(1.37, F32))
    stores = [Store("o", (I[0], I[1]), build.cast(product, F16))]
    Case(shape, stores, {"x": x}, {"o": torch.empty(shape, dtype=F16)}).check(rtol=0, atol=0)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64], ids=str)
@pytest.mark.parametrize("count", [33, 1024, 1025, 2500])
@pytest.mark.parametrize("where", ["before", "after", "both", "neither"])
def test_vectors_compute_what_is_costly_around_a_scan(dtype: torch.dtype, count: int, where: str) -> None:
    """And steps in order have the scan alone, in blocks of the row; a maximum takes in what the scan gives."""
    x = numbers(3, count, dtype=dtype)
    wide = F64 if dtype == F64 else F32
    value = build.cast(load("x", x, I[0], R[0]), wide)
    value = build.call("exp", value) if where in ("before", "both") else value
    scanned = build.scan("sum", value)
    after = build.call("log1p", build.call("abs", scanned)) if where in ("after", "both") else scanned
    stores = [
        Store("o", (I[0], R[0]), build.cast(after, dtype)),
        Store("most", (I[0],), build.reduce("max", scanned)),
        Store("last", (I[0],), build.reduce("sum", build.call("mul", after, scanned))),
    ]
    outputs = {"o": torch.empty_like(x), "most": torch.empty(3, dtype=wide), "last": torch.empty(3, dtype=wide)}
    case = Case((3,), stores, {"x": x}, outputs, (count,), {"o": "x"} if where == "both" else {})
    tolerance = {F16: 2e-3, BF16: 2e-2, F32: 2e-5, F64: 1e-9}[dtype]
    text = case.check(rtol=tolerance, atol=tolerance).text.split("int kernel")[1]
    assert ("apart" in text) == (where != "neither")


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("shape", [(64, 64), (70, 131), (9, 1000)], ids=str)
def test_halves_of_both_ranges_are_converted_in_blocks(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """What is contiguous along the lanes, and what is so along the other range; a rounded value is read again."""
    x, y = numbers(*shape[::-1], dtype=dtype), numbers(*shape, dtype=dtype)
    total = build.call("add", build.cast(load("x", x, I[1], I[0]), F32), build.cast(load("y", y, I[0], I[1]), F32))
    rounded = build.cast(total, dtype)
    twice = build.cast(build.call("mul", build.cast(rounded, F32), build.const(1.7, F32)), dtype)
    stores = [Store("o", (I[0], I[1]), rounded), Store("p", (I[1], I[0]), twice)]
    outputs = {"o": torch.empty(shape, dtype=dtype), "p": torch.empty(shape[::-1], dtype=dtype)}
    text = Case(shape, stores, {"x": x, "y": y}, outputs).check(rtol=0, atol=0).text.split("int kernel")[1]
    assert ("widen_f16" in text) == ("narrow_f16" in text) == (dtype == F16)

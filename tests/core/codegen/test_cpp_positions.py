"""Computed positions as C++: in 32 bits where these have room, made once for all rows, and outside of the lanes."""

from __future__ import annotations

import re

import pytest
import torch

from litz.ir import Node, Store, build
from litz.ir.index import placeholder
from support.cpp_kernels import Case, I, load

F32, I64 = torch.float32, torch.int64


def halved(var: object) -> Node:
    """The position var / 2, by way of a float as resampling has it."""
    number = build.cast(build.index(var), F32)  # type: ignore[arg-type]
    for op, by in (("add", 0.5), ("mul", 0.5), ("sub", 0.5)):
        number = build.call(op, number, build.const(by, F32))
    return build.cast(build.call("maximum", number, build.const(0.0, F32)), I64)


def resampled(rows: int, width: int, dtype: torch.dtype) -> Case:
    x = torch.randn(rows, -(-width // 2)).to(dtype)
    position = halved(I[1])
    value = build.load("x", (I[0], placeholder(0)), dtype, (position,))
    weight = build.call("sub", build.cast(build.index(I[1]), F32), build.cast(position, F32))
    scaled = build.cast(build.call("mul", build.cast(value, F32), weight), dtype)
    out = {"o": torch.empty(rows, width, dtype=dtype)}
    return Case((rows, width), [Store("o", (I[0], I[1]), scaled)], {"x": x}, out)


@pytest.mark.ci_cases(
    *(f"{at}-torch.{dtype}" for at in ("63-17", "64-65") for dtype in ("float32", "bfloat16", "float16", "int64")),
    *("1-1-torch.float16", "1-17-torch.float32", "1-65-torch.int64", "63-1-torch.float32", "64-1-torch.bfloat16"),
    *("63-100-torch.bfloat16", "64-17-torch.float16", "63-65-torch.float32", "64-100-torch.int64"),
)
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16, torch.float16, I64], ids=str)
@pytest.mark.parametrize("rows", [1, 17, 65, 100])
@pytest.mark.parametrize("width", [1, 63, 64])
def test_what_rows_share_is_made_once(rows: int, width: int, dtype: torch.dtype) -> None:
    """The positions and weights of a resampling, from so many rows on that the arrays pay."""
    text = resampled(rows, width, dtype).check(rtol=1e-3, atol=1e-3).text.split('extern "C" int', 1)[-1]
    table = re.search(r"alignas\(64\) int (row\d+)\[", text)
    if rows < 16 or width < 2:
        assert table is None
    else:
        assert table and f"(int){table[1]}[i1]" in text, "a row reads no position of the array"
        _, rest = text.split("for (int i0", 1)
        if dtype in (torch.bfloat16, torch.float16):  # fetched one by one, so that what follows has vectors
            first, rest = rest.split("#pragma omp simd", 1)
            assert "_bits = p0[" in first and "p0[" not in rest
        assert "maximum" not in rest and "(float)" not in rest.replace("(float)v", ""), "a row makes positions itself"


def test_positions_take_32_bits_where_these_have_room() -> None:
    """By a clamp, by the type that a position was loaded in, and by a check."""
    x, keys, rows = torch.randn(300, 90), torch.randint(0, 250, (70,), dtype=torch.uint8), torch.randint(0, 300, (70,))
    last = build.const(50, I64)
    clamped = build.call("minimum", build.call("maximum", load("j", rows, I[0]), build.const(0, I64)), last)
    byte = build.cast(load("k", keys, I[0]), I64)
    checked = build.bounded(load("j", rows, I[0]), 300)
    stores = [
        Store(name, (I[0], I[1]), build.load("x", (placeholder(0), I[1]), F32, (row,)))
        for name, row in (("o", clamped), ("p", byte), ("q", checked))
    ]
    inputs = {"x": x, "k": keys, "j": rows}
    case = Case((70, 90), stores, inputs, {name: torch.empty(70, 90) for name in "opq"})
    found = re.findall(r"= p\d\[\((\w+)\)v\d+ \* 90 \+ i1\]", case.check().text)
    assert found == ["int"] * 3
    # A number of 64 bits, and a buffer with more elements than 32 bits count.
    far = build.load("x", (placeholder(0), I[1]), F32, (build.call("maximum", load("j", rows, I[0]), last),))
    text = Case((70, 90), [Store("o", (I[0], I[1]), far)], inputs, {"o": torch.empty(70, 90)}).check().text
    assert "(i64)v" in text


@pytest.mark.parametrize("columns", [64, 100, 17])
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16, torch.float16, I64, torch.uint8], ids=str)
def test_rows_that_are_added_to_are_found_outside_of_the_lanes(columns: int, dtype: torch.dtype) -> None:
    """Else g++ gathers and scatters the elements of one row."""
    x = torch.randint(0, 9, (400, columns)).to(dtype)
    keys = torch.randint(0, 99, (400,))
    row = build.call("bitwise_and", load("k", keys, I[0]), build.const(31, I64))
    o = torch.zeros(50, columns, dtype=dtype)
    case = Case(
        (400, columns),
        [Store("o", (placeholder(0), I[1]), load("x", x), (row,), "add")],
        {"x": x, "k": keys, "o": o},
        {"o": o},
    )
    text = case.check().text.split('extern "C" int', 1)[-1]
    assert len(re.findall(r"ALL_BITS", text)) == 1 and re.search(r"const int v\d+ = v\d+ & \(int\)ALL_BITS;", text)
    assert not re.search(r"ALL_BITS|p\d+\[i0\]", text[text.rindex("for (") :]), "each lane finds the row"


@pytest.mark.parametrize("table", [3, 1], ids=str)
def test_tests_as_positions(table: int) -> None:
    """g++ takes masks for positions in gathers of what it knows to be bools."""
    x, y = torch.randn(40, 2), torch.randn(40, 300)
    at = build.cast(build.call("gt", load("y", y), build.const(0.1 * table, F32)), I64)
    value = build.load("x", (I[0], placeholder(0)), F32, (at,))
    case = Case((40, 300), [Store("o", (I[0], I[1]), value)], {"x": x, "y": y}, {"o": torch.empty(40, 300)})
    assert "ALL_BITS" in case.check().text

"""Several rows in one walk: which loops are made so, and that they compute what the interpreter does."""

from __future__ import annotations

import re

import pytest
import torch

from litz.ir import Node, Store, build
from litz.ir.index import Symbol
from litz.ir.scalars import call
from support.cpp_kernels import Case, I, R

F32 = torch.float32


def numbers(*size: int, dtype: torch.dtype = F32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(size))
    return (torch.randn(size, generator=generator) * 5).to(dtype)


def product_case(rows: int, columns: int, depth: int, stored: torch.dtype, kind: str = "dot") -> Case:
    """x (rows, depth) times the transpose of w (columns, depth), which is converted."""
    x = build.load("x", (I[0], R[0]), F32)
    w = build.cast(build.load("w", (I[1], R[0]), stored), F32)
    total = build.reduce("dot", x, w) if kind == "dot" else build.reduce(kind, call("mul", x, w))
    stores = [Store("y", (I[0], I[1]), total)]
    inputs = {"x": numbers(rows, depth), "w": numbers(columns, depth, dtype=stored)}
    return Case([rows, columns], stores, inputs, {"y": torch.empty(rows, columns)}, [depth])


def together(text: str) -> int:
    """How many outputs a kernel makes in one walk."""
    return len(set(re.findall(r"\bconst \w+ (i\d+_\d+) = ", text))) or 1


@pytest.mark.each_value
@pytest.mark.parametrize(
    "rows, count, staged", [(1, 4, False), (2, 2, False), (4, 4, False), (5, 5, True), (8, 8, True), (13, 7, True)]
)
@pytest.mark.parametrize("depth", [1, 7, 40, 700, 4111, 11008])
def test_products(rows: int, count: int, staged: bool, depth: int) -> None:
    for stored in (torch.int8, torch.bfloat16):
        case = product_case(rows, 33, depth, stored)
        if depth >= 40:
            text = case.source().text
            assert together(text) == count and ("staged" in text) == staged
        case.check(rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_other_reductions(kind: str) -> None:
    """Sums are jammed as products are; what has several variables is not, and is right."""
    case = product_case(6, 9, 300, torch.int8, kind)
    assert (together(case.source().text) == 6) == (kind == "sum")
    case.check(rtol=1e-4, atol=1e-3)


def test_float16_is_left_alone() -> None:
    """Its conversion is a block's."""
    case = product_case(4, 9, 300, torch.float16)
    assert together(case.source().text) == 1
    case.check(rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("rows", [0, 1, 4, 5, 6])
@pytest.mark.parametrize("depth", [0, 1, 600])
def test_sizes_that_are_not_known(rows: int, depth: int) -> None:
    m, k = (Symbol(name, integer=True, nonnegative=True) for name in "mk")
    case = product_case(rows, 5, depth, torch.int8)
    whole = Case([m, 5], case.stores, case.inputs, case.outputs, [k], sizes={m: rows, k: depth})
    assert depth < 600 or together(whole.source().text) == 4
    whole.check(rtol=1e-4, atol=1e-3)


def packed(rows: int, blocks: int, length: int) -> Case:
    """Two weights in a byte, a scale for each block: what lies in a block is walked with its neighbours."""
    torch.manual_seed(0)

    def halves(byte: Node) -> tuple[Node, Node]:
        four, mask = build.const(4, torch.uint8), build.const(15, torch.uint8)
        return call("bitwise_and", byte, mask), call("shift_right", byte, four)

    byte = build.load("w", (I[1], R[0], R[1]), torch.uint8)
    scale = build.load("s", (I[1], R[0]), F32)
    terms = [
        build.reduce("dot", build.load(name, (I[0], R[0], R[1]), F32), call("mul", build.cast(half, F32), scale))
        for name, half in zip("xz", halves(byte), strict=True)
    ]
    bias = build.load("b", (I[0], I[1]), F32)
    stores = [Store("y", (I[0], I[1]), call("add", call("add", *terms), bias))]
    inputs = {
        "x": numbers(rows, blocks, length),
        "z": numbers(rows, blocks, length) + 1,
        "w": torch.randint(0, 256, (7, blocks, length), dtype=torch.uint8),
        "s": numbers(7, blocks),
        "b": numbers(rows, 7),
    }
    return Case([rows, 7], stores, inputs, {"y": torch.empty(rows, 7)}, [blocks, length])


@pytest.mark.each_value
@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("blocks, length", [(2, 64), (19, 64), (16, 32), (3, 1000)])
def test_blocks_with_scales(rows: int, blocks: int, length: int) -> None:
    case = packed(rows, blocks, length)
    text = case.source().text
    assert ("(r0_b_end - r0_b) * " in text) == (rows > 1 and length <= 512)
    case.check(rtol=1e-4, atol=1e-3)


def test_in_place_is_left_alone() -> None:
    """The last group may make an output twice, so nothing may have changed what it reads."""
    case = product_case(5, 9, 100, torch.int8)
    old = build.load("b", (I[0], I[1]), F32)
    stores = [Store("y", (I[0], I[1]), call("add", case.stores[0].value, old))]
    inputs = {**case.inputs, "b": numbers(5, 9)}
    whole = Case([5, 9], stores, inputs, case.outputs, [100], inplace={"y": "b"})
    assert together(whole.source().text) == 1
    whole.check(rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("depth", [49, 512])
def test_neighbours_that_skip_others_are_not_together(depth: int) -> None:
    """x (depth, 96) is read across its rows. g++ would load whole rows for four of their elements."""
    x, transposed = build.load("x", (R[0], I[0]), F32), build.load("t", (I[0], R[0]), F32)
    value = call("add", call("add", x, transposed), build.load("c", (R[0],), F32))
    inputs = {"x": numbers(depth, 96), "t": numbers(96, depth), "c": numbers(depth)}
    stores = [Store("y", (I[0],), build.reduce("sum", value))]
    case = Case([96], stores, inputs, {"y": torch.empty(96)}, [depth])
    assert together(case.source().text) == 1
    case.check(rtol=1e-4, atol=1e-3)


def test_a_sum_along_neighbouring_columns_is_not_made_a_column_at_a_time() -> None:
    """As many loads are contiguous along a column as along a row, and those along a row skip nothing."""
    value = call("mul", build.load("x", (R[0], I[0]), F32), build.load("a", (R[0],), F32))
    for name in "bc":
        value = call("add", value, build.load(name, (R[0],), F32))
    inputs = {"x": numbers(98, 512), **{name: numbers(98) for name in "abc"}}
    stores = [Store("y", (I[0],), build.reduce("sum", value))]
    case = Case([512], stores, inputs, {"y": torch.empty(512)}, [98])
    assert case.source().text.startswith("// column kernel")
    case.check(rtol=1e-4, atol=1e-3)

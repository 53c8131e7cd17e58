"""Loads under masks in loops that are unrolled or too short for a vector: what g++ 12 gets wrong."""

from __future__ import annotations

import pytest
import sympy
import torch

from litz.ir import Node, Store, build
from litz.ir.index import mod, to_expr
from support.cpp_kernels import Case, I, R, load

ROWS = 61


def values(*size: int, dtype: torch.dtype) -> torch.Tensor:
    count = torch.Size(size).numel()
    return (torch.arange(count) % 97 + 1).to(dtype).reshape(size)


def compare(kind: str, left: object, right: object) -> Node:
    return build.call(kind, build.index(to_expr(left)), build.index(to_expr(right)))  # type: ignore[arg-type]


def masks(short: object, data: Node | None = None) -> dict[str, Node]:
    """By position in the rows, in the short range, in both; by data and by data and position, where there is some."""
    inside = build.logical_and(compare("ge", I[0], 2), compare("lt", I[0], 50))
    assert inside is not None
    found = {
        "after": compare("ge", I[0], 2),
        "between": inside,
        "third": compare("eq", mod(I[0], to_expr(3)), 0),
        "short": compare("ge", short, 1),
        "corner": build.call("bitwise_or", inside, compare("eq", short, 0)),
    }
    return found if data is None else found | {"data": data, "both": build.call("bitwise_and", inside, data)}


WRONG = [
    (2, torch.float32, "forwards", "after"),
    (2, torch.float64, "forwards", "between"),
    (2, torch.uint8, "forwards", "third"),
    (2, torch.float32, "backwards", "between"),
    (2, torch.float16, "backwards", "after"),
    (3, torch.float16, "forwards", "third"),
    (4, torch.float16, "backwards", "between"),
    (5, torch.float16, "forwards", "after"),
    (7, torch.float16, "backwards", "third"),
]
"""A few of the 42 kernels of 200 that g++ 12.2 made wrong: one store each, the mask by position."""


@pytest.mark.parametrize(("columns", "dtype", "way", "kind"), WRONG, ids=str)
def test_short_rows_under_masks(columns: int, dtype: torch.dtype, way: str, kind: str) -> None:
    """The elements of a row in order, or the last one first."""
    x = values(ROWS, columns, dtype=dtype)
    column = I[1] if way == "forwards" else columns - 1 - I[1]
    store = Store("o", (I[0], I[1]), load("x", x, I[0], column, mask=masks(I[1])[kind]))
    Case([ROWS, columns], [store], {"x": x}, {"o": torch.empty(ROWS, columns, dtype=dtype)}).check(rtol=0, atol=0)


def test_every_kind_of_mask() -> None:
    """Four types in one kernel."""
    bits = torch.arange(ROWS) % 5 < 3
    inputs, outputs, stores = {"bits": bits}, {}, []
    for dtype in (torch.float32, torch.float16, torch.float64, torch.uint8):
        x = inputs[f"x_{dtype}"] = values(ROWS, 3, dtype=dtype)
        for kind, mask in masks(I[1], load("bits", bits, I[0])).items():
            outputs[name := f"{kind}_{dtype}"] = torch.empty(ROWS, 3, dtype=dtype)
            stores.append(Store(name, (I[0], I[1]), load(f"x_{dtype}", x, I[0], I[1], mask=mask)))
    Case([ROWS, 3], stores, inputs, outputs).check(rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("columns", [2, 5])
def test_stacked_rows(dtype: torch.dtype, columns: int) -> None:
    """`torch.vstack` of three: the parts are read under masks of the row."""
    parts = [values(rows, columns, dtype=dtype) for rows in (2, 3, 30)]
    first, second = compare("lt", I[0], 2), compare("lt", I[0], 5)
    middle = build.logical_and(compare("ge", I[0], 2), second)
    reads = [
        load(f"p{n}", part, I[0] - start, I[1], mask=mask)
        for n, (part, start, mask) in enumerate(zip(parts, (0, 2, 5), (first, middle, compare("ge", I[0], 5))))
    ]
    value = build.call("where", first, reads[0], build.call("where", second, reads[1], reads[2]))
    inputs = {f"p{n}": part for n, part in enumerate(parts)}
    case = Case([35, columns], [Store("o", (I[0], I[1]), value)], inputs, {"o": torch.empty(35, columns, dtype=dtype)})
    case.check(rtol=0, atol=0)


def rows_case(value: Node, inputs: dict[str, torch.Tensor], columns: int) -> Case:
    stores = [Store("o", (I[0], R[0]), value)]
    return Case([96], stores, inputs, {"o": torch.empty(96, columns, dtype=value.dtype)}, reduction=[columns])


@pytest.mark.parametrize("kind", ["scan", "reduce", "backwards"])
def test_short_reductions_under_masks(kind: str) -> None:
    """Each row's elements are stored in the loop that reads them: a scan, and a normalization by its sum."""
    columns = 2 if kind == "scan" else 4
    x = values(96, columns, dtype=torch.float32)
    mask = compare("ge", I[0], 2)
    column = columns - 1 - R[0] if kind == "backwards" else R[0]
    element = load("x", x, I[0], column, mask=mask)
    if kind == "scan":
        rows_case(build.scan("sum", element), {"x": x}, columns).check(rtol=0, atol=0)
    else:
        total = build.reduce("sum", element)
        rows_case(build.call("sub", element, total), {"x": x}, columns).check(rtol=0, atol=0)


def test_short_rows_added_under_masks() -> None:
    """Combining stores walk in order, without vectors."""
    x, t = values(48, 2, dtype=torch.int32), values(48, 2, dtype=torch.int32)
    element = load("x", x, I[0], I[1], mask=compare("ge", I[0], 2))
    Case([48, 2], [Store("t", (I[0], I[1]), element, (), "add")], {"x": x, "t": t}, {"t": t}).check()


def test_windows_under_masks() -> None:
    """Sums over padded windows of three: many loads to a lane, one store."""
    x = values(40, 30, dtype=torch.float32)
    row, column = I[0] + R[0] - 1, I[1] + R[1] - 1
    mask: Node | None = None
    for position, size in ((row, 40), (column, 30)):
        inside = build.logical_and(compare("ge", position, 0), compare("lt", position, size))
        mask = build.logical_and(mask, inside)
    total = build.reduce("sum", load("x", x, row, column, mask=mask))
    Case([40, 30], [Store("o", (I[0], I[1]), total)], {"x": x}, {"o": torch.empty(40, 30)}, reduction=[3, 3]).check()


def test_what_is_kept_apart() -> None:
    """Masks that unrolling decides keep the unrolled form. Others make vectors of few lanes, or steps one by one for
    bfloat16. (Larger loops have segments.)"""

    def text(mask: Node, dtype: torch.dtype, column: sympy.Expr) -> str:
        x = values(ROWS, 5, dtype=dtype)
        store = Store("o", (I[0], I[1]), load("x", x, I[0], column, mask=mask))
        return Case([ROWS, 5], [store], {"x": x}, {"o": torch.empty(ROWS, 5, dtype=dtype)}).source().text

    rows, columns = compare("ge", I[0], 2), compare("ge", I[1], 2)
    unrolled = text(columns, torch.float32, I[1])
    assert "unroll 8" in unrolled and "ONE_BY_ONE" not in unrolled
    for column in (I[1], 4 - I[1]):
        vectors = text(rows, torch.float32, column)
        assert "unroll" not in vectors and "i1 < 5" in vectors
    apart = text(rows, torch.bfloat16, I[1])
    assert "unroll 8" in apart and "ONE_BY_ONE" in apart

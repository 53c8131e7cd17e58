"""Masks, gathers, checked positions and scatters as C++ against the interpreter."""

from __future__ import annotations

import pytest
import sympy
import torch

from core.codegen.test_cpp_loops import F32, S0, add, out, randn
from litz.errors import IndexRangeError
from litz.ir import Layout, Node, Store, build
from litz.ir.index import placeholder
from support.cpp_kernels import Case, I, R, layout_of, load


@pytest.mark.parametrize("dtype", [F32, torch.bfloat16, torch.int64, torch.uint8, torch.bool], ids=str)
def test_masked_load_pads(dtype: torch.dtype) -> None:
    x = randn(50, 60, dtype=dtype)
    i, j = build.index(I[0]), build.index(I[1])
    two = build.const(2, torch.int64)
    inside = build.logical_and(
        build.logical_and(build.call("ge", i, two), build.call("lt", i, build.const(52, torch.int64))),
        build.logical_and(build.call("ge", j, two), build.call("lt", j, build.const(62, torch.int64))),
    )
    value = build.load("x", (I[0] - 2, I[1] - 2), dtype, mask=inside)
    Case((54, 64), [Store("o", (I[0], I[1]), value)], {"x": x}, {"o": out(54, 64, dtype=dtype)}).check()


def gathered(rows: int, bound: int | sympy.Expr | None = None) -> Node:
    index = build.load("index", (I[0],), torch.int64)
    return index if bound is None else build.bounded(index, bound)


def test_gather_and_bounds() -> None:
    table, index = randn(100, 48), torch.randint(0, 100, (300,), generator=torch.Generator().manual_seed(0))
    value = build.load("table", (placeholder(0), I[1]), F32, (gathered(100, 100),))
    case = Case((300, 48), [Store("o", (I[0], I[1]), value)], {"table": table, "index": index}, {"o": out(300, 48)})
    case.check()
    for wrong in (100, -1, 2**40):
        bad = index.clone()
        bad[17] = wrong
        case.inputs = {"table": table, "index": bad}
        with pytest.raises(IndexError, match="case: index out of range for size 100"):
            case.run()


def test_bound_within_the_vector_loop() -> None:
    table = randn(100)
    index = torch.randint(0, 100, (3000,), generator=torch.Generator().manual_seed(0))
    node = build.bounded(build.load("index", (I[0],), torch.int64), 100)
    value = build.load("table", (placeholder(0),), F32, (node,))
    case = Case((3000,), [Store("o", (I[0],), value)], {"table": table, "index": index}, {"o": out(3000)})
    case.check()
    row = build.bounded(build.load("index", (R[0],), torch.int64), 100)
    total = build.reduce("sum", build.load("table", (placeholder(0),), F32, (row,)))
    reduced = Case((1,), [Store("o", (I[0],), total)], dict(case.inputs), {"o": out(1)}, (3000,))
    reduced.check(rtol=1e-4, atol=1e-4)
    for each in (case, reduced):
        bad = index.clone()
        bad[2999] = 100
        each.inputs = {"table": table, "index": bad}
        with pytest.raises(IndexError):
            each.run()
        index[2999] = 1


def test_bound_of_a_symbolic_size() -> None:
    index = torch.tensor([0, 2, 1])
    layouts = {"table": Layout.contiguous((S0,)), "index": layout_of(index)}
    value = build.load("table", (placeholder(0),), F32, (build.bounded(build.load("index", (I[0],), torch.int64), S0),))
    case = Case((3,), [Store("o", (I[0],), value)], {"table": randn(3), "index": index}, {"o": out(3)},
                layouts=layouts, sizes={S0: 3})  # fmt: skip
    case.check()
    case.sizes = {S0: 2}
    with pytest.raises(IndexError, match=r"size s0 \(s0 = 2\)"):
        case.run()
    case.sizes = {S0: 0}
    case.inputs = {"table": torch.empty(0), "index": index}
    with pytest.raises(IndexError):
        case.run()


def test_bound_under_a_mask_of_a_size_that_may_be_0() -> None:
    """Masked off, nothing is checked and nothing is read, though there may be no element at all."""
    index, wanted = torch.tensor([0, 9, 1]), torch.tensor([True, False, True])
    layouts = {"table": Layout.contiguous((S0,)), "index": layout_of(index), "wanted": layout_of(wanted)}
    row = build.bounded(build.load("index", (I[0],), torch.int64), S0, "dimension 0 in aten.index")
    mask = build.load("wanted", (I[0],), torch.bool)
    value = build.guard(build.load("table", (placeholder(0),), F32, (row,)), mask)
    store = Store("o", (I[0],), build.call("where", mask, value, build.const(-1.0, F32)))
    inputs = {"table": randn(2), "index": index, "wanted": wanted}
    case = Case((3,), [store], inputs, {"o": out(3)}, layouts=layouts, sizes={S0: 2})
    torch.testing.assert_close(case.run()["o"][[0, 2]], inputs["table"])
    case.sizes, case.inputs = {S0: 0}, {**inputs, "table": torch.empty(0)}
    with pytest.raises(IndexRangeError, match=r"size s0 \(s0 = 0\) of dimension 0 in aten.index"):
        case.run()
    case.inputs["wanted"] = torch.zeros(3, dtype=torch.bool)
    assert case.run()["o"].tolist() == [-1, -1, -1]


def test_bound_in_an_empty_reduction() -> None:
    index = torch.empty(0, dtype=torch.int64)
    layouts = {"table": Layout.contiguous((S0,)), "index": Layout.contiguous((S0,))}
    row = build.bounded(build.load("index", (R[0],), torch.int64), S0)
    total = build.reduce("sum", build.load("table", (placeholder(0),), F32, (row,)))
    inputs = {"table": torch.empty(0), "index": index}
    case = Case((2,), [Store("o", (I[0],), total)], inputs, {"o": out(2)}, (S0,), layouts=layouts, sizes={S0: 0})
    assert case.run()["o"].tolist() == [0, 0]


@pytest.mark.each_value
@pytest.mark.parametrize("mode", ["add", "prod", "max", "min", "set"])
@pytest.mark.parametrize("dtype", [F32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool], ids=str)
def test_scatter(mode: str, dtype: torch.dtype) -> None:
    """Into an input, with rows that meet; and with a mask."""
    generator = torch.Generator().manual_seed(1)
    count, rows, columns = 400, 37, 33
    source = (torch.randint(0, 3, (count, columns), generator=generator)).to(dtype)
    if mode == "set":
        index = torch.randperm(count, generator=generator)
        target = torch.zeros(count, columns).to(dtype)
    else:
        index = torch.randint(0, rows, (count,), generator=generator)
        target = torch.ones(rows, columns).to(dtype)
    where = build.bounded(build.load("index", (I[0],), torch.int64), target.shape[0])
    odd = build.call("ne", build.load("source", (I[0], I[1]), dtype), build.const(2, dtype))
    for mask in (None, odd):
        store = Store("target", (placeholder(0), I[1]), build.load("source", (I[0], I[1]), dtype), (where,), mode, mask)
        inputs = {"source": source, "index": index, "target": target}
        Case((count, columns), [store], inputs, {"target": target}).check(rtol=1e-2, atol=1e-2)


def test_masked_store() -> None:
    x = randn(500)
    positive = build.call("gt", load("x", x), build.const(0.0, F32))
    store = Store("t", (I[0],), load("x", x), mask=positive)
    t = torch.full((500,), 9.0)
    Case((500,), [store], {"x": x, "t": t}, {"t": t}).check()


def test_in_place() -> None:
    x, y = randn(64, 300), randn(64, 300, seed=2)
    value = add(load("x", x), load("y", y))
    Case((64, 300), [Store("o", (I[0], I[1]), value)], {"x": x, "y": y}, {"o": out(64, 300)},
         inplace={"o": "x"}).check()  # fmt: skip
    row = build.load("x", (I[0], R[0]), F32)
    e = build.call("exp", build.call("sub", row, build.reduce("max", row)))
    soft = build.call("div", e, build.reduce("sum", e))
    # The first store could be made before the last walk reads x again, if it did not write there.
    stores = [Store("o", (I[0], R[0]), build.call("neg", row)), Store("p", (I[0], R[0]), add(soft, row))]
    Case((64,), stores, {"x": x}, {"o": out(64, 300), "p": out(64, 300)}, (300,), inplace={"o": "x"}).check()

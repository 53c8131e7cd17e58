"""Loops by hand: accesses, masks, stores, checks, several loops of a kernel."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from kernels import CPU, I, R, check, generate, layout_of, load

from litz.errors import CodegenError, IndexRangeError
from litz.ir import Buffer, Loop, Program, Range, Store, TensorRef, build
from litz.ir.build import call, const
from litz.ir.index import FloorDiv, Mod, Symbol, placeholder, to_expr
from litz_numpy import body
from litz_numpy.dialect import NUMPY

A0 = placeholder(0)
i0, i1, r0 = I[0], I[1], R[0]
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def add(a, b):
    return call("add", a, b)


def test_strides_of_any_sign_and_none():
    x = torch.arange(24.0).reshape(4, 6)
    value = add(add(load("x", x, 3 - i0, i1), load("x", x, i1 - i1, i1)), load("x", x, 0, 5))
    source = check([4, 6], [Store("o", (3 - i0, i1), value)], {"x": x}, {"o": torch.empty(4, 6)})
    assert "strided(p0, 18, (4, 6), (-6, 1))" in source.text and "strided(p0, 0, (1, 6), (0, 1))" in source.text


def test_positions_that_are_no_steps():
    value = load("x", X, FloorDiv(i0, 2), Mod(i0, 6))
    source = check([8], [Store("o", (i0,), value)], {"x": X}, {"o": torch.empty(8)})
    assert "i0 // 2" in source.text and "i0 % 6" in source.text


def test_a_scalar():
    x = torch.tensor(2.0)
    check([], [Store("o", (), add(load("x", x), load("x", x)))], {"x": x}, {"o": torch.empty(())})


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_masked_loads_and_stores(rows):
    x = X[:rows].clone()
    inside = call("lt", build.index(i0), const(rows, torch.int64))
    value = load("x", x, i0, i1, mask=inside)
    check([rows + 3, 6], [Store("o", (i0, i1), value)], {"x": x}, {"o": torch.empty(rows + 3, 6)})
    o = torch.full((rows + 3, 6), 5.0)
    check([rows + 3, 6], [Store("o", (i0, i1), value, mask=inside)], {"x": x, "o": o}, {"o": o})


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.float16, torch.bool], ids=str)
@pytest.mark.parametrize("mode", ["set", "add", "prod", "max", "min"])
def test_indirect_loads_and_stores(dtype, mode):
    at, x, o = torch.tensor([3, 0, 0, 2]), (X[:, 0] * 3).to(dtype), (X[0] * 3).to(dtype)
    if mode == "set":
        at = torch.tensor([3, 0, 1, 2])
    if dtype == torch.bool and mode not in ("set", "add"):
        pytest.skip("torch has none of bool")
    position = load("at", at, i0)
    value = load("x", x, A0, indirect=(position,))
    inputs = {"at": at, "x": x, "o": o}
    check([4], [Store("o", (A0,), value, (position,), mode)], inputs, {"o": o}, rtol=1e-2, atol=1e-2)
    keep = call("gt", build.index(i0), const(0, torch.int64))
    check([4], [Store("o", (A0,), value, (position,), mode, keep)], inputs, {"o": o}, rtol=1e-2, atol=1e-2)


def test_stores_do_not_see_each_other():
    """Two inputs are swapped: both loads come before both stores."""
    x, y = X[0].clone(), X[1].clone()
    stores = [Store("x", (i0,), load("y", y)), Store("y", (i0,), load("x", x))]
    check([6], stores, {"x": x, "y": y}, {"x": x, "y": y})


def test_in_place():
    x = X.clone()
    total = build.reduce("sum", load("x", x, i0, r0))
    stores = [Store("o", (i0, r0), add(load("x", x, i0, r0), total)), Store("t", (i0,), total)]
    outputs = {"o": torch.empty(4, 6), "t": torch.empty(4)}
    check([4], stores, {"x": x}, outputs, [6], inplace={"o": "x"})


def test_reductions_upon_each_other_over_several_ranges():
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1))
    value = load("x", x, i0, R[1], r0)
    top = build.reduce("max", value)
    total = build.reduce("sum", call("exp", call("sub", value, top)))
    stores = [Store("o", (i0, R[1], r0), call("div", value, total)), Store("at", (i0,), build.reduce("argmax", value))]
    outputs = {"o": torch.empty(3, 4, 5), "at": torch.empty(3, dtype=torch.int64)}
    check([3], stores, {"x": x}, outputs, [5, 4])


@pytest.mark.parametrize("extent", [0, 1, 5])
def test_sizes_that_are_known_when_called(extent):
    size = Symbol("s0", integer=True, nonnegative=True)
    x = torch.randn(extent, 3)
    total = build.reduce("sum", load("x", x, r0, i0))
    source = check([3], [Store("o", (i0,), total)], {"x": x}, {"o": torch.empty(3)}, [size], sizes={size: extent})
    assert "s0" in source.text


def test_loops_that_combine_what_the_first_has_stored():
    parts = Store("part", (i0, i1), build.reduce("sum", load("x", X, i0, r0)))
    ranges = Range(i1, to_expr(1)), Range(r0, to_expr(4))
    whole = build.reduce("sum", build.load("part", (r0, i1), torch.float32))
    last = Loop("last", CPU, ranges[:1], ranges[1:], (Store("o", (i1,), whole),))
    outputs = {"part": torch.empty(4, 1), "o": torch.empty(1)}
    source = check([4, 1], [parts], {"x": X}, outputs, [6], more_loops=[last])
    assert "def loop1(" in source.text


def test_positions_from_data_are_checked():
    def run(at, masked=False):
        mask = call("ge", load("at", at, i0), const(0, torch.int64)) if masked else None
        position = build.bounded(load("at", at, i0), 4, "dimension 0", mask)
        stores = [Store("o", (i0,), load("x", X, A0, 0, indirect=(position,)))]
        check([len(at)], stores, {"at": at, "x": X}, {"o": torch.empty(len(at))})

    run(torch.tensor([3, 0]))
    run(torch.tensor([], dtype=torch.int64))
    run(torch.tensor([-7, 3]), masked=True)
    for wrong in (4, -1):
        with pytest.raises(IndexRangeError, match="kernel: index out of range for size 4 of dimension 0"):
            run(torch.tensor([1, wrong]))


def program_of(store, **buffers):
    made = {name: Buffer(name, x.dtype, CPU, layout_of(x), "input") for name, x in buffers.items()}
    loop = Loop("loop", CPU, (Range(i0, to_expr(4)),), (Range(r0, to_expr(6)),), (store,))
    return Program("test", tuple(buffers), made, (loop,), (TensorRef("o", made["o"].layout),))


def test_kernels_that_differ_in_names_alone_are_one():
    one, other = (
        generate(program_of(Store("o", (i0,), build.reduce("sum", load(name, X, i0, r0))), **{name: X}, o=X[:, 0]))
        for name in ("x", "y")
    )
    assert one.text == other.text and one.arguments == ("x", "o") and other.arguments == ("y", "o")


def test_what_it_cannot_do_is_refused(monkeypatch):
    ops = {name: text for name, text in NUMPY.ops.items() if name != "exp"}
    monkeypatch.setattr(body, "NUMPY", replace(NUMPY, ops=ops))
    store = Store("o", (i0,), build.reduce("sum", call("exp", load("x", X, i0, r0))))
    with pytest.raises(CodegenError, match=re.escape("the dialect of numpy has no text for 'exp' of float")):
        generate(program_of(store, x=X, o=X[:, 0]))

"""Strides of what a library call returned: the condition in the wrapper's text, and wrappers whose calls surprise."""

from __future__ import annotations

import pytest
import sympy
import torch

from litz import report as reports
from litz.codegen.strides import strides_differ
from litz.ir import Layout
from support.compare import litz

rows = sympy.Symbol("rows", integer=True, positive=True)


def layout(size, stride):
    return Layout(tuple(map(sympy.sympify, size)), tuple(map(sympy.sympify, stride)), sympy.Integer(0))


CONDITIONS = {
    "none of size 1": ((4, 3), (3, 1), "x.stride() != (3, 1)"),
    "last": ((4, 3, 1, 1), (3, 1, 3, 3), "(_strides := x.stride())[0] != 3 or _strides[1] != 1"),
    "first": ((1, 3), (3, 1), "x.stride()[1] != 1"),
    "middle": ((4, 1, 3), (3, 3, 1), "(_strides := x.stride())[0] != 3 or _strides[2] != 1"),
    "all": ((1, 1), (1, 1), ""),
    "no dimensions": ((), (), ""),
    "a symbol": ((rows, 3), (3, 1), "x.stride() != (3, 1)"),
    "a symbol in a stride": ((3, 1, rows), (rows, rows, 1), "(_strides := x.stride())[0] != rows or _strides[2] != 1"),
}


@pytest.mark.parametrize("size, stride, text", CONDITIONS.values(), ids=list(CONDITIONS))
def test_the_condition(size, stride, text):
    assert strides_differ("x", layout(size, stride), False) == text
    sizes = tuple(5 if extent == rows else extent for extent in size)
    whole = tuple(5 if step == rows else step for step in stride)
    for dim, extent in enumerate(sizes):
        other = tuple(step + 1 if dim == at else step for at, step in enumerate(whole))
        tensor = torch.empty_strided(sizes, other)
        assert eval(text or "False", {"x": tensor, "rows": 5}) is (extent != 1)
        assert eval(strides_differ("x", layout(size, stride), True), {"x": tensor, "rows": 5})
    for every in (False, True):
        found = strides_differ("x", layout(size, stride), every) or "False"
        assert not eval(found, {"x": torch.empty_strided(sizes, whole), "rows": 5})


def channels_last(tensor):
    """The same values, elsewhere."""
    return torch.empty_like(tensor, memory_format=torch.channels_last).copy_(tensor)


def odd_where_of_size_1(tensor):
    """The same elements, with strides of 77 where a dimension has size 1."""
    steps = [77 if n == 1 else step for n, step in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.as_strided(tensor.shape, steps)


@pytest.mark.each_value
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("given", [channels_last, odd_where_of_size_1])
@pytest.mark.parametrize("shape", [(2, 4, 5, 6), (1, 4, 5, 6), (2, 4, 1, 6), (2, 4, 5, 1)], ids=str)
def test_a_call_that_surprises(shape, given, dynamic, monkeypatch):
    """Its result has other strides than fake tensors said; kernels read it, and callers see the strides planned."""
    original, calls = torch.convolution, []

    def surprising(*args):
        calls.append(given(original(*args)))
        return calls[-1]

    monkeypatch.setattr(torch, "convolution", surprising)
    weight = torch.randn(6, 4, 1, 1)
    x = torch.randn(shape)
    if dynamic:
        torch._dynamo.mark_dynamic(x, 0 if shape[0] > 1 else 2)

    def inside(x):
        return torch.conv2d(x, weight).relu().double() + 1  # not in the memory of the call's result, which callers see

    def seen(x):
        return torch.conv2d(x, weight)

    for f, function in ((inside, "_planned_inside"), (seen, "_restrided")):
        with reports.collect() as found:
            result = litz(f)(x)
        torch.testing.assert_close(result, f(x))
        assert result.stride() == f(x).stride()
        text = found[0].wrapper_source
        assert f" = {function}(buf" in text and len(calls) == 1
        calls.clear()

"""float8 in generated C++: every byte is read, and every value is rounded, as torch does on a CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import cast

import pytest
import torch

from litz.ir import Node, Store, build
from litz.ir.dtypes import FLOAT8
from support.cpp_kernels import Case, I, load
from support.float8 import every_byte, halfway, rounded_by_torch, sampled

ALL = sorted(FLOAT8, key=str)


def kernel(value: torch.Tensor, make: object) -> torch.Tensor:
    """make(node) of every element of a vector."""
    return kernel_of(value, [make])[0]


def kernel_of(value: torch.Tensor, makers: Sequence[object]) -> list[torch.Tensor]:
    """make(node) of every element of a vector, for several of one kernel."""
    nodes = {f"o{n}": cast(Node, make(load("x", value))) for n, make in enumerate(makers)}  # type: ignore[operator]
    outputs = {name: torch.empty(value.numel(), dtype=node.dtype) for name, node in nodes.items()}
    stores = [Store(name, (I[0],), node) for name, node in nodes.items()]
    return list(Case([value.numel()], stores, {"x": value}, outputs).run().values())


WIDER = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_byte_is_read_exactly(dtype: torch.dtype) -> None:
    found = kernel_of(every_byte(dtype), [partial(build.cast, dtype=to) for to in WIDER])
    for got, to in zip(found, WIDER, strict=True):
        torch.testing.assert_close(got, every_byte(dtype).to(to), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("source", (torch.bfloat16, torch.float16), ids=str)
def test_every_half_is_rounded_as_eager_does(dtype: torch.dtype, source: torch.dtype) -> None:
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(source)
    got = kernel(x, lambda node: build.cast(node, dtype))
    assert torch.equal(got.view(torch.uint8), rounded_by_torch(x, dtype))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_floats_are_rounded_as_eager_does(dtype: torch.dtype) -> None:
    """Ties and their neighbours, subnormal numbers, what is too large, and a dense sample of all bits."""
    x = torch.cat([sampled(), halfway(dtype)])
    got = kernel(x, lambda node: build.cast(node, dtype))
    wrong = got.view(torch.uint8) != rounded_by_torch(x, dtype)
    assert not wrong.any(), (x[wrong][:5], got[wrong][:5].view(torch.uint8), rounded_by_torch(x, dtype)[wrong][:5])


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_other_types_are_converted(dtype: torch.dtype) -> None:
    for source in (torch.float64, torch.int32, torch.uint8, torch.bool):
        x = torch.arange(-100, 100).to(source) if source != torch.float64 else torch.linspace(-300, 300, 4001).double()
        if dtype == torch.float8_e8m0fnu:
            x = x.abs() if source != torch.bool else x
        got = kernel(x, lambda node: build.cast(node, dtype))
        assert torch.equal(got.view(torch.uint8), rounded_by_torch(x, dtype)), source
    whole = every_byte(dtype)[1:100]
    for target in (torch.int32, torch.bool) if dtype != torch.float8_e8m0fnu else (torch.bool,):
        assert torch.equal(kernel(whole, partial(build.cast, dtype=target)), whole.to(target)), target


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_copies_keep_every_bit(dtype: torch.dtype) -> None:
    x = every_byte(dtype)
    assert torch.equal(kernel(x, lambda node: node).view(torch.uint8), x.view(torch.uint8))
    bits = kernel(x, lambda node: build.bitcast(node, torch.uint8))
    assert torch.equal(bits, x.view(torch.uint8))
    back = kernel(x.view(torch.uint8), lambda node: build.bitcast(node, dtype))
    assert torch.equal(back.view(torch.uint8), x.view(torch.uint8))


def test_a_selection_keeps_every_bit() -> None:
    dtype = torch.float8_e5m2
    x, y = every_byte(dtype), every_byte(dtype)[torch.arange(255, -1, -1)]
    condition = torch.arange(256) % 3 == 0
    value = build.call("where", load("c", condition), load("x", x), load("y", y))
    inputs = {"c": condition, "x": x, "y": y}
    case = Case([256], [Store("o", (I[0],), value)], inputs, {"o": torch.empty(256, dtype=dtype)})
    want = torch.where(condition, x.view(torch.uint8), y.view(torch.uint8))
    assert torch.equal(case.run()["o"].view(torch.uint8), want)


def test_a_masked_load_reads_nothing_where_the_mask_does_not_hold() -> None:
    x = torch.linspace(-9, 9, 40).to(torch.float8_e4m3fn)
    mask = build.call("lt", build.index(I[0]), build.const(40, torch.int64))
    value = build.cast(build.load("x", (I[0],), x.dtype, mask=mask), torch.float32)
    case = Case([1000], [Store("o", (I[0],), value)], {"x": x}, {"o": torch.empty(1000)})
    assert torch.equal(case.run()["o"], torch.cat([x.float(), torch.zeros(960)]))


def test_transposing_through_tiles() -> None:
    x = torch.randn(130, 67).to(torch.float8_e4m3fn)
    value = build.call("mul", build.cast(load("x", x, I[1], I[0]), torch.float32), build.const(0.5, torch.float32))
    stores = [Store("o", (I[0], I[1]), build.cast(value, x.dtype))]
    Case([67, 130], stores, {"x": x}, {"o": torch.empty(67, 130, dtype=x.dtype)}).check(rtol=0, atol=0)


def test_a_quantised_row_is_a_kernel() -> None:
    """The greatest magnitude of a row, a scale, and the row divided by it."""
    from support.cpp_kernels import R

    x = torch.randn(37, 523).bfloat16()
    value = build.cast(build.load("x", (I[0], R[0]), x.dtype), torch.float32)
    top = build.reduce("max", build.call("abs", value))
    scale = build.call("div", top, build.const(448.0, torch.float32))
    stores = [
        Store("s", (I[0],), scale),
        Store("q", (I[0], R[0]), build.cast(build.call("div", value, scale), torch.float8_e4m3fn)),
    ]
    outputs = {"s": torch.empty(37), "q": torch.empty(37, 523, dtype=torch.float8_e4m3fn)}
    got = Case([37], stores, {"x": x}, outputs, reduction=[523]).run()
    scales = x.float().abs().amax(1) / 448.0
    assert torch.equal(got["s"], scales)
    want = (x.float() / scales[:, None]).to(torch.float8_e4m3fn)
    assert torch.equal(got["q"].view(torch.uint8), want.view(torch.uint8))
    assert math.isfinite(float(got["q"].float().abs().max()))

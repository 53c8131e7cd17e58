"""Each row of the table of exact ops: what litz generates against eager, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from litz import report
from numerics.values import FLOATS, HALVES, INTEGERS, every_half, operands, same_bits

aten = torch.ops.aten
STRICT = {"numerics.mode": "strict"}
ORDER = torch.tensor([0, 0, 0])

ONE: dict[str, Callable[..., Any]] = {
    "abs": torch.abs, "neg": torch.neg, "relu": torch.relu, "ceil": torch.ceil, "floor": torch.floor,
    "round.default": torch.round, "sign": torch.sign, "trunc": torch.trunc,
    "reciprocal": torch.reciprocal, "square": torch.square, "rsqrt": torch.rsqrt,
    "pow.Tensor_Scalar": lambda x: x**2, "isfinite": torch.isfinite, "isnan": torch.isnan, "signbit": torch.signbit,
    "logical_not": torch.logical_not, "clamp": lambda x: torch.clamp(x, -1.5, 2.5),
    "clamp_min": lambda x: torch.clamp_min(x, 0.5), "clamp_max": lambda x: torch.clamp_max(x, 0.1),
    "hardtanh": torch.nn.functional.hardtanh, "leaky_relu": torch.nn.functional.leaky_relu,
    "threshold": lambda x: torch.nn.functional.threshold(x, 0.1, 20.0), "nan_to_num": torch.nan_to_num,
    "isinf": torch.isinf, "isneginf": torch.isneginf, "isposinf": torch.isposinf,
    "hardsigmoid": torch.nn.functional.hardsigmoid, "hardswish": torch.nn.functional.hardswish,
    "add.Scalar": lambda x: x + 0.1, "sub.Scalar": lambda x: x - 0.3, "mul.Scalar": lambda x: x * 0.7,
    "div.Scalar": lambda x: x / 3.0, "rsub": lambda x: 1.3 - x, "eq": lambda x: x == 0.1, "lt": lambda x: x < 0.1,
    "where": lambda x: torch.where(x > 0, x, 0.1), "masked_fill": lambda x: x.masked_fill(x > 0, 0.1),
    "full_like": lambda x: torch.full_like(x, 0.1), "ones_like": torch.ones_like, "_to_copy": lambda x: x.double(),
    "prims.convert_element_type": lambda x: x.to(torch.bfloat16), "clone": torch.clone, "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(3, 0), "constant_pad_nd": lambda x: torch.nn.functional.pad(x, (1, 2), value=0.1),
    "tril": lambda x: x[:, None].expand(*x.shape[:1], 4, *x.shape[1:]).reshape(-1, 4).tril(),
    "triu": lambda x: x[:, None].expand(*x.shape[:1], 4, *x.shape[1:]).reshape(-1, 4).triu(1),
    "repeat": lambda x: x.repeat(*(2,) * x.dim()), "copysign of neg": lambda x: -x.abs(),
    "index_select": lambda x: x[:3].index_select(0, ORDER[: min(x.shape[0], 3)]),
}  # fmt: skip
"""Samples of ops of one operand, by the op's name in the table, for floats."""
TWO: dict[str, Callable[..., Any]] = {
    "add.Tensor": torch.add, "sub.Tensor": torch.sub, "mul.Tensor": torch.mul, "div.Tensor": torch.div,
    "true_divide.Tensor": torch.true_divide, "eq": torch.eq, "ge": torch.ge, "gt": torch.gt,
    "le": torch.le, "lt": torch.lt,
    "ne": torch.ne, "logical_and": torch.logical_and, "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor, "where.self": lambda x, y: torch.where(x > y, x, y),
    "leaky_relu_backward": lambda g, x: aten.leaky_relu_backward(g, x, 0.01, False),
    "threshold_backward": lambda g, x: aten.threshold_backward(g, x, 0.0),
    "_prelu_kernel": lambda x, w: torch.nn.functional.prelu(x, w.flatten()[:1]) if w.numel() else x,
    "cat": lambda x, y: torch.cat([x, x.flip(0)]), "stack": lambda x, y: torch.stack([x, x]),
}  # fmt: skip
"""Samples of two operands."""
OF_INTEGERS: dict[str, Callable[..., Any]] = {
    "add.Tensor": lambda x, y: torch.add(x, y, alpha=3), "mul.Tensor": torch.mul, "sub.Tensor": torch.sub,
    "div.Tensor": torch.div, "bitwise_and": torch.bitwise_and, "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor, "maximum": torch.maximum, "minimum": torch.minimum, "eq": torch.eq,
    "lt": torch.lt, "bitwise_not": lambda x, y: torch.bitwise_not(x), "sum.dim_IntList": lambda x, y: x.sum(-1),
    "any": lambda x, y: x.any(-1), "all": lambda x, y: x.all(-1), "sign": lambda x, y: x.sign(),
    "abs": lambda x, y: x.abs(), "prims.convert_element_type": lambda x, y: x.to(torch.bfloat16),
    "_to_copy": lambda x, y: x.float(), "logical_not": lambda x, y: x.logical_not(),
}  # fmt: skip
NOT_OF_BOOLS = {"sub.Tensor", "sign", "abs", "add.Tensor"}
WITHOUT_HALVES = {"rsqrt", "pow.Tensor_Scalar", "square"}
IN_CI = (torch.int8, torch.int64)


def compared(samples: dict[str, Callable[..., Any]], values: list[tuple[torch.Tensor, ...]]) -> list[str]:
    """Returns the samples whose results in strict mode differ from eager's, or that torch's kernel computed."""

    def run(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda given: [function(*each) for each in given]

    wrong = []
    torch._dynamo.reset()

    def everything(given: list[tuple[torch.Tensor, ...]]) -> list[list[Any]]:
        return [run(function)(given) for function in samples.values()]

    with torch.no_grad(), report.collect() as reports:
        found = torch.compile(everything, backend="litz", options=STRICT, dynamic=False)(values)
        wanted = everything(values)
    for name, got, want in zip(samples, found, wanted, strict=True):
        bad = [n for n, pair in enumerate(zip(got, want, strict=True)) if not same_bits(*pair)]
        if bad:
            wrong.append(f"{name} of operands {bad}")
    (made,) = reports
    left = [d.chosen for d in made.decisions if "strict-exact" in d.reason]
    # The masks of `tril` and `triu` are made of torch's ranges, and torch looks at the positions in a table of nothing.
    empty = any(not value.numel() for each in values for value in each)
    excused = ("arange", "index_select") if empty else ("arange",)
    return [*wrong, *(f"torch ran {name}" for name in left if not any(part in name for part in excused))]


def parts(samples: dict[str, Callable[..., Any]], size: int = 10) -> Iterator[dict[str, Callable[..., Any]]]:
    """Yields the samples, `size` at a time."""
    names = list(samples)
    for start in range(0, len(names), size):
        yield {name: samples[name] for name in names[start : start + size]}


def shares(count: int) -> list[Any]:
    """Returns each part of the samples with each type: in CI each part, with one type, and the rest nightly."""
    return [
        pytest.param(part, dtype, id=f"{part}-{dtype}", marks=[] if part % 4 == number else pytest.mark.nightly)
        for part in range(count)
        for number, dtype in enumerate(FLOATS)
    ]


@pytest.mark.parametrize(("part", "dtype"), shares(5))
def test_ops_of_one_operand(part: int, dtype: torch.dtype) -> None:
    values = list(operands(dtype, 1))
    if dtype in HALVES:
        values[0] = (every_half(dtype),)
    samples = {name: sample for name, sample in ONE.items() if dtype not in HALVES or name not in WITHOUT_HALVES}
    samples |= {"sqrt": torch.sqrt} if dtype in HALVES else {}
    assert not compared(list(parts(samples, 11))[part], values)


@pytest.mark.parametrize(("part", "dtype"), shares(2))
def test_ops_of_two_operands(part: int, dtype: torch.dtype) -> None:
    assert not compared(list(parts(TWO))[part], list(operands(dtype, 2)))


@pytest.mark.parametrize(
    "dtype", [pytest.param(each, id=str(each), marks=() if each in IN_CI else pytest.mark.nightly) for each in INTEGERS]
)
def test_ops_of_integers(dtype: torch.dtype) -> None:
    samples = {n: f for n, f in OF_INTEGERS.items() if dtype != torch.bool or n not in NOT_OF_BOOLS}
    assert not compared(samples, [pair for pair in operands(dtype, 2) if pair[0].numel()])

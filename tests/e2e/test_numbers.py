"""NaN, infinity, signed zeros, integers, promotion, conversions, empty tensors: as eager has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.capture.eager_types import is_left_to_eager
from litz_testing.tensors import in_range
from support.compare import check, close, device_param, litz, t

INF, NAN = math.inf, math.nan


# ------------------------------------------------------------------------------------------- NaN, infinity, signed zero

SPECIAL = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 1e-40, 3e38, -2.5, 0.5, 1.5]


def special(device: str, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(SPECIAL, device=device, dtype=dtype)


def nan_pairs(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = x[:, None], x[None, :]
    compared = (a < b, a <= b, a == b, a != b, a > b, a >= b)
    extremes = (torch.maximum(a, b), torch.minimum(a, b), torch.fmax(a, b), torch.fmin(a, b))
    return (*compared, *extremes, torch.where(a > b, a, b), torch.copysign(a, b), a - b, a * b, a / b)


def nan_points(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    clamped = (x.clamp(-1, 1), x.clamp(min=0.25), x.clamp(max=INF), torch.clamp(x, x.flip(0), x), x.clamp(2, 1))
    relu = (x.relu(), F.relu6(x), F.hardtanh(x), F.leaky_relu(x), F.gelu(x), F.softplus(x), x.sigmoid(), x.tanh())
    signs = (x.sign(), torch.signbit(x), x.abs(), x.neg(), x.isnan(), x.isinf(), x.isfinite(), torch.sgn(x))
    rounded = (x.round(), x.floor(), x.ceil(), x.trunc(), x.frac())
    numbers = (x.nan_to_num(), x.nan_to_num(1.0, 2.0, -3.0), x.sqrt(), x.rsqrt(), x.log(), x.exp(), x.log1p())
    return (*clamped, *relu, *signs, *rounded, *numbers, x.bool(), x.reciprocal(), x.expm1(), x.erf(), x**2, x**0.5)


def nan_reductions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.stack([x, x.flip(0), x.nan_to_num(0.25, 5.0, -5.0) % 7, torch.full_like(x, -INF)])
    extremes = (y.amax(1), y.amin(1), y.argmax(1), y.argmin(1), *y.max(1), *y.min(1), y.max(), y.min(), y.argmax())
    sums = (y.sum(1), y.nansum(1), y.mean(1), y.prod(1), y.any(1), y.all(1), y.logsumexp(1), y.softmax(1))
    ordered = (
        *torch.sort(y, dim=1),
        *torch.sort(y, stable=True, dim=1, descending=True),
        torch.argsort(y, dim=1, stable=True),
        *y.topk(3, 1),
    )
    scans = (y.cumsum(1), y.clamp(-2, 2).cumprod(1), *y.cummax(1), *y.cummin(1))
    return (*extremes, *sums, *ordered, *scans, y.nanmedian(1).values, *y.aminmax(dim=1))


def signed_zeros(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = x * 0.0
    made = (z, -z, z.abs(), z.round(), (z - 0.25).round(), (z - 0.25).ceil(), z.trunc(), z + 0.0, z - 0.0, z.sqrt())
    more = (torch.copysign(z, x), z.nan_to_num(), torch.where(x > 0, z, -z), z.float(), (-z).neg(), z.sin())
    return tuple(1 / m for m in (*made, *more)) + tuple(torch.signbit(m) for m in (*made, *more))


@pytest.mark.each_value
@device_param
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("fn", [nan_pairs, nan_points])
def test_nan_and_infinity(fn: Callable[..., Any], dtype: torch.dtype, device: str) -> None:
    check(fn, special(device, dtype))


@pytest.mark.ci_cases("dtype1-cpu")
@device_param
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_and_infinity_reduced(dtype: torch.dtype, device: str) -> None:
    check(nan_reductions, special(device, dtype))


@device_param
def test_signed_zeros(device: str) -> None:
    check(signed_zeros, torch.tensor([1.0, -1.0, 2.0, -3.5], device=device))


FLOATS = (torch.float32, torch.float64, torch.bfloat16)


def of_each(f: Callable[[torch.Tensor], Any]) -> Callable[..., list[Any]]:
    """`f` of each of several tensors, such as of several types, in one graph."""
    return lambda *tensors: [f(x) for x in tensors]


def test_bounds_leave_negative_zeros_alone() -> None:
    """On a CPU eager's relu and clamp give -0.0 where the bound is 0.0: a division by it is -infinity."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        bounded = (x.relu(), F.relu6(x), x.clamp(0, 1), x.clamp_min(0.0), (-x).clamp(max=-0.0))
        return tuple(1 / value for value in bounded)

    check(of_each(f), *(torch.tensor([-0.0, 0.0, 1.0, -1.0, math.nan] * 7, dtype=dtype) for dtype in FLOATS))


def _divisions() -> dict[str, Callable[..., Any]]:
    return {
        "floor": lambda a, b: a // b,
        "remainder": lambda a, b: a % b,
        "fmod": torch.fmod,
        "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        "number": lambda a, b: (a // 0, b),
        "sum": lambda a, b: (a // b).sum(),
        "slice": lambda a, b: (a // b)[2:] + 1,
        "padded": lambda a, b: F.pad(a // b, (1, 1)),
    }


@pytest.mark.ci_cases("floor-dtype0", "fmod-dtype0", "trunc-dtype1", "sum-dtype1", "padded-dtype1")
@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
@pytest.mark.parametrize("name", _divisions())
def test_division_by_zero_is_an_error(name: str, dtype: torch.dtype) -> None:
    """On a CPU; what divides by zero in no element is computed."""
    function = _divisions()[name]
    a, b = torch.tensor([1, 2, 3, 4], dtype=dtype), torch.tensor([1, 0, 2, 1], dtype=dtype)
    compiled = litz(function)
    for run in (function, compiled):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            run(a, b)
    if name != "number":
        expected = function(a, b + 1)
        close(compiled(a, b + 1), expected, expected)
    if name not in ("number", "slice"):
        check(lambda a, b: function(a[::2], b[::2]), a, b)


def test_what_eager_refuses_of_integers_and_bools() -> None:
    x = torch.tensor([1, 2, 3])
    for function in (lambda x: x**-1, lambda x: (x > 1).argmax(), lambda x: (x > 1).argmin(0)):
        with pytest.raises(RuntimeError):
            function(x)
        with pytest.raises(RuntimeError, match=r"negative integer powers|does not support bool"):
            litz(function)(x)


def test_whole_numbers_that_no_int64_holds() -> None:
    """Eager fills floats and bools with these."""

    def f(x: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return *with_number(x, k, 2**63), *with_number(x, k, 2**64 - 1)

    def with_number(x: torch.Tensor, k: torch.Tensor, number: int) -> tuple[torch.Tensor, ...]:
        filled = (torch.full((3,), number, dtype=d) for d in (torch.float32, torch.bfloat16, torch.bool))
        return (*filled, torch.full_like(x, number) + x, torch.where(x > 1, x, number), torch.where(k > 0, number, x))

    x, k = torch.tensor([0.5, 1.5, 2.5]), torch.tensor([0, 1, 2])
    for ours, theirs in zip(litz(f)(x, k), f(x, k), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_copies_of_numbers_alone() -> None:
    def f(a: int, b: float) -> tuple[torch.Tensor, ...]:
        copy = torch.ops.aten.copy
        return copy(a, b), copy(b, a), copy(True, 2), copy(2, False)

    for ours, theirs in zip(litz(f)(4, 3.75), f(4, 3.75), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_integers_plus_products_by_a_float() -> None:
    """Eager takes the whole part of the factor."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        products = (torch.addcmul(x, x, x, value=v) for v in (2.0, 1.5, -2.5, 3))
        return (*products, torch.addcmul(x.float(), x, x, value=1.5), torch._foreach_addcmul([x], [x], [x], 2.0)[0] + 1)

    check(
        of_each(f), *(torch.tensor([0, 1, -2, 3, 5], dtype=dtype) for dtype in (torch.int8, torch.int32, torch.int64))
    )


def test_sums_of_ten_million_numbers() -> None:
    """Thousands of partial sums are added up: along a row, beside moments, along columns, and in groups of rows."""

    def sums(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(), (x * x).sum(), x.var(), x.view(-1, 4).sum(0), (x.view(2, -1) * x[:2, None]).sum(1)

    x = torch.rand(10_000_000)
    compiled = torch.compile(sums, backend="litz")
    for actual, exact in zip(compiled(x), sums(x.double()), strict=True):
        assert bool(((actual - exact).abs() <= 3e-7 * exact).all()), (actual, exact)


def test_many_sums_of_short_rows() -> None:
    """With AVX-512 g++ 12 spilled a vector to an address in the red zone that was not aligned: the process died."""

    def f(
        a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, *columns: torch.Tensor
    ) -> tuple[Any, ...]:
        sums = [(x * column[:, 1]).sum(1) for x, column in zip((a, c, b, d), columns, strict=True)]
        return a * 2, c * 2, *sums

    rows, columns = torch.randn(4, 5, 5), torch.randn(4, 5, 3)
    single, double = (lambda x: x.clone()), (lambda x: x.double())
    types = (single, single, double, double)
    inputs = [change(x) for change, x in zip(types, rows, strict=True)]
    others = [change(x) for change, x in zip((single, double, single, double), columns, strict=True)]
    check(f, *inputs, *others)


@device_param
def test_ties(device: str) -> None:
    """The first of equal elements wins in argmax and argmin along a dimension, and stable sorts keep order."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.argmax(1), x.argmin(1), x.argmax(0), x.max(1).values, *torch.sort(x, stable=True, dim=1), x.argmax()

    x = torch.tensor([[1, 3, 3, 0, 0], [2, 2, 2, 2, 2], [0, -1, -1, 0, -1]], device=device)
    check(of_each(f), x, x.float())


# ------------------------------------------------------------------------------------------------------------- integers

INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


def integers(dtype: torch.dtype, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    info = torch.iinfo(dtype)
    values = [info.min, info.min + 1, -7, -3, -1, 0, 1, 2, 3, 7, info.max - 1, info.max]
    values = [v for v in values if info.min <= v <= info.max]
    return (torch.tensor(v, device=device, dtype=dtype) for v in (values, [v for v in values if v]))  # type: ignore


def integer_division(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = a[1:, None], b[1:-1][None, :]  # the least number by -1 has no quotient
    quotients = (a // b, torch.div(a, b, rounding_mode="trunc"), torch.div(a, b, rounding_mode="floor"))
    scalars = (a // 3, a % 3, torch.div(a, 3, rounding_mode="trunc"), torch.remainder(7, b), torch.fmod(a, 3))
    return (*quotients, a % b, torch.fmod(a, b), torch.remainder(a, b), *scalars, a / b)


def integer_overflow(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = a[:, None], b[None, :]
    same = (a + b, a - b, a * b, -a, a.abs(), a + 100, a * 3, a.square(), torch.maximum(a, b), a.clamp(1, 5), a.sign())
    sums = (
        a.sum(),
        a.sum(dtype=torch.int32),
        a.prod(0),
        a.cumsum(0),
        b.amax(1),
        b.argmin(1),
        a.any(),
        (b & 7).float().mean(),
    )
    return (*same, *sums, (a + b) * 2 - b, a.to(torch.int8), a.to(torch.uint8), a.to(torch.bool), a.to(torch.int64))


def integer_bits(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = a[:, None], b[None, :]
    shift = (b & 7) & (torch.iinfo(b.dtype).bits - 1)
    logic = (a & b, a | b, a ^ b, ~a, a & 3, a | 1, a ^ -1 if a.dtype != torch.uint8 else a ^ 255)
    return (*logic, a << shift, a >> shift, a >> 1, a << 2, a == b, a < b, a.bool() & b.bool(), ~(a > 2))


@pytest.mark.ci_cases("dtype0-cpu", "dtype4-cpu")
@device_param
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype: torch.dtype, device: str) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*integer_division(a, b), *integer_overflow(a, b), *integer_bits(a, b))

    check(f, *integers(dtype, device))


@device_param
def test_unsigned_integers_of_more_than_a_byte(device: str) -> None:
    """Eager can do little with these."""

    def f(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            a.to(torch.int64) + 1,
            a.to(torch.float32),
            a.view(-1, 2).t().clone(),
            torch.cat([a, a])[1:],
        )

    def values(dtype: torch.dtype) -> torch.Tensor:
        top = torch.iinfo(dtype).max
        return torch.tensor([0, 1, 7, top - 1, top, 1000], dtype=torch.int64, device=device).to(dtype)

    check(of_each(f), values(torch.uint16), values(torch.uint32))


@device_param
def test_floats_to_integers(device: str) -> None:
    """Where C says what comes out. (Of 2.0**32, eager makes the uint32 0 with AVX-512, and the greatest with AVX2.)"""
    dtypes = (torch.uint16, torch.uint32, *INTEGERS)

    def values(dtype: torch.dtype) -> torch.Tensor:
        top, least = float(torch.iinfo(dtype).max), float(torch.iinfo(dtype).min)
        return torch.tensor([0, 1.9, -0.9, -1, 7, top, top / 2, top / 4, least, least / 2, NAN, INF], device=device)

    def f(*xs: torch.Tensor) -> list[torch.Tensor]:
        return [x.to(dtype) for x, dtype in zip(xs, dtypes, strict=True)]

    xs = [values(dtype) for dtype in dtypes]
    for dtype, x, found in zip(dtypes, xs, litz(f)(*xs), strict=True):
        defined = in_range(x, dtype)
        assert int(defined.sum()) >= 6
        # By way of Python's integers, which have no range.
        assert found.cpu()[defined.cpu()].tolist() == [int(value) for value in x[defined].tolist()], dtype


@device_param
def test_type_promotion(device: str) -> None:
    dtypes = [
        torch.bool,
        torch.uint8,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    ]

    def f(tensors: list[torch.Tensor], scalars: list[torch.Tensor]) -> list[torch.Tensor]:
        found = []
        for number, a in enumerate(tensors):
            found += [a + 2, a * 2.5, a + True, a / 2, a == 2.5, torch.add(a, 1, alpha=1)]
            found += [a + b for b in tensors[number:]] + [a * s for s in scalars] + [torch.where(a > 0, a, 0.5)]
            found += [a.sum(), a.to(torch.float32).mean(), torch.cat([a, tensors[0]]), a.exp(), a.sum(0, keepdim=True)]
        return found

    tensors = [torch.tensor([0, 1, 3], device=device).to(d) for d in dtypes]
    scalars = [torch.tensor(3, device=device).to(d) for d in dtypes]
    check(f, tensors, scalars)


@device_param
def test_conversions_between_types(device: str) -> None:
    def f(x: torch.Tensor, k: torch.Tensor) -> list[torch.Tensor]:
        whole = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool]
        real = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
        return [x.to(d) for d in whole] + [k.to(d) for d in real + whole] + [x.to(d).to(torch.float32) for d in real]

    x = torch.tensor([0.0, 0.5, -0.5, 1.5, -1.9, 100.7, 3.0], device=device)
    check(f, x, torch.tensor([0, 1, -1, 127, 128, 255, 70000, 2**31 + 5, -(2**40)], device=device))


@device_param
def test_reinterpreted_bits(device: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        bits = x.view(torch.int32)
        return (
            bits & 0x7FFFFF,
            (bits ^ (1 << 31)).view(torch.float32),
            (x * 2).view(torch.int32) >> 3,
            x.view(torch.int16),
        )

    check(f, t(4, 6, device=device))


@device_param
def test_float64_keeps_its_digits(device: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * (1 + 1e-14) + 1e-13
        filled = torch.where(y > 1, torch.full_like(y, 0.1), y * 0.3) + y.new_full((), 1e-15)
        reduced = (torch.softmax(y, -1), F.layer_norm(y, (9,)), y.std(0), y.cumsum(1))
        return y, y.sin(), y.exp(), y.erf(), y**0.3, filled, *reduced

    check(f, t(7, 9, device=device).double().abs())


# -------------------------------------------------------------------------------------------------------- empty tensors


@device_param
def test_empty_tensors(device: str) -> None:
    def f(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        joined = (torch.cat([x, y]), torch.cat([x, x], 1), torch.stack([x, x]), y[:0] @ w, y @ w[:, :0])
        reduced = (
            x.sum(),
            x.sum(0),
            x.mean(0),
            x.prod(),
            x.any(),
            x.all(),
            x.amax(1),
            x.std(0),
            x.norm(),
            x.logsumexp(0),
        )
        moved = (
            x.t() + 1,
            x.reshape(0),
            x.expand(2, 0, 3),
            x.repeat(2, 2),
            F.pad(x, (1, 1)),
            x[:, :0].sum(1),
            x.flip(0),
        )
        scanned = (x.cumsum(0), x.cumsum(1), x.softmax(1), x.softmax(0), x.sort(0).values, y[:0].argmax(1), x.tril())
        zero_k = (y[:, :0] @ w[:0], F.linear(x, w.t()), x.new_zeros(0, 3).addmm(x[:, :0], w[:0, :3]))
        return (*joined, *reduced, *moved, *scanned, *zero_k)

    check(f, t(0, 3, device=device), t(4, 3, device=device), t(3, 5, device=device))


@device_param
def test_empty_tensors_under_autograd(device: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x * 2, (3,)).sum() + F.gelu(x).mean(1).sum() + x.softmax(1).sum()

    torch._dynamo.reset()
    x = torch.zeros(0, 3, device=device, requires_grad=True)
    out = torch.compile(f, backend="litz")(x)
    out.backward()
    assert float(out) == 0 and x.grad.shape == (0, 3)


@pytest.mark.ci_cases("dtype2")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_ops_of_numbers_alone(dtype: torch.dtype) -> None:
    """`aten.add(4, 3.3)` meets in the default dtype; `_to_copy` keeps a number's float64."""
    aten = torch.ops.aten

    def f(a: int, b: float) -> tuple[Any, ...]:
        return (
            *(aten.add(a, b), aten.add(b, a), aten.mul(a, b), aten.div(a * 0.5, b), aten.sub(1.5, 2), aten.div(5, 2)),
            *(aten.add(4, 3), aten.eq(0.1, 0.1 + 1e-12), aten.mul(True, 2.5), aten._to_copy(3.3), aten.pow(2.5, 3.0)),
        )

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        for ours, theirs in zip(litz(f)(4, 3.3), f(4, 3.3), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    finally:
        torch.set_default_dtype(before)


TOO_MUCH: dict[str, tuple[Callable[[torch.Tensor, Any], torch.Tensor], list[tuple[torch.dtype, Any]]]] = {
    "clamp": (
        lambda x, n: x.clamp(-abs(n), abs(n)),
        [(torch.int8, 1000), (torch.uint8, 256), (torch.float16, 1e5), (torch.float32, 3.4e39)],
    ),
    "where": (lambda x, n: torch.where(x > 0, x, n), [(torch.int8, 300), (torch.int16, -(2**15) - 1)]),
    "masked_fill": (
        lambda x, n: x.masked_fill(x > 0, n),
        [(torch.int8, 300), (torch.float16, -1e9), (torch.bfloat16, 3.4e39)],
    ),
    "full_like": (lambda x, n: torch.full_like(x, n), [(torch.uint8, -256), (torch.int16, float("nan"))]),
    "pad": (lambda x, n: torch.nn.functional.pad(x, (1, 1), value=n), [(torch.int8, 200)]),
    "scatter": (lambda x, n: torch.scatter(x, 0, torch.tensor([0]), n), [(torch.int8, 300), (torch.uint8, 2.5e5)]),
    "index_fill": (lambda x, n: x.index_fill(0, torch.tensor([0]), n), [(torch.int16, 70000)]),
    "threshold": (lambda x, n: torch.threshold(x, 0, n), [(torch.int8, 300)]),
    "alpha": (lambda x, n: torch.add(x, x, alpha=n), [(torch.int8, 300)]),
    "celu": (lambda x, n: F.celu(x, n), [(torch.float32, 1e-40), (torch.float16, -1e-40), (torch.bfloat16, 1e-39)]),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_numbers_that_a_type_cannot_hold_are_refused_as_in_eager(name: str) -> None:
    function, cases = TOO_MUCH[name]
    for dtype, number in cases:
        x = torch.tensor([0, 1, 2]).to(dtype)
        with pytest.raises(RuntimeError, match="without overflow") as theirs:
            function(x, number)
        with pytest.raises(RuntimeError, match="without overflow") as ours:
            litz(function)(x, number)
        assert str(theirs.value) in str(ours.value)


def test_numbers_at_the_edges_of_a_type() -> None:
    """What eager wraps, rounds to infinity or takes is not refused."""

    def f(byte: torch.Tensor, half: torch.Tensor, single: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            *(byte.masked_fill(byte > 0, -1), byte.clamp(-255, 255), byte + 300, byte * -7, byte == 300, byte < 1e5),
            *(half.clamp(-65504, 65504), half * 1e5, half.masked_fill(half > 1, float("-inf")), half > 7e4),
            *(
                single + 3.4e39,
                single == 3.4e39,
                single.nan_to_num(3.4e39),
                torch.full_like(single, float("inf")),
                single.clamp(max=3.4e38),
            ),
        )

    inputs = [torch.tensor([0, 1, 255], dtype=torch.uint8), torch.tensor([0.5, 2, 6e4]).half(), torch.tensor([1.0, -2])]
    for ours, theirs in zip(litz(f)(*inputs), f(*inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


BOOL, LONG, CHAR = torch.tensor([True, False]), torch.tensor([1, 2]), torch.tensor([1, 2], dtype=torch.int8)
HALF = torch.tensor([1.0, 2.0]).half()
REFUSED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "bool - True": (lambda x: x - True, (BOOL,)),
    "bool - 1": (lambda x: x - 1, (BOOL,)),
    "1 - bool": (lambda x: 1 - x, (BOOL,)),
    "int - True": (lambda x: x - True, (LONG,)),
    "int - bool": (lambda x, y: x - y, (LONG, BOOL)),
    "threshold of bools": (lambda x: F.threshold(x, 1, 1), (BOOL,)),
    "a bool as alpha": (lambda x: torch.add(x, x, alpha=True), (HALF,)),
    "a bool as alpha of integers": (lambda x: torch.add(x, 1, alpha=True), (LONG,)),
    "a float as alpha of bools": (lambda x: torch.add(x, True, alpha=1.5), (BOOL,)),
    "alpha without an opposite": (lambda x: torch.sub(x, x, alpha=-128), (CHAR,)),
    "linspace beyond the type": (lambda: torch.linspace(0, 128, 3, dtype=torch.int8), ()),
    "linspace to infinity": (lambda: torch.linspace(0, INF, 3, dtype=torch.int64), ()),
    "linspace beyond half": (lambda: torch.linspace(0, 1e5, 3, dtype=torch.half), ()),
    "arange beyond 64 bits": (lambda: torch.arange(2**63 - 3, 2**63), ()),
    "arange of bools": (lambda: torch.arange(1, 1, dtype=torch.bool), ()),
    "logspace with a tensor": (lambda x: torch.logspace(3e38, x, 3), (torch.tensor(1e39, dtype=torch.float64),)),
    "two types in softmax's backward": (
        lambda x, y: torch.ops.aten._softmax_backward_data(x, y, 0, torch.float16),
        (HALF, HALF.float()),
    ),
    "celu without alpha": (lambda x: F.celu(x, 0.0), (HALF,)),
    "addcdiv of bools": (lambda x: torch.addcdiv(x, x, x), (BOOL,)),
    "sigmoid's backward of integers": (lambda x: torch.ops.aten.sigmoid_backward(x, x), (LONG,)),
    "prelu's backward of integers": (lambda x: torch.ops.aten._prelu_kernel_backward(x, x, x), (LONG,)),
    "hardshrink's backward of integers": (lambda x: torch.ops.aten.hardshrink_backward(x, x, 0.5), (LONG,)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name: str) -> None:
    function, inputs = REFUSED[name]
    with pytest.raises(RuntimeError) as theirs:
        function(*inputs)
    with pytest.raises(RuntimeError) as ours:
        litz(function)(*inputs)
    assert str(theirs.value).splitlines()[0] in str(ours.value)


ACTIVATIONS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("gelu", "silu", "mish", "hardswish", "hardsigmoid", "sigmoid", "tanh"), ()),
    "hardshrink": (0.5,), "softshrink": (0.5,), "softplus": (1, 20), "hardtanh": (0, 1), "leaky_relu": (0.1, False),
    "logit": (0.1,),
}  # fmt: skip


@pytest.mark.parametrize("x", [BOOL, LONG, CHAR], ids=str)
def test_gradients_of_activations_are_of_floats(x: torch.Tensor) -> None:
    """What eager's kernels do not take is left to them, so that their error comes through."""
    for name, numbers in ACTIVATIONS.items():
        op = getattr(torch.ops.aten, f"{name}_backward").default
        with pytest.raises(NotImplementedError):
            op(x, x, *numbers)
        assert is_left_to_eager(op, (x, x, *numbers)), name
        assert not is_left_to_eager(op, (HALF, HALF, *numbers)), name


def test_one_element_of_logspace_is_a_power_of_the_start_itself() -> None:
    """Of several, eager makes integers of the ends first where the result has integers."""

    def f() -> list[torch.Tensor]:
        return [torch.logspace(2.5, 1, steps, dtype=torch.int64) for steps in (1, 2, 3)]

    assert [row.tolist() for row in litz(f)()] == [row.tolist() for row in f()] == [[316], [100, 10], [100, 31, 10]]


# --------------------------------------------------------------------------------------- half values that several read


def distance_from_all(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    value = x * y
    return value, (value.float().amax() - value.float()).sqrt()


def distance_from_those_before(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    value = x * y
    return (value.cummax(0)[0] - value).sqrt(), (value.cummin(0)[0] - value).neg().sqrt()


@device_param
@pytest.mark.parametrize("f", [distance_from_all, distance_from_those_before])
def test_a_half_value_is_one_number_for_all_who_read_it(f: Callable[..., Any], device: str) -> None:
    """The greatest of values that were not rounded yet may be less than one of them in memory: a root below 0."""
    compiled = torch.compile(f, backend="litz")
    for _ in range(4):
        x, y = (torch.randn(3000, 64, device=device).to(torch.bfloat16) for _ in range(2))
        for result, expected in zip(compiled(x, y), f(x, y), strict=True):
            assert torch.equal(result.isnan(), expected.isnan()) and torch.equal(result == 0, expected == 0)


@device_param
@pytest.mark.each_value
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_type_promotion_rounds_no_integer_to_a_half_type(dtype: torch.dtype, dynamic: bool, device: str) -> None:
    """A position beside halves: as a bfloat16 it would have 8 bits."""

    def f(x: torch.Tensor, position: torch.Tensor) -> list[torch.Tensor]:
        found = [x * position, position + x, position - x, torch.where(x > 0, x, position), x / (position + 1)]
        return [each.float() for each in found]

    x, position = torch.randn(3, 2999, device=device).to(dtype), torch.arange(2999, device=device)
    for got, wanted in zip(litz(f, dynamic=dynamic)(x, position), f(x.double(), position), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=0)

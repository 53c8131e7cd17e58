"""Functions at the edges of a type, where eager's kernels in vectors and torch's rules err: as C or eager has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.compare import litz


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [3, 40])
def test_remainders_of_quotients_beyond_the_type(dtype: torch.dtype, count: int) -> None:
    """They are exact, as C's are. Eager's kernels in vectors (16 values and more) give NaN."""
    least = torch.finfo(dtype).smallest_normal
    x = torch.linspace(-1.5, 3e3, count, dtype=dtype)
    compiled = litz(lambda x, y: (torch.fmod(x, y), x % y))
    for y in (torch.full_like(x, -least / 8), torch.full_like(x, least * 3), torch.full_like(x, 0.7)):
        ours = compiled(x, y)
        rests = [math.fmod(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        moved = [r + b if r and (r < 0) != (b < 0) else r for r, b in zip(rests, y.tolist(), strict=True)]
        for got, want in zip(ours, (rests, moved), strict=True):
            torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64).to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logit_with_any_eps(dtype: torch.dtype) -> None:
    """A negative eps is none, for the gradient as well; one above 1 leaves no number."""
    x, grad = torch.tensor([-1.0, 0.2, 0.5, 0.9, 1.5], dtype=dtype), torch.ones(5, dtype=dtype)

    def f(x: torch.Tensor, grad: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
        back = torch.ops.aten.logit_backward
        return [(torch.logit(x, eps), back(grad, x, eps)) for eps in (-1.0, -1e-9, 0.1, 0.6, 1.5, 2.0)]

    torch.testing.assert_close(litz(f)(x, grad), f(x, grad), equal_nan=True)


def test_zeros_of_two_signs_while_training() -> None:
    """To Python 0.0 and -0.0 are equal, and so are calls to the partitioner that differ in nothing else."""
    f = lambda x: (torch.copysign(x, -0.0), torch.copysign(x, 0.0))
    grads = []
    for function in (f, litz(f)):
        x = torch.tensor([1.5, -2.0], requires_grad=True)
        negative, positive = function(x)
        assert negative.tolist() == [-1.5, -2.0] and positive.tolist() == [1.5, 2.0]
        (negative * 3 + positive).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_the_next_number_of_a_type(dtype: torch.dtype) -> None:
    x, y = (torch.tensor(values, dtype=dtype) for values in ([1.0, -0.3, 0.0, 2.5], [2.0, 0.0, 1.0, -1.0]))
    try:
        expected = torch.nextafter(x, y)
    except NotImplementedError:
        pytest.skip("eager has none for this type")
    torch.testing.assert_close(litz(torch.nextafter)(x, y), expected, rtol=0, atol=0)


def test_inverse_error_functions_near_one() -> None:
    """Its complement says how near; a float64 there is as exact as elsewhere."""
    near = [1 - 10.0**-digits for digits in (0.3, 1, 3, 5, 7, 8, 9, 11, 13, 14, 15, 15.9)]
    x = torch.tensor([*near, *(-value for value in near), 0.0, 1e-300, 1.0, -1.0], dtype=torch.float64)
    torch.testing.assert_close(litz(torch.erfinv)(x), torch.erfinv(x), rtol=2e-15, atol=0)
    torch.testing.assert_close(litz(torch.erfinv)(x.float()), torch.erfinv(x.float().double()).float())


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int32])
@pytest.mark.parametrize("of", [torch.int8, torch.int64, torch.float32])
def test_powers_of_two_beyond_the_type(dtype: torch.dtype, of: torch.dtype) -> None:
    """ldexp is what eager has: exact from torch 2.13 for whole exponents, and of the type of x."""
    x, y = torch.tensor([3, 1, 0, 5]).to(dtype), torch.tensor([2, -120, 127, 120]).to(of)
    x = x / 64 if dtype.is_floating_point else x
    torch.testing.assert_close(litz(torch.ldexp)(x, y), torch.ldexp(x, y), equal_nan=True)


BESIDE_HALF: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a product": (lambda x, n: x * n, (70000, 1e5, 1e-8, torch.tensor(1e-8), torch.tensor(70000))),
    "a quotient": (lambda x, n: x / n, (70000, 1e5, torch.tensor(7e4), torch.tensor(1e-8, dtype=torch.float64))),
    "divided": (lambda x, n: n / x, (70000, torch.tensor(1e5))),
    "truncated": (lambda x, n: torch.div(x, n, rounding_mode="trunc"), (1e-6, torch.tensor(1e-6))),
    "alpha": (lambda x, n: torch.add(x, x, alpha=n), (70000, 1e-8)),
}


@pytest.mark.each_value
@pytest.mark.parametrize("name", BESIDE_HALF)
@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16], ids=str)
def test_numbers_that_are_arguments_are_not_rounded_to_a_half_type(name: str, dtype: torch.dtype) -> None:
    """They keep their values, as constants do: the result alone is rounded, by float64 half a unit at most."""
    function, numbers = BESIDE_HALF[name]
    x = torch.tensor([1e-3, 1.0, -2.0, 100.0]).to(dtype)
    compiled = litz(function, dynamic=True)
    for number in numbers:
        reference = function(x.double(), number)
        torch.testing.assert_close(compiled(x, number), reference.to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.float16])
def test_a_threshold_has_its_numbers_in_the_type(dtype: torch.dtype) -> None:
    """Of integers, which lost what float32 does not hold where the value was a float. Those that eager takes are
    compiled in one graph."""
    many = torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max
    x = torch.tensor([-many, many, -2, min(2**24 + 1, many)], dtype=dtype)
    taken = list[tuple[float, float]]()
    for number in (-2.5, 0.1, 3, float("inf"), 300):
        for limits in ((number, 1), (1, number)):
            try:
                torch.threshold(x, *limits)
            except RuntimeError:
                torch._dynamo.reset()  # which gives up a function that it compiles too often
                with pytest.raises(RuntimeError):
                    torch.compile(lambda x, limits=limits: torch.threshold(x, *limits), backend="litz")(x)
            else:
                taken.append(limits)

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.threshold(x, *limits) for limits in taken]

    assert len(taken) >= 5
    for limits, found, wanted in zip(taken, torch.compile(fn, backend="litz")(x), fn(x), strict=True):
        assert torch.equal(found, wanted), limits


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_number_beside_a_threshold_is_not_the_threshold(dtype: torch.dtype) -> None:
    """Eager compares half types in float32; a limit rounded to the type is one of its numbers."""
    limits = (0.1, -0.7, 1 / 3, 0.3)

    def beside(limit: float) -> torch.Tensor:
        around = torch.tensor(limit, dtype=dtype)
        return torch.stack([around, torch.nextafter(around, around * 0), torch.nextafter(around, around * 9)])

    def of_one(x: torch.Tensor, limit: float) -> list[torch.Tensor]:
        back = torch.ops.aten.threshold_backward(torch.full_like(x, 100), x, limit)
        return [torch.threshold(x, limit, 20.0), torch.threshold(x, 0.5, limit), back]

    def fn(*xs: torch.Tensor) -> list[list[torch.Tensor]]:
        return [of_one(x, limit) for x, limit in zip(xs, limits, strict=True)]

    xs = [beside(limit) for limit in limits]
    torch.testing.assert_close(torch.compile(fn, backend="litz")(*xs), fn(*xs), rtol=0, atol=0)


def test_the_sign_of_complex_infinity_has_one_part() -> None:
    parts = (0.0, -0.0, 2.0, torch.inf, -torch.inf, torch.nan, 1e-30)
    x = torch.tensor([complex(a, b) for a in parts for b in parts], dtype=torch.complex64)
    found, wanted = torch.compile(lambda x: (x.sgn(), x.real.sgn()), backend="litz")(x), (x.sgn(), x.real.sgn())
    torch.testing.assert_close(torch.view_as_real(found[0]), torch.view_as_real(wanted[0]), equal_nan=True)
    torch.testing.assert_close(found[1], wanted[1], equal_nan=True)


def test_ends_at_the_edges_of_a_type() -> None:
    """Eager takes them, and computes with them in the type of the result."""

    def f(end: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            *(torch.linspace(0, end, 3, dtype=torch.uint8) for end in (-1, -129, 255)),
            *(torch.linspace(0, math.inf, 3, dtype=torch.half), torch.linspace(0, 2**63 - 1, 3, dtype=torch.int64)),
            *(torch.arange(2**63 - 3, 2**63 - 1), torch.arange(-(2**63), -(2**63) + 2)),
            torch.linspace(end, 3, 3),
        )

    end = torch.tensor(1.0)
    for ours, theirs in zip(litz(f)(end), f(end), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)

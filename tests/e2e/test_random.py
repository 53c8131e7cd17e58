"""Random numbers: their statistics, their seed, and that forward and backward agree."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from support.compare import device_param

INF, NAN = math.inf, math.nan

N = 20_000


def draw_rand(x: torch.Tensor) -> torch.Tensor:
    return torch.rand(N, device=x.device)


def draw_rand_like(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x.expand(N, 1))


def draw_randn(x: torch.Tensor) -> torch.Tensor:
    return torch.randn(N, device=x.device) * 2 + 1


def draw_normal(x: torch.Tensor) -> torch.Tensor:
    return torch.normal(x.new_full((N,), 1.0), 2.0)


def draw_normal_in_place(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(N).normal_(1.0, 2.0)


def draw_randint(x: torch.Tensor) -> torch.Tensor:
    return torch.randint(-3, 4, (N,), device=x.device)


def draw_bernoulli(x: torch.Tensor) -> torch.Tensor:
    return torch.bernoulli(x.new_full((N,), 0.25))


def draw_bernoulli_in_place(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(N).bernoulli_(0.25)


def draw_multinomial(x: torch.Tensor) -> torch.Tensor:
    return torch.multinomial(torch.tensor([0.5, 0.25, 0.25], device=x.device), N, replacement=True)


def draw_exponential(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(N).exponential_(0.5)


def draw_uniform(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(N).uniform_(-2, 4)


def draw_dropout(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x.new_ones(N), 0.25)


def draw_alpha_dropout(x: torch.Tensor) -> torch.Tensor:
    return F.alpha_dropout(x.new_ones(N), 0.25)


# (function, mean, variance, least value, greatest value)
DRAWS: list[tuple[Callable[..., Any], float, float, float, float]] = [
    (draw_rand, 1 / 2, 1 / 12, 0, 1),
    (draw_rand_like, 1 / 2, 1 / 12, 0, 1),
    (draw_randn, 1, 4, -INF, INF),
    (draw_normal, 1, 4, -INF, INF),
    (draw_normal_in_place, 1, 4, -INF, INF),
    (draw_randint, 0, 4, -3, 3),
    (draw_bernoulli, 1 / 4, 3 / 16, 0, 1),
    (draw_bernoulli_in_place, 1 / 4, 3 / 16, 0, 1),
    (draw_multinomial, 3 / 4, 11 / 16, 0, 2),
    (draw_exponential, 2, 4, 0, INF),
    (draw_uniform, 1, 3, -2, 4),
    (draw_dropout, 1, 1 / 3, 0, 4 / 3 + 1e-6),
]


@device_param
def test_random_numbers(device: str) -> None:
    """Of all functions in one graph."""
    x = torch.zeros(1, device=device)

    def draw_all(x: torch.Tensor) -> list[torch.Tensor]:
        return [draw[0](x) for draw in DRAWS]

    compiled = torch.compile(draw_all, backend="litz")
    torch.manual_seed(11)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(11)
    again = compiled(x)
    for one, other, same, draw in zip(first, second, again, DRAWS, strict=True):
        assert torch.equal(same, one), "the same seed draws the same numbers"
        assert not torch.equal(one, other)
        is_as_expected(one, draw[0](x), *draw[1:])


def is_as_expected(
    first: torch.Tensor, expected: torch.Tensor, mean: float, variance: float, least: float, most: float
) -> None:
    """The numbers of a draw, beside eager's."""
    assert (first.dtype, first.shape, first.stride()) == (expected.dtype, expected.shape, expected.stride())
    values = first.double()
    assert least <= float(values.min()) and float(values.max()) <= most
    error = math.sqrt(variance / N)
    assert abs(float(values.mean()) - mean) < 5 * error
    assert abs(float(values.var()) / variance - 1) < 0.12
    neighbours = torch.corrcoef(torch.stack([values.flatten()[:-1], values.flatten()[1:]]))[0, 1]
    assert abs(float(neighbours)) < 0.05


@device_param
def test_two_draws_in_one_graph_differ(device: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.rand_like(x), torch.rand_like(x), F.dropout(x, 0.5), F.dropout(x, 0.5)

    torch._dynamo.reset()
    a, b, c, d = torch.compile(f, backend="litz")(torch.ones(100, device=device))
    assert not torch.equal(a, b) and not torch.equal(c, d)


@device_param
def test_random_numbers_and_eager_share_the_generator(device: str) -> None:
    """Compiled code moves the generator on, and a seed set in between counts."""
    compiled = torch.compile(lambda x: torch.rand_like(x) + x, backend="litz")
    x = torch.zeros(100, device=device)
    torch.manual_seed(5)
    before = torch.rand(3, device=device)
    compiled(x)
    after = torch.rand(3, device=device)
    assert not torch.equal(before, after)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3, device=device), before)


@device_param
def test_permutations_and_sampling(device: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.randperm(50, device=x.device), torch.multinomial(x, 4)

    torch._dynamo.reset()
    order, chosen = torch.compile(f, backend="litz")(torch.tensor([0.1, 0.2, 0.0, 0.3, 0.4], device=device))
    assert sorted(order.tolist()) == list(range(50))
    assert sorted(chosen.tolist()) == [0, 1, 3, 4]


@device_param
@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_dropout_is_the_same(device: str, reentrant: bool) -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x.sin(), 0.5) * 3

    def f(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=reentrant) * 2

    torch._dynamo.reset()
    x = torch.full((50, 40), 0.7, device=device, requires_grad=True)
    out = torch.compile(f, backend="litz")(x)
    out.sum().backward()
    mask = out.detach() / (out.detach().max())
    torch.testing.assert_close(x.grad, mask.round() * 12 * math.cos(0.7), rtol=1e-5, atol=1e-5)
    assert 0.4 < float(mask.mean()) < 0.6


@device_param
def test_a_recomputed_compiled_function_draws_the_same(device: str) -> None:
    """Eager's checkpoint around compiled code: the generator is set back before the forward runs again."""
    block = torch.compile(lambda x: F.dropout(x.sin(), 0.5) * 3, backend="litz")
    x = torch.full((50, 40), 0.7, device=device, requires_grad=True)
    out = checkpoint(block, x, use_reentrant=False)
    out.sum().backward()
    torch.testing.assert_close(x.grad, out.detach() / math.tan(0.7), rtol=1e-5, atol=1e-5)

"""Random ops: statistics, and repetition by seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.ir import Extern, Loop, Program
from litz.ir.interpret import interpret
from operators.harness import program_of

COUNT = 20_000


def run(program: Program, *inputs: torch.Tensor, seed: int = 0) -> list[Any]:
    torch.manual_seed(seed)
    return interpret(program, list(inputs))


def drawn(function: Callable[..., Any], *inputs: torch.Tensor, seed: int = 0) -> list[Any]:
    """The results, after checking that nothing but the seed and assertions comes from the library."""
    program = program_of(function, *inputs)
    asserts = torch.ops.aten._assert_async.msg
    externs = [op for op in program.operations if isinstance(op, Extern) and op.target != asserts]
    assert [op.target for op in externs] == [torch.ops.aten.randint.low] and externs[0].effect
    results = run(program, *inputs, seed=seed)
    with torch.random.fork_rng():
        expected = function(*inputs)
    for ours, theirs in zip(results, expected if isinstance(expected, (list, tuple)) else [expected], strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.stride() == theirs.stride()
    return results


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "rand": lambda x: torch.rand(3, 5),
    "randn": lambda x: torch.randn(7),
    "randint": lambda x: torch.randint(2, 9, (4, 4)),
    "rand_like": torch.rand_like,
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.5)),
    "uniform_": lambda x: x.clone().uniform_(2, 3),
    "normal_": lambda x: x.clone().normal_(2, 3),
    "exponential_": lambda x: x.clone().exponential_(),
    "random_": lambda x: x.clone().random_(9),
    "dropout": lambda x: F.dropout(x, 0.5),
    "normal": lambda x: torch.normal(x, 2.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_seed_decides(name: str) -> None:
    program, x = program_of(FUNCTIONS[name], torch.ones(4, 8)), torch.ones(4, 8)
    first, again, other = run(program, x)[0], run(program, x)[0], run(program, x, seed=1)[0]
    assert torch.equal(first, again) and not torch.equal(first, other)
    following = interpret(program, [x])[0]
    assert not torch.equal(following, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_rand(dtype: torch.dtype) -> None:
    (x,) = drawn(lambda: torch.rand(COUNT, dtype=dtype))
    assert x.min() >= 0 and x.max() < 1
    assert abs(x.double().mean() - 0.5) < 0.01 and abs(x.double().var() - 1 / 12) < 0.005


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_randn(dtype: torch.dtype) -> None:
    (x,) = drawn(lambda: torch.randn(COUNT, dtype=dtype))
    assert abs(x.double().mean()) < 0.03 and abs(x.double().std() - 1) < 0.03
    inner = (x.abs() < 1).double().mean()
    assert abs(inner - math.erf(1 / math.sqrt(2))) < 0.02


@pytest.mark.parametrize("low, high", [(0, 2), (-3, 7), (5, 6), (0, 2**31), (-(2**40), 2**41)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_randint(low: int, high: int, dtype: torch.dtype) -> None:
    (x,) = drawn(lambda: torch.randint(low, high, (COUNT,), dtype=dtype))
    assert low <= x.min() and x.max() < high
    assert abs((x.double().mean() - (low + high - 1) / 2) / (high - low)) < 0.01
    if high - low <= 10:
        assert x.unique().tolist() == list(range(low, high))


def test_like_follows_the_layout_but_not_the_numbers() -> None:
    program = program_of(lambda x, y: (torch.rand_like(x), torch.randn_like(y), torch.randint_like(x, 9)),
                         torch.ones(4, 3).t(), torch.ones(2, 2))  # fmt: skip
    x, y, z = run(program, torch.ones(4, 3).t(), torch.ones(2, 2))
    assert x.stride() == (1, 3) and y.shape == (2, 2) and z.dtype == torch.float32
    dense = program_of(lambda x, y: (torch.rand_like(x), torch.randn_like(y)), torch.ones(3, 4), torch.ones(2, 2))
    assert torch.equal(x, run(dense, torch.ones(3, 4), torch.ones(2, 2))[0])


def test_bernoulli() -> None:
    (x,) = drawn(lambda: torch.bernoulli(torch.full((COUNT,), 0.3)))
    assert abs(x.mean() - 0.3) < 0.02 and set(x.unique().tolist()) == {0.0, 1.0}
    p = torch.linspace(0, 1, COUNT)
    (x,) = drawn(lambda p: torch.ops.aten.bernoulli.p(p, 0.75), p)
    assert abs(x.mean() - 0.75) < 0.02
    (x,) = drawn(lambda p: torch.ops.aten.bernoulli.Tensor(torch.zeros_like(p), p), p)
    assert abs(x.mean() - 0.5) < 0.02 and x[: COUNT // 10].mean() < 0.1
    (x,) = drawn(lambda p: torch.bernoulli(p), p.bfloat16())
    assert abs(x.double().mean() - 0.5) < 0.02


def test_other_distributions() -> None:
    x = torch.zeros(COUNT)
    (u,) = drawn(lambda x: x.clone().uniform_(2, 6), x)
    assert u.min() >= 2 and u.max() < 6 and abs(u.mean() - 4) < 0.05
    (n,) = drawn(lambda x: x.clone().normal_(5, 3), x)
    assert abs(n.mean() - 5) < 0.1 and abs(n.std() - 3) < 0.1
    (e,) = drawn(lambda x: x.clone().exponential_(2.0), x)
    assert e.min() > 0 and abs(e.mean() - 0.5) < 0.02
    (n,) = drawn(lambda x: torch.normal(x, 2.0), x)
    assert abs(n.std() - 2) < 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout(dtype: torch.dtype) -> None:
    (x,) = drawn(lambda x: F.dropout(x, 0.25), torch.ones(COUNT, dtype=dtype))
    assert abs((x != 0).double().mean() - 0.75) < 0.02 and abs(x.max() - 1 / 0.75) < 0.01
    y, mask = drawn(lambda x: torch.ops.aten.native_dropout(x, 0.5, True), torch.ones(COUNT, dtype=dtype))
    assert torch.equal(y != 0, mask) and abs(mask.double().mean() - 0.5) < 0.02 and y.max() == 2


def test_dropout_without_chance() -> None:
    for p, train in ((0.5, False), (0.0, True), (1.0, True)):
        function = partial(torch.ops.aten.native_dropout, p=p, train=train)
        ours, theirs = run(program_of(function, torch.ones(9)), torch.ones(9)), function(torch.ones(9))
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_ops_differ_and_share_one_seed() -> None:
    program = program_of(lambda: (torch.rand(100), torch.rand(100), torch.rand(100)))
    a, b, c = run(program)
    assert not torch.equal(a, b) and not torch.equal(b, c) and not torch.equal(a, c)
    assert len(program.externs) == 1 and len(program.loops) == 3


def test_dynamic_sizes() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(x) + torch.randint(0, x.shape[0], x.shape)

    (x,) = run(program_of(function, torch.ones(50, 3), dynamic=True), torch.ones(50, 3))
    assert x.shape == (50, 3) and x.min() >= 0 and 40 < x.max() < 50


def test_numbers_and_nothing() -> None:
    drawn(lambda: torch.rand(()))
    drawn(lambda: torch.randn(0, 3))


def test_what_stays_with_the_library() -> None:
    program = program_of(lambda x: (torch.randperm(9), torch.multinomial(x, 3), torch.poisson(x)), torch.ones(5))
    assert len(program.externs) == 3 and all(extern.effect for extern in program.externs)
    assert not any(isinstance(operation, Loop) for operation in program.operations)

"""`fallback_random`: the numbers that compiled code draws are eager's, bit for bit.

What is computed from the draws in these tests has hardly any roundings, so that results can be compared exactly, and
gradients, which are sums, nearly so.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from litz.driver.builtin import builtin_plugins
from litz.pipeline import make_compiler
from litz_plugins.manager import make_plugins
from support.compare import device_param
from support.retarget import cuda_schedules

OPTIONS = {"fallback_random": True}


def sampled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Ops that make a tensor of random numbers, between them one whose result nobody reads."""
    torch.rand(3, device=x.device)
    return (
        torch.rand(x.shape, device=x.device),
        torch.rand_like(x.t()) * 2,
        torch.randn(x.shape[0], device=x.device),
        torch.randn_like(x) + 1,
        torch.randint(-3, 9, x.shape, device=x.device),
        torch.randint_like(x, 5),
        torch.randint_like(x, 2, 5),
        x[torch.randperm(x.shape[0], device=x.device)],
        torch.multinomial(x, 4),
        torch.bernoulli(x.clamp(max=1)),
        torch.bernoulli(x.t(), 0.3),
        torch.normal(x, 2.0),
        torch.normal(0.0, x),
        torch.normal(x, x),
        torch.poisson(x),
    )


def filled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Ops that fill memory, which may lie in another order than row by row."""
    spread = torch.empty_like(x.t())
    return (
        spread.bernoulli_(0.3) * 2,
        spread.clone().bernoulli_(x.t().clamp(max=1)),
        spread.clone().uniform_(-1, 3),
        spread.clone().normal_(1, 2),
        spread.clone().exponential_(2),
        spread.clone().geometric_(0.4),
        spread.clone().cauchy_(),
        spread.clone().log_normal_(),
        spread.clone().random_(7),
        spread.clone().random_(2, 7),
        spread.clone().random_(),
        x.repeat(1, 2)[:, ::2].bernoulli_(0.5),
    )


def dropped(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Ops that scale by random numbers."""
    return (
        F.dropout(-x, 0.3) * 2,
        F.dropout(-x.t(), 0.1),
        torch.native_dropout(x, 0.5, True)[0],
        F.dropout1d(x, 0.25),
        F.rrelu(-x, training=True),
        F.dropout(x, 0.0) + F.dropout(x, 1.0) + F.dropout(x, 0.5, training=False),
    )


def shifted(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Ops that scale by random numbers and add others: positive numbers stay so, and what is dropped is negative."""
    return (
        F.alpha_dropout(x, 0.5, training=True),
        F.feature_alpha_dropout(x.expand(2, 3, *x.shape), 0.5, training=True),
    )


def checkpointed(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(checkpoint(lambda y: -y * F.dropout(y, 0.5), x, use_reentrant=False), 0.5)


def branched(x: torch.Tensor) -> torch.Tensor:
    first = torch.cond(
        x.sum() > 0, lambda y: F.dropout(y, 0.3) * 2, lambda y: F.dropout(y, 0.3) + torch.rand_like(y), (x,)
    )
    return first + torch.rand_like(x)


class _DrawsTwice(torch.autograd.Function):
    """Draws in the forward what only the backward reads, and draws in the backward what no gradient goes into."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.noise = torch.rand_like(x)
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * (ctx.noise < torch.rand(gradient.shape[-1], device=gradient.device))


def custom(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(_DrawsTwice.apply(F.dropout(x, 0.5)), 0.5)


def _values(fn: Callable[..., Any], x: torch.Tensor, grad: bool) -> list[torch.Tensor]:
    """The results of two calls, the gradient of both, and what the generator gives afterwards."""
    x = x.detach().clone().requires_grad_(grad)
    torch.manual_seed(7)
    found: list[torch.Tensor] = []
    for _ in range(2):
        results = fn(x)
        found += results if isinstance(results, tuple) else (results,)
    if grad:
        ends = [value for value in found if value.requires_grad]
        found += torch.autograd.grad(ends, x, [torch.full_like(value, 2) for value in ends])
    return [*found, torch.rand(3, device=x.device)]


@device_param
@pytest.mark.each_value
@pytest.mark.parametrize(
    ("fn", "grad", "dynamic"),
    [
        (sampled, False, False),
        (sampled, False, True),
        (filled, False, False),
        (filled, False, True),
        (dropped, False, True),
        (dropped, True, False),
        (dropped, True, True),
        (checkpointed, True, False),
        (branched, True, False),
        (custom, True, False),
    ],
)
def test_numbers_are_eagers(fn: Callable[..., Any], grad: bool, dynamic: bool, device: str) -> None:
    x = (torch.randint(1, 9, (12, 33)) / 4).to(device)
    expected = _values(fn, x, grad)
    found = _values(torch.compile(fn, backend="litz", options=OPTIONS, dynamic=dynamic), x, grad)
    for number, (got, want) in enumerate(zip(found, expected, strict=True)):
        if grad and number == len(expected) - 2:
            torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-5)
        else:
            assert torch.equal(got, want), f"value {number}"
            assert got.stride() == want.stride()


@device_param
@pytest.mark.parametrize(("grad", "dynamic"), [(False, True), (True, False)])
def test_alpha_dropout_drops_what_eager_drops(grad: bool, dynamic: bool, device: str) -> None:
    """x * noise + shift: a GPU's fused multiply-add rounds once where eager rounds twice, so last digits may differ."""
    x = (torch.randint(1, 9, (12, 33)) / 4).to(device)
    expected = _values(shifted, x, grad)
    found = _values(torch.compile(shifted, backend="litz", options=OPTIONS, dynamic=dynamic), x, grad)
    rtol = 0 if device == "cpu" else 2 * torch.finfo(x.dtype).eps
    for got, want in zip(found[:4], expected[:4], strict=True):
        assert torch.equal(got < 0, want < 0)
        torch.testing.assert_close(got, want, rtol=rtol, atol=0)
        assert got.stride() == want.stride()
    for got, want in zip(found[4:-1], expected[4:-1], strict=True):  # the gradient: a sum
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-5)
    assert torch.equal(found[-1], expected[-1])


@device_param
def test_a_training_step_with_dropout_is_eagers(device: str) -> None:
    """A convolution, channels last, recurrent layers and attention with dropout: as right as eager, with its masks."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
            self.recurrent = torch.nn.GRU(8, 8, 2, dropout=0.4, batch_first=True)
            self.attention = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.dropout2d(F.dropout(self.convolution(x).relu(), 0.2), 0.2)
            x = self.recurrent(x.flatten(2).mT)[0]
            return self.attention(x)

    torch._dynamo.reset()
    torch.manual_seed(1)
    model = Model().to(device=device, memory_format=torch.channels_last)
    x = torch.randn(2, 3, 5, 5, device=device).to(memory_format=torch.channels_last)
    results = []
    for compiled in (False, True):
        own = copy.deepcopy(model)
        run = torch.compile(own, backend="litz", options=OPTIONS) if compiled else own
        torch.manual_seed(5)
        out = run(x)
        out.square().mean().backward()
        results.append([out, *(p.grad for p in own.parameters()), torch.rand(3, device=device)])
    for got, want in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-5)
    assert torch.equal(results[1][-1], results[0][-1])


def test_torchs_rules_are_back_after_a_compile() -> None:
    op = torch.ops.aten.dropout.default
    before = dict(op.py_kernels), dict(torch.ops.aten.bernoulli_.float.py_kernels)
    torch._dynamo.reset()
    torch.compile(lambda x: F.dropout(x, 0.5), backend="litz", options=OPTIONS)(torch.ones(3))
    assert (dict(op.py_kernels), dict(torch.ops.aten.bernoulli_.float.py_kernels)) == before


def test_on_a_gpu_draws_are_calls_in_program_order() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = torch.rand_like(x) * 2, torch.randn_like(x) * 2
        return b + torch.bernoulli(x), a, torch.native_dropout(a, 0.5, True)[0]

    compiler = make_compiler(None, OPTIONS, make_plugins(builtin_plugins(), entry_points=()))
    torch._dynamo.reset()
    (schedule,) = cuda_schedules(lambda backend: torch.compile(f, backend=backend)(torch.full((64, 64), 0.5)), compiler)
    calls = [str(getattr(step, "target", "")) for step in schedule.steps]
    assert [c.split(".")[1] for c in calls if c] == ["rand_like", "randn_like", "bernoulli", "native_dropout"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_recording_draws_what_eager_draws() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5) * 2 + torch.randint_like(x, 9)

    torch._dynamo.reset()
    x = torch.ones(1000, device="cuda")
    compiled = torch.compile(f, backend="litz", options={**OPTIONS, "cuda_graphs": True})
    found = []
    for fn in (f, compiled):
        torch.manual_seed(3)
        found.append([fn(x).clone() for _ in range(5)])
    for call, (got, want) in enumerate(zip(found[1], found[0], strict=True)):
        assert torch.equal(got, want), f"call {call}"

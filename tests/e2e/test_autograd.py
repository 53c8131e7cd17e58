"""Gradients, grad modes, inference mode and autocast around compiled functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

from support.compare import device_param, litz, t

INF, NAN = math.inf, math.nan


@device_param
def test_in_place_under_autograd(device: str) -> None:
    def f(x: torch.Tensor, w: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        y = x * w
        y.relu_()
        y = y * 2
        y[1:].mul_(w[1:])
        y.t()[0].add_(3)
        buffer.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        return (y * buffer).sum()

    def run(fn: Callable[..., Any]) -> list[torch.Tensor]:
        x, w = (t(5, 6, device=device).add(k).requires_grad_() for k in range(2))
        buffer = torch.ones(6, device=device)
        loss = fn(x, w, buffer)
        loss.backward()
        return [loss.detach(), x.grad, w.grad, buffer]

    torch._dynamo.reset()
    for got, want in zip(run(torch.compile(f, backend="litz")), run(f), strict=True):
        torch.testing.assert_close(got, want)


@device_param
def test_in_place_on_a_graph_input_that_has_a_history(device: str) -> None:
    def f(y: torch.Tensor) -> torch.Tensor:
        y.mul_(2)
        y[0].sin_()
        return y.exp()

    def run(fn: Callable[..., Any]) -> list[torch.Tensor]:
        x = t(4, 5, device=device).requires_grad_()
        y = x * 0.5
        out = fn(y)
        (out.sum() + y.sum()).backward()
        return [out.detach(), y.detach(), x.grad]

    torch._dynamo.reset()
    for got, want in zip(run(torch.compile(f, backend="litz")), run(f), strict=True):
        torch.testing.assert_close(got, want)


@device_param
def test_in_place_on_a_leaf_without_gradients(device: str) -> None:
    def step(parameter: torch.Tensor) -> None:
        with torch.no_grad():
            parameter.sub_(parameter.grad * 0.1)
            parameter.grad.zero_()

    def run(fn: Callable[..., Any]) -> torch.Tensor:
        p = t(4, 5, device=device).requires_grad_()
        p.square().sum().backward()
        fn(p)
        assert p.requires_grad and p.is_leaf
        assert float(p.grad.abs().sum()) == 0
        return p.detach()

    torch._dynamo.reset()
    torch.testing.assert_close(run(torch.compile(step, backend="litz")), run(step))


@pytest.mark.ci_cases("False-cpu")
@device_param
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_backward_has_what_was_there_before_a_write(dynamic: bool, device: str) -> None:
    """The partitioner saves an input that the forward writes, to compute from it again (so with TorchInductor)."""

    def normalized(x: torch.Tensor, w: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
        spread = x.detach().abs().mean(0)
        out = x.sin() * w * (spread / running)
        running.lerp_(spread, 0.1)
        return out * running

    def power_step(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            v = F.normalize(w.t() @ u, dim=0)
            u.copy_(F.normalize(w @ v, dim=0))
            u, v = u.clone(), v.clone()
        return x @ (w / torch.dot(u, w @ v)).t()

    def grown(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            w.mul_(2)
        return (x * w[0] * u.sum()).sin() * w[1]

    cases = [
        (normalized, (3, 4), (4,), (4,)),
        (power_step, (2, 4), (3, 4), (3,)),
        (grown, (3, 4), (3, 4), (3,)),
    ]
    for fn, *sizes in cases:

        def run(fn: Callable[..., Any], sizes: Any = sizes) -> list[torch.Tensor]:
            x, w, state = (t(*size, device=device, dtype=torch.float64) for size in sizes)
            x.requires_grad_()
            w.requires_grad_()
            results = []
            for _ in range(2):
                out = fn(x, w, state)
                results += [out.detach(), *torch.autograd.grad(out.square().sum(), (x, w)), state.clone()]
            return results

        torch._dynamo.reset()
        for got, want in zip(run(torch.compile(fn, backend="litz", dynamic=dynamic)), run(fn), strict=True):
            torch.testing.assert_close(got, want)


@device_param
def test_no_grad_and_inference_mode(device: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        with torch.no_grad():
            z = y.sin()
        with torch.enable_grad():
            w = y.cos()
        return y, z, w, y.detach()

    x = t(4, 5, device=device).requires_grad_()
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        torch._dynamo.reset()
        compiled = torch.compile(f, backend="litz")
        with mode():
            ours, theirs = compiled(x), f(x)
        for got, want in zip(ours, theirs, strict=True):
            torch.testing.assert_close(got, want)
            assert got.requires_grad == want.requires_grad
            assert got.is_inference() == want.is_inference()


@device_param
def test_inference_tensors_may_be_written(device: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    torch._dynamo.reset()
    with torch.inference_mode():
        ours, theirs = t(4, device=device), t(4, device=device)
        torch.testing.assert_close(torch.compile(f, backend="litz")(ours), f(theirs))
        torch.testing.assert_close(ours, theirs)


@pytest.mark.ci_cases("dtype0-cpu")
@device_param
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_inside_and_outside(dtype: torch.dtype, device: str) -> None:
    layer = torch.nn.Linear(16, 8).to(device)

    def inside(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast(device, dtype=dtype):
            y = layer(x)
            with torch.autocast(device, enabled=False):
                z = y.float() @ layer.weight
            return y, z, F.softmax(y, -1), y + x[:, :8], F.layer_norm(y, (8,))

    x = t(4, 16, device=device)
    torch._dynamo.reset()
    ours, theirs = torch.compile(inside, backend="litz")(x), inside(x)
    for got, want in zip(ours, theirs, strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got.float(), want.float(), rtol=3e-2, atol=3e-2)
    ours[1].sum().backward()
    gradient, layer.weight.grad = layer.weight.grad, None
    theirs[1].sum().backward()
    assert gradient.dtype == layer.weight.grad.dtype
    torch.testing.assert_close(gradient, layer.weight.grad, rtol=3e-2, atol=3e-2)


@pytest.mark.ci_cases("cpu-True")
@pytest.mark.parametrize("dynamic", [False, True])
@device_param
def test_a_tensor_and_its_detached_self_are_two_outputs(dynamic: bool, device: str) -> None:
    # AOTAutograd marks the detached one as without a gradient: one object for both would lose that of v.
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        v, w = x.sum(1), x.exp()
        return v.detach(), v.expand(3, *v.shape), v, v, w, w.detach(), (x * 2).sum()

    def run(fn: Callable[..., Any]) -> list[torch.Tensor]:
        x = t(2, 5, device=device).requires_grad_()
        outputs = fn(x)
        asked = [value for value in outputs if value.requires_grad]
        assert [value.requires_grad for value in outputs] == [False, True, True, True, True, False, True]
        assert outputs[2] is outputs[3]
        assert outputs[0].data_ptr() == outputs[2].data_ptr() and outputs[4].data_ptr() == outputs[5].data_ptr()
        found = [torch.autograd.grad(value.sum(), x, retain_graph=True)[0] for value in asked]
        return [*(value.detach() for value in outputs), *found]

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="litz", dynamic=dynamic)
    torch.testing.assert_close(run(compiled), run(f))
    with torch.no_grad():
        outputs = compiled(t(2, 5, device=device))
    assert outputs[0] is not outputs[2] and outputs[4] is not outputs[5]
    torch.testing.assert_close(outputs, f(t(2, 5, device=device)))


@pytest.mark.ci_cases("True")
@pytest.mark.parametrize("dynamic", [False, True])
def test_forward_gradients(dynamic: bool) -> None:
    """What a compiled function returns carries the derivative along the input's, also after a call without one."""
    f = lambda x, y: (x.sin() * x.cumsum(0), y * 2)
    compiled, x, y, along = litz(f, dynamic=dynamic), torch.randn(5), torch.randn(3), torch.randn(5)
    compiled(x, y)
    with forward_ad.dual_level():
        got, want = (
            [forward_ad.unpack_dual(o) for o in each(forward_ad.make_dual(x, along), y)] for each in (compiled, f)
        )
    torch.testing.assert_close(got[0].tangent, want[0].tangent)
    torch.testing.assert_close(got[0].primal, want[0].primal)
    assert got[1].tangent is None
    torch.testing.assert_close(torch.func.jvp(lambda x: compiled(x, y)[0], (x,), (along,))[1], want[0].tangent)

"""cond, while_loop, scan, associative_scan, flex_attention and their like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.compare import check, device_param, litz, same, t


@pytest.mark.nightly
@device_param
def test_cond(device: str) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * 2
        yes, no = lambda y: (y @ w).sin() + x.sum(), lambda y: y.cos() @ w - 1
        return torch.cond(y.sum() > 0, yes, no, (y,)) * 3

    for sign in (1, -1):
        check(f, t(4, 5, device=device).abs() * sign, t(5, 5, device=device), fullgraph=True)


@pytest.mark.thorough  # as tests/e2e/test_bodies.py has it
@device_param
def test_cond_under_autograd(device: str) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x, w: (x * w).sin(), lambda x, w: x + w * 2, (x, w)).exp()

    def run(fn: Callable[..., Any], sign: int) -> list[torch.Tensor]:
        x, w = (t(4, 5, device=device).abs() * sign).requires_grad_(), t(5, device=device).requires_grad_()
        out = fn(x, w)
        out.sum().backward()
        return [out.detach(), x.grad, w.grad]

    compiled = litz(f, fullgraph=True)
    for sign in (1, -1):
        same(run(compiled, sign), run(f, sign))


@pytest.mark.nightly
@device_param
def test_while_loop(device: str) -> None:
    from torch._higher_order_ops import while_loop

    def f(x: torch.Tensor, count: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scale = x.mean()
        number, y = while_loop(lambda n, y: n > 0, lambda n, y: (n - 1, y * 0.5 + scale), (count, x * 2))
        return number + 1, y.sin()

    for n in (0, 1, 7):
        check(f, t(4, 5, device=device), torch.tensor(n, device=device), fullgraph=True)


@device_param
def test_while_loop_with_an_integer(device: str) -> None:
    """The number of turns is a result of the call, beside tensors."""
    from torch._higher_order_ops import while_loop

    def f(x: torch.Tensor) -> tuple[Any, ...]:
        turns, total = while_loop(lambda i, x: i < x.shape[0], lambda i, x: (i + 1, x + i), (0, x))
        return turns, total, total * turns

    check(f, torch.arange(4, device=device))


@pytest.mark.nightly
@device_param
def test_scan_and_associative_scan(device: str) -> None:
    from torch._higher_order_ops.associative_scan import associative_scan
    from torch._higher_order_ops.scan import scan

    def running(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = state * 0.9 + x
        return state, state.sin()

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        last, each = scan(running, torch.zeros_like(x[0]), x * 2, dim=0)
        return last + 1, each * 3

    def g(x: torch.Tensor) -> torch.Tensor:
        return associative_scan(lambda a, b: a * b + a, x + 1, dim=0, combine_mode="generic") * 2

    check(f, t(6, 5, device=device), fullgraph=True)
    check(g, t(6, 5, device=device), fullgraph=True)


@pytest.mark.nightly
@device_param
def test_flex_attention(device: str) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k

    mask = create_block_mask(causal, 1, 1, 64, 64, device=device)
    slopes = torch.tensor([0.5, 0.25], device=device)

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        bias = lambda score, b, h, i, j: score + slopes[h] * (j - i)
        return flex_attention(q * 2, k, v, score_mod=bias, block_mask=mask) + 1

    def run(fn: Callable[..., Any]) -> list[torch.Tensor]:
        q, k, v = (t(1, 2, 64, 16, device=device).add(n).requires_grad_(device == "cuda") for n in range(3))
        out = fn(q, k, v)
        if device == "cpu":  # torch has no backward of it there
            return [out]
        out.square().mean().backward()
        return [out.detach(), q.grad, k.grad, v.grad]

    for dynamic in (False, True):
        same(run(litz(f, dynamic=dynamic)), run(f))


@pytest.mark.thorough  # as tests/e2e/test_bodies.py and test_regions.py have them
@device_param
def test_map_and_nested_compile_regions(device: str) -> None:
    from torch._higher_order_ops.map import map as torch_map

    @torch.compiler.nested_compile_region
    def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu() + x

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = block(x, w)
        return torch_map(lambda row, w: (row * 2).sin() + w.sum(), x, w)

    check(f, t(4, 5, device=device), t(5, 5, device=device), fullgraph=True)

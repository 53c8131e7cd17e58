"""Names in a wrapper: a saved value is called after its op, and must not hide what the wrapper calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from support.compare import litz

NAMES = ("_view", "_planned", "_pool", "torch", "math", "call", "args", "kernel0", "buf0", "op0", "aten_mm_default")


def _make(name: str, library: torch.library.Library) -> Any:
    """An op that triples its argument and keeps its own result for the backward."""
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, lambda x: x * 3, "CompositeExplicitAutograd")
    op = getattr(torch.ops.litz_names, name)

    def keep(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
        ctx.save_for_backward(output)

    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * ctx.saved_tensors[0].mm(torch.ones(3, 3)).sin()

    torch.library.register_autograd(f"litz_names::{name}", backward, setup_context=keep, lib=library)
    return op


@pytest.mark.ci_cases("_view", "args")
@pytest.mark.parametrize("name", NAMES)
def test_ops_of_users_have_any_name(name: str) -> None:
    with torch.library._scoped_library("litz_names", "FRAGMENT") as library:
        op = _make(name, library)
        weight = torch.randn(3, 3)

        def f(x: torch.Tensor) -> torch.Tensor:
            return op(x @ weight).t().relu().flatten().cumsum(0)

        def gradient(function: Any) -> torch.Tensor:
            x = torch.linspace(-1, 1, 9).reshape(3, 3).requires_grad_()
            return torch.autograd.grad(function(x).sum(), x)[0]

        torch.testing.assert_close(gradient(litz(f)), gradient(f))


def test_a_complex_constant_beside_a_saved_complex_value() -> None:
    """The gradient of an angle multiplies by -1j, whose name was that of the result of `torch.complex`."""
    torch.manual_seed(0)
    linear, convolution = torch.nn.Linear(4, 4, dtype=torch.complex64), torch.nn.Conv2d(1, 1, 2, dtype=torch.complex64)
    parameters = [*linear.parameters(), *convolution.parameters()]

    def layer(x: torch.Tensor) -> torch.Tensor:
        y = linear(x.conj())
        return torch.complex(y.real.relu(), y.imag).conj()

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = checkpoint(layer, torch.complex(x, 0.5 * torch.ones_like(x)), use_reentrant=False)
        y = convolution(y.view(-1, 1, 2, 2)).conj().view(5, -1)
        return y.abs(), y.angle()

    def run(function: Any) -> list[torch.Tensor]:
        results = function(torch.arange(20.0).reshape(5, 4).sin())
        return [*results, *torch.autograd.grad(sum(result.sum() for result in results), parameters)]

    for ours, theirs in zip(run(litz(f)), run(f), strict=True):
        torch.testing.assert_close(ours, theirs)

"""torch's deterministic mode on a GPU: runs have the same bits, and what has no such form is torch's error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from numerics.test_deterministic import OPTION, deterministic
from numerics.values import same_bits
from support.compare import close

pytestmark = pytest.mark.gpu
RUNS, ROWS, MANY = 12, 37, 60_000
F = nn.functional


def _many() -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(ROWS, 8, device="cuda"),
        torch.randint(0, ROWS, (MANY,), device="cuda"),
        torch.randn(MANY, 8, device="cuda"),
    )


CASES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "index_put": lambda x, at, values: torch.index_put(x * 2, (at,), values, accumulate=True),
    "scatter_add": lambda x, at, values: torch.scatter_add(x * 2, 0, at[:, None].expand(-1, 8), values),
    "index_add": lambda x, at, values: (x * 2).index_add(0, at, values),
    "embedding": lambda x, at, values: (F.embedding(at, x) * values).sin(),
    "gather": lambda x, at, values: x.gather(0, at[:, None].expand(-1, 8)) * values,
    "max_pool": lambda x, at, values: F.max_pool2d(values.view(8, 1, 300, 200) * x[0, 0], 3, 2),
    "norms": lambda x, at, values: F.layer_norm(values * x[0], (8,), x[1], x[2]).softmax(0),
    "products": lambda x, at, values: values.t() @ (values * x[0]),
    "half products": lambda x, at, values: (values.half().t() @ (values * x[0]).half()).float(),
    "sums": lambda x, at, values: (values * x[0]).sum(0) + (values * x[1]).exp().mean(),
    "scan": lambda x, at, values: (values * x[0]).cumsum(0),
}


def _step(function: Callable[..., Tensor], x: Tensor, at: Tensor, values: Tensor) -> list[Tensor]:
    """The result and the gradients of one training step."""
    given = [each.clone().requires_grad_() for each in (x, values)]
    result = function(given[0], at, given[1])
    wanted = torch.autograd.grad(result.square().sum(), given, allow_unused=True)
    return [result.detach(), *(each for each in wanted if each is not None)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("options", [{}, OPTION], ids=["torch", "option"])
def test_runs_have_the_same_bits(name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch._dynamo.reset()
    inputs = _many()
    with deterministic("default" if options else "error"):
        compiled = torch.compile(CASES[name], backend="litz", options=options or None)
        first = _step(compiled, *inputs)
        for _ in range(RUNS):
            assert all(map(same_bits, _step(compiled, *inputs), first))
    exact = _step(CASES[name], *(x.double() if x.is_floating_point() else x for x in inputs))
    close(first, _step(CASES[name], *inputs), exact, rounding=1e-3)


@pytest.mark.parametrize("options", [{}, OPTION], ids=["torch", "option"])
def test_torchs_errors_are_raised(options: dict[str, Any]) -> None:
    def f(x: Tensor, at: Tensor) -> Tensor:
        return (x * 2).put(at, x[0])

    x, at, _ = _many()
    with (
        deterministic("default" if options else "error"),
        pytest.raises(RuntimeError, match="put_ does not have a deterministic"),
    ):
        torch.compile(f, backend="litz", options=options or None)(x, at[:8])

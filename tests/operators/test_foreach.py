"""`_foreach_*` ops are taken apart: one ordinary op per tensor of their lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

import pytest
import torch
from torch import Tensor

from litz import report as reports
from litz_operators.foreach import foreach_decompositions
from litz_operators.plugin import litz_register_decompositions

Function = Callable[[list[Tensor], list[Tensor]], Sequence[Tensor]]
FOREACH: dict[str, Function] = {
    "add.List": lambda a, b: torch._foreach_add(a, b, alpha=2),
    "mul.Scalar": lambda a, b: torch._foreach_mul(a, 3.0),
    "div.ScalarList": lambda a, b: torch._foreach_div(a, [2.0, 3.0]),
    "mul.Tensor": lambda a, b: torch._foreach_mul(a, torch.tensor(3.0)),
    "addcmul.Scalar": lambda a, b: torch._foreach_addcmul(a, b, a, value=0.5),
    "addcdiv.ScalarList": lambda a, b: torch._foreach_addcdiv(a, b, [x.exp() for x in a], [0.5, 2.0]),
    "lerp.Scalar": lambda a, b: torch._foreach_lerp(a, b, 0.3),
    "sqrt": lambda a, b: torch._foreach_sqrt(torch._foreach_abs(a)),
    "norm": lambda a, b: torch._foreach_norm(a, 2),
    "maximum.Scalar": lambda a, b: torch._foreach_maximum(a, 0.1),
    "clamp_min.List": lambda a, b: torch._foreach_clamp_min(a, b),
    "pow.ScalarAndTensor": lambda a, b: torch._foreach_pow(2.0, a),
    "inplace": lambda a, b: torch._foreach_add_(torch._foreach_neg(a), b) or a,
    "copy": lambda a, b: torch._foreach_copy_([x + 0 for x in a], b) or a,
}


@pytest.mark.parametrize("name", FOREACH)
def test_they_are_taken_apart(name: str) -> None:
    def f(a: list[Tensor], b: list[Tensor]) -> Tensor:
        return torch.cat([x.flatten() for x in FOREACH[name](a, b)])

    a, b = [torch.randn(3), torch.randn(2, 2)], [torch.randn(3), torch.randn(2, 2)]
    with reports.collect() as found:
        result = torch.compile(f, backend="litz")(a, b)
    (report,) = found
    assert "_foreach" not in str([getattr(op, "target_name", "") for op in report.program.operations])
    torch.testing.assert_close(result, f(a, b))


def test_a_step_of_adamw() -> None:
    ours, theirs = (torch.nn.Linear(3, 3) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(4, 3)
    with reports.collect() as found:
        for model, wrap in ((ours, torch.compile), (theirs, lambda f, backend: f)):
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
            step = wrap(optimizer.step, backend="litz")
            for _ in range(3):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                step()
    targets = [getattr(op, "target_name", "") for report in found for op in report.program.operations]
    assert found and "_foreach" not in str(targets)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_a_vector_of_factors() -> None:
    """Dynamo cannot trace this overload (it reads the factors); the rule is right all the same."""
    a, b = [torch.randn(3), torch.randn(2, 2)], [torch.rand(3) + 1, torch.rand(2, 2) + 1]
    factors = torch.tensor([0.5, 2.0])
    for op in (torch.ops.aten._foreach_addcdiv.Tensor, torch.ops.aten._foreach_addcmul.Tensor):
        torch.testing.assert_close(foreach_decompositions()[op](a, a, b, factors), op(a, a, b, factors))


def test_the_table_is_made_once() -> None:
    """Each compile asks for it. To find the `_foreach_*` ops among all of torch's takes a twentieth of a small one."""
    made = litz_register_decompositions()
    assert litz_register_decompositions() is made
    assert isinstance(made, MappingProxyType), "nobody changes what all share"

"""What a budget is made of: amounts as text, and eager's planned peak of a graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from litz.capture.joint import JointGraph
from litz_passes.memory.amounts import bytes_of
from litz_passes.memory.sizes import Sizes, eager_peak


@pytest.mark.parametrize(
    ("text", "nbytes"), [("80%", 800), (" 12.5 % ", 125), ("64KiB", 65536), ("21474836480", 20 << 30), ("120%", 1200)]
)
def test_amounts(text: str, nbytes: int) -> None:
    assert bytes_of(text, 1000) == nbytes


@pytest.mark.parametrize(
    ("function", "tensors"),
    [
        (lambda x: x.sin().cos() + x, 3),  # x, a sine and its cosine; then x, the cosine and the sum
        (lambda x: x.view(-1).sin(), 2),  # a view has no memory
        (lambda x: x.sin().view(-1).exp().sum(), 3),  # and keeps that of its tensor
        (lambda x: (x.sin(), x.cos(), x.exp()), 4),  # results stay
        (lambda x: x.sin().sum() + x.cos().sum() + x.exp().sum(), 2),
    ],
)
def test_eagers_planned_peak(function: Callable[[Tensor], Tensor], tensors: int) -> None:
    module = make_fx(function, tracing_mode="fake")(torch.ones(32, 32))
    numbers = 16  # a sum or two, which are four bytes each
    assert eager_peak(Sizes(JointGraph("joint", module))).nbytes == pytest.approx(tensors * 4096, abs=numbers)


def test_what_eagers_peak_is_made_of() -> None:
    """Of x.sin().exp().sum(): the exponential is saved; the cosine is made of x in the backward."""

    def joint(x: Tensor, tangents_1: Tensor) -> tuple[Tensor, Tensor]:
        made = x.sin().exp()
        return made.sum(), tangents_1 * x.cos() * made

    module = make_fx(joint, tracing_mode="fake")(torch.ones(32, 32), torch.ones(32, 32))
    for node, name in zip(module.graph.find_nodes(op="placeholder"), ("primals_1", "tangents_1"), strict=True):
        node.name = node.target = name
    found = eager_peak(Sizes(JointGraph("joint", module)), 1)
    # x, the gradient and the sum of four bytes; the exponential; the cosine and a product.
    assert (found.standing, found.saved, found.others) == (2 * 4096 + 4, 4096, 2 * 4096)
    assert found.nbytes == 5 * 4096 + 4 and found.node is not None and found.node.name == "mul"

"""Functions of torch's own that wrappers call instead of ops: the same arguments, the same results."""

from __future__ import annotations

import pytest
import torch

from litz import report as reports
from litz.codegen.bindings import BINDINGS
from support.compare import litz

aten = torch.ops.aten
a, b, c = torch.randn(5, 3), torch.randn(3, 4), torch.randn(5, 4)
pages = [torch.randn(2, 5, 3), torch.randn(2, 3, 4), torch.randn(2, 5, 4)]
image, weight, bias = torch.randn(2, 4, 7, 7), torch.randn(6, 2, 3, 3), torch.randn(6)

ARGUMENTS = {
    "aten::convolution": (image, weight, bias, (2, 1), (1, 0), (1, 2), False, (0, 0), 2),
    "aten::mm": (a, b),
    "aten::bmm": (pages[0], pages[1]),
    "aten::addmm": (c, a, b),
    "aten::baddbmm": (pages[2], pages[0], pages[1]),
}


@pytest.mark.parametrize("op", BINDINGS, ids=str)
def test_is_the_op(op):
    name = BINDINGS[op].removeprefix("torch.")
    function = getattr(torch, name)
    arguments = ARGUMENTS[op._schema.name]
    given = {"out": torch.empty_like(op(*arguments, out=torch.empty(0)))} if op._overloadname == "out" else {}
    result = function(*arguments, **given)
    torch.testing.assert_close(result, op(*arguments, **({"out": torch.empty(0)} if given else {})), rtol=0, atol=0)
    assert not given or result is given["out"]
    if "addmm" in name or "baddbmm" in name:
        torch.testing.assert_close(
            function(*arguments, beta=0.5, alpha=2, **given), op(*arguments, beta=0.5, alpha=2, **given), rtol=0, atol=0
        )


@pytest.mark.each_value
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_have_eagers_strides(kernel, dtype):
    """Of weights with dimensions of size 1, in a layout that leaves their strides open."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(8, 8, kernel, bias=False), torch.nn.BatchNorm2d(8), torch.nn.Conv2d(8, 1, 1), torch.nn.ReLU()
    ).to(dtype)
    x = torch.randn(2, 8, 1 + kernel, kernel, dtype=dtype)
    torch._dynamo.reset()
    gradients = []
    for run in (model, torch.compile(model, backend="litz", options={"layout.force": True})):
        model.zero_grad()
        run(x).sum().backward()
        gradients.append([(p.grad.clone(), p.grad.stride()) for p in model.parameters() if p.grad is not None])
    for (theirs, wanted), (mine, own) in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)
        assert own == wanted


def test_calls_torch_directly():
    with reports.collect() as collected:
        litz(lambda x, y: torch.mm(x, y) + 1)(a, b)
    assert "= torch.mm" in collected[0].wrapper_source

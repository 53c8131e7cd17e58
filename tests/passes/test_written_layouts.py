"""Tensors that are written in place keep their strides, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

ROWS, MASK = torch.tensor([0, 2, 1]), torch.rand(3, 3, generator=torch.Generator().manual_seed(0)) > 0.5
WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "addbmm_": lambda y, z: y.addbmm_(z.expand(2, 3, 3), z.expand(2, 3, 3)),
    "addmm_": lambda y, z: y.addmm_(z, z),
    "baddbmm_": lambda y, z: y[None].baddbmm_(z[None], z[None]),
    "copysign_": lambda y, z: y.copysign_(z[0, 0]),
    "cumprod_": lambda y, z: y.cumprod_(0),
    "cumsum_": lambda y, z: y.cumsum_(0),
    "floor_divide_": lambda y, z: y.floor_divide_(z[0, 0]),
    "index_add_": lambda y, z: y.index_add_(0, ROWS, z),
    "index_copy_": lambda y, z: y.index_copy_(0, ROWS, z),
    "index_reduce_": lambda y, z: y.index_reduce_(0, ROWS, z, "amax"),
    "masked_fill_": lambda y, z: y.masked_fill_(MASK, 2.0),
    "masked_scatter_": lambda y, z: y.masked_scatter_(MASK, z),
    "mvlgamma_": lambda y, z: y.abs_().add_(3).mvlgamma_(2),
    "renorm_": lambda y, z: y.renorm_(2, 0, 1.0),
    "scatter_": lambda y, z: y.scatter_(0, ROWS.expand(3, 3), z),
    "scatter_add_": lambda y, z: y.scatter_add_(0, ROWS.expand(3, 3), z),
    "scatter_reduce_": lambda y, z: y.scatter_reduce_(0, ROWS.expand(3, 3), z, "sum"),
    "tril_": lambda y, z: y.tril_(),
    "triu_": lambda y, z: y.triu_(1),
    "xlogy_": lambda y, z: y[None].abs_().xlogy_(z.abs()),
}


def turned(x: Tensor, z: Tensor) -> list[Tensor]:
    """New tensors that lie in columns, written: the second result reads memory as it lies."""
    found = []
    for write in WRITES.values():
        y = x.t() * 2
        write(y, z)
        found += [y, y.as_strided((4,), (1,), 2)]
    return found


def through_views(x: Tensor, z: Tensor) -> list[Tensor]:
    """New tensors in rows, each written through its transpose: `view` takes those that still lie in rows."""
    found = []
    for write in WRITES.values():
        y = x * 2
        write(y.t(), z)
        found += [y, y.view(-1)]
    return found


def given(x: Tensor, z: Tensor) -> list[Tensor]:
    """An input that is written."""
    x.t().cumsum_(0)
    return [x.view(-1) * 2, x.as_strided((4,), (1,), 2) * 2]


@pytest.mark.parametrize("fn", [turned, through_views, given])
def test_a_written_tensor_keeps_its_strides(fn: Callable[..., list[Tensor]]) -> None:
    generator = torch.Generator().manual_seed(1)
    x, z = (torch.randn(3, 3, generator=generator) for _ in range(2))
    inputs = x.clone(), x.clone()
    expected, found = fn(inputs[0], z), torch.compile(fn, backend="litz")(inputs[1], z)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(inputs[1], inputs[0])
    assert [y.stride() for y in found] == [y.stride() for y in expected]


def of_data(x: Tensor, z: Tensor) -> list[Tensor]:
    """Rows whose number depends on data, written as they lie and as columns."""
    rows = torch.argwhere(x > 0)
    columns = torch.argwhere(z > 0).t()
    rows.index_add_(1, torch.tensor([1, 0]), rows.clone())
    columns.cumsum_(0)
    return [rows, columns]


def test_draws_are_left_alone() -> None:
    """Without the underscore, `bernoulli` draws by the tensor's own values, or takes other arguments."""

    def f(x: Tensor, chances: Tensor) -> tuple[Tensor, Tensor]:
        return x.clone().t().bernoulli_(chances), x.clone().t().bernoulli_()

    x = torch.zeros(300, 100)
    drawn, halves = torch.compile(f, backend="litz")(x, torch.ones(100, 300))
    torch.testing.assert_close(drawn, torch.ones(100, 300))
    assert 0.4 < float(halves.mean()) < 0.6


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_that_depend_on_data(dynamic: bool) -> None:
    x, z = torch.eye(3), torch.ones(3, 4)
    found = torch.compile(of_data, backend="litz", dynamic=dynamic, fullgraph=True)(x, z)
    torch.testing.assert_close(found, of_data(x, z))


def in_autocast(x: Tensor, z: Tensor) -> list[Tensor]:
    """Dynamo's calls that enter autocast and leave it have no fake result."""
    x.t().cumsum_(0)
    with torch.autocast("cpu", torch.bfloat16):
        return [x @ z, x.view(-1)]


def test_a_region_of_autocast_beside_a_write() -> None:
    x, z = torch.ones(3, 3), torch.eye(3)
    found, expected = torch.compile(in_autocast, backend="litz")(x.clone(), z), in_autocast(x, z)
    torch.testing.assert_close(found, expected)


def test_gradients_flow_through_the_copy() -> None:
    def f(x: Tensor, z: Tensor) -> Tensor:
        y = x.t() * z
        y.cumsum_(0)
        y.masked_fill_(MASK, 2.0)
        return y.t().view(-1)

    generator = torch.Generator().manual_seed(1)
    x, z = (torch.randn(3, 3, generator=generator, requires_grad=True) for _ in range(2))
    weights = torch.linspace(-1, 1, 9)
    expected, found = (torch.autograd.grad(fn(x, z), (x, z), weights) for fn in (f, torch.compile(f, backend="litz")))
    torch.testing.assert_close(found, expected)

"""Products under autocast: each result has eager's dtype, and operands that eager refuses are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from litz.driver.dry_run import schedule_only
from litz.ir import TensorRef

F = torch.nn.functional
Region = Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
PRODUCTS: dict[str, Product] = {
    "mv": lambda a, b: torch.mv(a, b.select(1, 0)),
    "dot": lambda a, b: torch.dot(a.select(0, 0), b.select(1, 0)),
    "vdot": lambda a, b: torch.vdot(a.select(0, 0), b.select(1, 0)),
    "addmv": lambda a, b: torch.addmv(b.select(0, 0), a, b.select(1, 0)),
    "matrix and vector": lambda a, b: a @ b.select(0, 0),
    "vectors": lambda a, b: a.select(0, 0) @ b.select(0, 0),
    "outer": lambda a, b: torch.outer(a.select(0, 0), b.select(0, 0)),
    "mm": lambda a, b: torch.mm(a, b),
    "addmm": lambda a, b: torch.addmm(a.select(0, 0), a, b),
    "bmm": lambda a, b: torch.bmm(a.unsqueeze(0), b.unsqueeze(0)),
    "baddbmm": lambda a, b: torch.baddbmm(b.unsqueeze(0), a.unsqueeze(0), b.unsqueeze(0)),
    "addbmm": lambda a, b: torch.addbmm(b, a.unsqueeze(0), b.unsqueeze(0)),
    "linear": lambda a, b: F.linear(a, b, b.select(0, 0)),
    "convolution": lambda a, b: F.conv1d(a.unsqueeze(0), b.unsqueeze(2)),
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
    "attention": lambda a, b: F.scaled_dot_product_attention(*(each.expand(1, 1, 6, 6) for each in (a, b, b))),
    "cdist": lambda a, b: torch.cdist(a, b),
    "softmax": lambda a, b: (a @ b).softmax(-1),
}
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def every(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    return [product(a, b) for product in PRODUCTS.values()]


def cpu(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    with torch.autocast("cpu", BF16):
        return every(a, b)


def nested(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    with torch.autocast("cpu", BF16):
        with torch.autocast("cpu", F16):
            found = every(a, b)
        return [*found, *every(a, b)]


def disabled(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    with torch.autocast("cpu", BF16), torch.autocast("cpu", enabled=False):
        return every(a, b)


def types(region: Region, *tensors: torch.Tensor) -> list[torch.dtype]:
    """The dtypes of what a region returns, as litz compiles it; nothing is built."""
    torch._dynamo.reset()
    (schedule,) = schedule_only(region, tensors)
    refs = [ref for ref in schedule.program.outputs if isinstance(ref, TensorRef)]
    assert len(refs) == len(schedule.program.outputs)
    return [schedule.program.buffers[ref.buffer].dtype for ref in refs]


@pytest.mark.ci_cases("disabled")  # the test below runs the nested one
@pytest.mark.parametrize("region", [cpu, nested, disabled], ids=lambda region: region.__name__)
def test_products_of_a_region_have_eagers_types(region: Region) -> None:
    a, b = torch.randn(6, 6), torch.randn(6, 6)
    expected = [each.dtype for each in region(a, b)]
    assert set(expected) == {cpu: {BF16, F32}, nested: {F16, BF16, F32}, disabled: {F32}}[region]
    assert types(region, a, b) == expected


def test_products_of_regions_in_each_other_are_eagers() -> None:
    a, b = torch.randn(6, 6), torch.randn(6, 6)
    found, expected = torch.compile(nested, backend="litz")(a, b), nested(a, b)
    assert [each.dtype for each in found] == [each.dtype for each in expected]
    for each, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(each, wanted, rtol=0.1, atol=0.2)


@pytest.mark.ci_cases("nested")
@pytest.mark.parametrize("region", [cpu, nested, disabled], ids=lambda region: region.__name__)
def test_a_region_for_cpus_leaves_a_gpus_products_alone(region: Region) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        a, b = (torch.empty(6, 6, device="cuda") for _ in range(2))
    assert set(types(region, a, b)) == {F32}


MIXED = [(F32, BF16), (BF16, F32), (torch.int32, torch.int64)]


def raised(function: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    """The class of what the function raises, of dynamo's the one that dynamo met; else the dtype of its result."""
    try:
        return function(a, b).dtype
    except torch._dynamo.exc.TorchRuntimeError:
        return RuntimeError
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("kind", ["mv", "dot", "vdot", "addmv", "matrix and vector", "mm", "bmm", "linear", "cdist"])
def test_operands_of_two_types_are_refused_where_eager_refuses_them(kind: str) -> None:
    """torch's rules for mv and cdist promote: they give float32 for float32 and bfloat16, where eager raises."""
    product = PRODUCTS[kind]
    for left, right in MIXED:
        a, b = torch.ones(6, 6, dtype=left), torch.ones(6, 6, dtype=right)
        expected = raised(product, a, b)
        torch._dynamo.reset()
        assert raised(torch.compile(product, backend="litz"), a, b) is expected, (left, right)

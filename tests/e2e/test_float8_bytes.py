"""Every byte of every float8 on a GPU, through torch.compile: in loops, and as weights of products with few rows. (For
the CPU `tests/core/codegen/test_cpp_float8.py` has every byte.)"""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from litz.ir.dtypes import FLOAT8, survives
from litz.schedule import choices
from litz_plugins import Choice, ChoiceContext
from support.compare import NO_GPU
from support.executed import executed, kinds
from support.float8 import every_byte

pytestmark = [pytest.mark.gpu, NO_GPU, pytest.mark.parametrize("dtype", sorted(FLOAT8, key=str), ids=str)]
DEVICE = "cuda"
Tensor = torch.Tensor
WANTED = (torch.float32, torch.bfloat16, torch.float16)


def same_numbers(got: Tensor, wanted: Tensor) -> None:
    """Bit for bit, but that NaN is NaN."""
    assert got.dtype == wanted.dtype
    got, wanted = got.cpu(), wanted.cpu()
    assert torch.equal(got.isnan(), wanted.isnan())
    bits = torch.int16 if got.dtype.itemsize == 2 else torch.int32
    assert torch.equal(*(each.masked_fill(each.isnan(), 0).view(bits) for each in (got, wanted)))


@pytest.mark.parametrize("size", [(256,), (256, 1), (8, 256, 33)], ids=str)
def test_every_byte_in_loops(dtype: torch.dtype, size: tuple[int, ...]) -> None:
    """In memory's order, turned, and a number for each row."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        rows = x.select(-1, 0).float().unsqueeze(-1) == x.float()
        return *(x.to(kind) for kind in WANTED), *(x.mT.contiguous().to(kind) for kind in WANTED), rows & y

    count = torch.Size(size).numel()
    x = every_byte(dtype).repeat(-(-count // 256))[:count].reshape(size)
    x = x.unsqueeze(0) if x.dim() == 1 else x
    y = torch.ones(x.shape, dtype=torch.bool)
    torch._dynamo.reset()
    found = torch.compile(f, backend="litz")(x.to(DEVICE), y.to(DEVICE))
    for got, wanted in zip(found[:-1], f(x, y)[:-1], strict=True):
        same_numbers(got, wanted)
    assert torch.equal(found[-1].cpu(), f(x, y)[-1])


def kernel(offered: Sequence[Choice], context: ChoiceContext) -> Choice | None:
    """Returns the kernel of few rows, whatever its estimate says."""
    return next((choice for choice in offered if choice.kind == "template"), None)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("columns", "depth", "turned"), [(70, 4096, False), (33, 331, False), (96, 256, True)])
def test_every_byte_in_products(dtype: torch.dtype, half: torch.dtype, columns: int, depth: int, turned: bool) -> None:
    """Each row of the activation chooses one weight of each column, so the product is that weight, or NaN where there
    is NaN or infinity beside it."""
    if not survives(dtype, half):
        pytest.skip("float16 has not all of its numbers")

    def f(x: Tensor, w: Tensor) -> Tensor:
        return x @ w.to(x.dtype) if turned else F.linear(x, w.to(x.dtype))

    every = every_byte(dtype)
    numbers = every.float()
    # Sums may flush what is below float32's normal numbers (float8_e8m0fnu has one such).
    finite = every[numbers.isfinite() & ((numbers == 0) | (numbers.abs() >= torch.finfo(torch.float32).tiny))]
    others = every[~numbers.isfinite()]
    at = torch.arange(columns)[:, None] * 7 + torch.arange(depth)
    w = finite.view(torch.uint8)[at % len(finite)]
    for number, byte in enumerate(others.view(torch.uint8)):  # in columns of their own, at all kinds of places
        w[number * 3, (number * 5 + 2) % depth] = byte
    w = w.view(dtype)
    exact = (torch.eye(depth, dtype=torch.float64) @ w.double().mT).to(half)
    w = (w.view(torch.uint8).mT.contiguous().view(dtype) if turned else w).to(DEVICE)
    chosen = torch.eye(depth, dtype=half, device=DEVICE)
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="litz", dynamic=False)
    with mock.patch.object(choices, "by_estimate", kernel):
        compiled(chosen[:16], w)
    for first in range(0, depth - 15, 16):
        rows = slice(first, first + 16)
        got = compiled(chosen[rows], w).cpu()
        torch.testing.assert_close(got, exact[rows], rtol=0, atol=0, equal_nan=True)
    names = kinds(executed(lambda: compiled(chosen[:16], w)))
    assert "mm" not in names, "the library multiplied"

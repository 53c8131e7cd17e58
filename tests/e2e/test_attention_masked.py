"""scaled_dot_product_attention with a mask, on a GPU: against float64, no worse than eager, and by core's kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.backends.common import aot_autograd

from litz import report
from support.compare import NO_GPU

pytestmark = [pytest.mark.gpu, NO_GPU]
Tensor = torch.Tensor


def positions(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = (torch.arange(x.shape[2], device=q.device) for x in (q, k))
    return rows[:, None], columns[None, :]


def causal(q: Tensor, k: Tensor, padding: Tensor) -> Tensor:
    rows, columns = positions(q, k)
    return columns <= rows


def window(q: Tensor, k: Tensor, padding: Tensor) -> Tensor:
    rows, columns = positions(q, k)
    return (columns <= rows) & (rows - columns < 100)


def padded(q: Tensor, k: Tensor, padding: Tensor) -> Tensor:
    """Of the first of a batch all keys are hidden."""
    return padding[:, None, None, :].expand(-1, 1, q.shape[2], -1)


def open_and_expanded(q: Tensor, k: Tensor, padding: Tensor) -> Tensor:
    """As transformers 5.17 pass it: torch has no fused kernel for its strides."""
    return (torch.arange(q.shape[2], device=q.device)[None, None, :, None] >= 0).expand(q.shape[0], 1, -1, k.shape[2])


def causal_padded(q: Tensor, k: Tensor, padding: Tensor) -> Tensor:
    return causal(q, k, padding) & padding[:, None, None, :]


def traced_strides(function: Callable[..., Tensor], *args: Tensor) -> tuple[int, ...]:
    """What the trace promises: the strides of the kernel that torch has for fake tensors, whatever a mask leads to."""
    found: list[tuple[int, ...]] = []

    def keep(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        found.append(next(iter(module.graph.output_node().args[0])).meta["val"].stride())
        return module.forward

    torch.compile(function, backend=aot_autograd(fw_compiler=keep), dynamic=False)(*args)
    return found[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [(4, 6, 512, 64), (2, 4, 300, 128), (2, 3, 197, 40), (64, 8, 49, 32)], ids=str)
@pytest.mark.parametrize("mask", [causal, window, padded, causal_padded, open_and_expanded])
def test_no_worse_than_eager(mask: Callable[..., Tensor], size: tuple[int, ...], dtype: torch.dtype) -> None:
    batch, heads, length, width = size
    q, k, v = (torch.randn(batch, length, heads, width, device="cuda", dtype=dtype).transpose(1, 2) for _ in range(3))
    padding = torch.rand(batch, length, device="cuda") < 0.7
    padding[0] = False

    def attention(q: Tensor, k: Tensor, v: Tensor, padding: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask(q, k, padding))

    torch._dynamo.reset()
    with torch.no_grad(), report.collect() as reports:
        actual = torch.compile(attention, backend="litz", dynamic=False)(q, k, v, padding)
        eager = attention(q, k, v, padding)
        exact = attention(q.double(), k.double(), v.double(), padding)
        promised = traced_strides(attention, q, k, v, padding)
    assert "triton attention" in str(reports[0].decisions)
    assert actual.stride() == promised and not actual.isnan().any()
    # Of a query that is left no key cuDNN gives the mean of the values; float64 says 0.
    left = torch.ones_like(exact) if mask not in (padded, causal_padded) else (exact != 0).double()
    ours, theirs = (((x.double() - exact) * left).square().mean().sqrt() for x in (actual, eager))
    assert ours <= 1.6 * theirs + 1e-6
    assert ((actual != 0) <= (left != 0)).all()
    largest = (actual.double() - exact).abs().max()
    assert largest <= 4e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_mask_of_a_dynamic_batch_leaves_the_batch_dynamic(dtype: torch.dtype) -> None:
    """torch pads masks whose rows are no multiple of 16 elements, and litz asks torch before it traces."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=open_and_expanded(q, k, q))

    compiled = torch.compile(attention, backend="litz")
    with torch.no_grad(), report.collect() as reports:
        for batch in (3, 5):
            q, k, v = (torch.randn(batch, 17, 4, 8, device="cuda", dtype=dtype).transpose(1, 2) for _ in range(3))
            for each in (q, k, v):
                torch._dynamo.mark_dynamic(each, 0)
            exact = attention(q.double(), k.double(), v.double())
            ours, theirs = ((x.double() - exact).abs().max() for x in (compiled(q, k, v), attention(q, k, v)))
            assert ours <= 2 * theirs + 1e-6
    assert len(reports) == 1

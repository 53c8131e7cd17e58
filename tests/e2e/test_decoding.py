"""One step of decoding on a GPU: attention of few queries over a cache, as the library, eager and float64 have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz import report as reports
from support.compare import NO_GPU
from support.split_cases import exactly, expanded, repeated

pytestmark = [pytest.mark.gpu, NO_GPU]

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
Tensor = torch.Tensor


def tensors(
    batch: int, heads: int, shared: int, queries: int, keys: int, width: int, dtype: torch.dtype
) -> list[Tensor]:
    shapes = (heads, queries, width), (shared, keys, width), (shared, keys, width)
    return [torch.randn(batch, *shape, dtype=dtype, device="cuda") for shape in shapes]


def check(fn: Callable[..., Tensor], given: list[Tensor], wanted: Tensor, kernel: bool = True, **options: Any) -> None:
    """litz is as close to float64 as eager is, and the keys were split, or were not."""
    torch._dynamo.reset()
    with torch.no_grad(), reports.collect() as collected:
        found = torch.compile(fn, backend="litz", **options)(*given)
        eager = fn(*given)
    assert found.shape == eager.shape and found.stride() == eager.stride() and found.dtype == eager.dtype
    assert torch.equal(found.isnan(), eager.isnan())
    errors = [(each.double() - wanted).abs().max().item() for each in (found, eager)]
    assert errors[0] <= 2 * errors[1] + 1e-6, errors
    chosen = [decision.chosen for report in collected for decision in report.decisions]
    assert any(name.startswith("triton attention in") for name in chosen) or not kernel, chosen


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("repeat", [repeated, expanded])
@pytest.mark.parametrize("batch", [1, 8])
def test_a_cache_with_a_mask(batch: int, repeat: Any, dtype: torch.dtype, kernels_win: None) -> None:
    q, k, v = tensors(batch, 32, 8, 1, 2048, 128, dtype)
    mask = torch.rand(batch, 1, 1, 2048, device="cuda") < 0.6

    def step(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, repeat(k, 4), repeat(v, 4), attn_mask=mask)

    check(step, [q, k, v, mask], exactly(q, k, v, mask))


@pytest.mark.parametrize(
    "dtype, stored", [(BF16, torch.float8_e4m3fn), (F16, torch.float8_e5m2), (BF16, torch.float8_e5m2)]
)
def test_a_cache_of_float8(dtype: torch.dtype, stored: torch.dtype, kernels_win: None) -> None:
    """It is converted as it is loaded."""
    q, k, v = tensors(2, 32, 8, 1, 2048, 128, dtype)
    k, v = k.to(stored), v.to(stored)
    mask = torch.rand(2, 1, 1, 2048, device="cuda") < 0.6

    def step(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        keys, values = (expanded(x.to(q.dtype), 4) for x in (k, v))
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)

    check(step, [q, k, v, mask], exactly(q, k, v, mask))


def test_a_query_without_a_key() -> None:
    q, k, v = tensors(2, 8, 2, 1, 999, 64, BF16)
    mask = torch.rand(2, 1, 1, 999, device="cuda") < 0.6
    mask[1] = False

    def step(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, repeated(k, 4), repeated(v, 4), attn_mask=mask)

    check(step, [q, k, v, mask], exactly(q, k, v, mask), kernel=False)


def test_an_additive_mask_as_models_make_it() -> None:
    q, k, v = tensors(2, 32, 8, 3, 1000, 128, BF16)
    position = torch.tensor([500, 501, 502], device="cuda")

    def step(q: Tensor, k: Tensor, v: Tensor, position: Tensor) -> Tensor:
        lowest = torch.finfo(q.dtype).min
        bias = torch.full((3, 1000), lowest, dtype=q.dtype, device=q.device)
        bias = bias * (torch.arange(1000, device=q.device) > position[:, None])
        return F.scaled_dot_product_attention(q, repeated(k, 4), repeated(v, 4), attn_mask=bias[None, None])

    mask = torch.arange(1000, device="cuda") <= position[:, None]
    check(step, [q, k, v, position], exactly(q, k, v, mask), kernel=False)


@pytest.mark.parametrize("mask", [False, True])
def test_heads_that_torch_repeats_itself(mask: bool) -> None:
    q, k, v = tensors(2, 32, 8, 1, 1024, 128, BF16)
    keep = torch.rand(2, 1, 1, 1024, device="cuda") < 0.6 if mask else torch.ones(2, 1, 1, 1024, device="cuda").bool()

    def step(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        given = keep if mask else None
        return F.scaled_dot_product_attention(q, k, v, attn_mask=given, enable_gqa=True)

    check(step, [q, k, v, keep], exactly(q, k, v, keep), kernel=False)


def test_a_cache_that_is_written_in_the_same_step() -> None:
    """As static caches are: the new key first, then attention over all."""
    q, k, v = tensors(2, 32, 8, 1, 1024, 128, BF16)
    new = torch.randn(2, 8, 1, 128, dtype=BF16, device="cuda")
    position = torch.tensor([700], device="cuda")

    def step(q: Tensor, k: Tensor, v: Tensor, new: Tensor, position: Tensor) -> Tensor:
        k.index_copy_(2, position, new)
        v.index_copy_(2, position, new * 2)
        mask = (torch.arange(1024, device=q.device) <= position)[None, None, None]
        return F.scaled_dot_product_attention(q, repeated(k, 4), repeated(v, 4), attn_mask=mask)

    torch._dynamo.reset()
    ours, theirs = [[k.clone(), v.clone()] for _ in range(2)]
    with torch.no_grad():
        found = torch.compile(step, backend="litz")(q, *ours, new, position)
        eager = step(q, *theirs, new, position)
    torch.testing.assert_close(found, eager, atol=1e-2, rtol=1e-2)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)


def test_caches_of_any_length() -> None:
    """One compilation; sizes 1, below a tile, and longer than what was seen first."""

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, repeated(k, 4), repeated(v, 4), is_causal=False)

    torch._dynamo.reset()
    compiled = torch.compile(step, backend="litz")
    for keys in (700, 701, 1, 33, 5000):
        q, k, v = tensors(2, 8, 2, 1, keys, 64, BF16)
        for tensor in (k, v):
            torch._dynamo.mark_dynamic(tensor, 2) if keys > 1 else None
        with torch.no_grad():
            torch.testing.assert_close(compiled(q, k, v).double(), exactly(q, k, v), atol=1e-2, rtol=1e-2)


def test_in_cuda_graphs() -> None:
    q, k, v = tensors(8, 32, 8, 1, 2048, 128, BF16)
    mask = torch.rand(8, 1, 1, 2048, device="cuda") < 0.6

    def step(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, repeated(k, 4), repeated(v, 4), attn_mask=mask)

    torch._dynamo.reset()
    compiled = torch.compile(step, backend="litz", mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            found = compiled(q, k, v, mask).clone()
    torch.testing.assert_close(found.double(), exactly(q, k, v, mask), atol=1e-2, rtol=1e-2)


def test_training_stays_with_the_library() -> None:
    q, k, v = (tensor.requires_grad_() for tensor in tensors(1, 8, 8, 1, 256, 64, BF16))
    torch._dynamo.reset()
    compiled = torch.compile(F.scaled_dot_product_attention, backend="litz")
    compiled(q, k, v).sum().backward()
    found, q.grad = q.grad, None
    F.scaled_dot_product_attention(q, k, v).sum().backward()
    torch.testing.assert_close(found, q.grad, atol=1e-2, rtol=1e-2)


def test_flash_attention_takes_keys_in_place() -> None:
    """Many queries: the library's kernel on the keys that were to be repeated."""
    q, k, v = tensors(2, 32, 8, 700, 700, 128, BF16)

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, repeated(k, 4), repeated(v, 4), is_causal=True)

    check(step, [q, k, v], exactly(q, k, v, is_causal=True), kernel=False)

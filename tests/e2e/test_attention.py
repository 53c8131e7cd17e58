"""flex_attention compiled against eager, with float64 as the judge; on a GPU by core's kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from litz import report as reports
from litz.ir import KernelCall
from litz.target.processors import has_blas
from support.compare import NO_GPU, check, close, device_param, litz, t

pytestmark = pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile.*")
Function = Callable[..., Any]


def score_mods(device: str) -> dict[str, Function | None]:
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], device=device)
    table = torch.randn(4, 4096, generator=torch.Generator().manual_seed(1)).to(device)
    return {
        "none": None,
        "alibi": lambda s, b, h, q, k: s + slopes[h] * (k - q),
        "relative": lambda s, b, h, q, k: s + table[h, q - k + 2048],
        "soft cap": lambda s, b, h, q, k: torch.tanh(s / 20) * 20,
    }


def masks(device: str) -> dict[str, Function | None]:
    documents = (torch.arange(4096, device=device) // 100).to(torch.int32)
    lengths = torch.tensor([300, 0], device=device)
    return {
        "none": None,
        "causal": lambda b, h, q, k: q >= k,
        "window": lambda b, h, q, k: (q >= k) & (q - k < 64),
        "document": lambda b, h, q, k: documents[q] == documents[k],
        "prefix": lambda b, h, q, k: (k < 100) | (q >= k),
        "padding": lambda b, h, q, k: k < lengths[b],
    }


def tensors(
    device: str, dtype: torch.dtype, queries: int = 300, keys: int = 300, width: int = 64, shared: int = 1
) -> list[torch.Tensor]:
    query = t(2, 4, queries, width, device=device, dtype=dtype)
    return [query, *(t(2, 4 // shared, keys, width, device=device, dtype=dtype).roll(n) for n in (1, 2))]


def attention(device: str, score: str, mask: str, queries: int, keys: int) -> Function:
    score_mod, mask_mod = score_mods(device)[score], masks(device)[mask]
    blocks = None if mask_mod is None else create_block_mask(mask_mod, 2, None, queries, keys, device=device)

    def f(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        given: dict[str, Any] = {"score_mod": score_mod, "block_mask": blocks, "return_lse": True}
        return flex_attention(query, key, value, enable_gqa=query.shape[1] != key.shape[1], **given)

    return f


def kernels(found: list[Any]) -> list[str]:
    return [op.name for report in found for op in report.program.operations if isinstance(op, KernelCall)]


@pytest.mark.ci_cases("cpu-padding-alibi")  # tests/e2e/test_attention_on_cpu.py has the others of a CPU
@pytest.mark.usefixtures("attention_untraced")
@pytest.mark.parametrize("score", score_mods("cpu"))
@pytest.mark.parametrize("mask", masks("cpu"))
@device_param
def test_scores_and_masks(device: str, mask: str, score: str) -> None:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    found = check(attention(device, score, mask, 300, 300), *tensors(device, dtype))
    assert bool(kernels(found)) == (device == "cuda" or has_blas())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [16, 40, 96, 128, 192, 256])
@pytest.mark.gpu
@NO_GPU
def test_widths_on_a_gpu(width: int, dtype: torch.dtype, kernels_win: None) -> None:
    for queries, keys in ((1, 257), (384, 256), (130, 1), (130, 40)):
        given = tensors("cuda", dtype, queries, keys, width, shared=2)
        found = check(attention("cuda", "alibi", "none", queries, keys), *given)
        assert len(kernels(found)) == 1


@pytest.mark.gpu
@NO_GPU
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_sizes_that_change_on_a_gpu(mask: str) -> None:
    inner = litz(flex_attention, dynamic=True)
    for queries in (256, 300, 1000):
        given = tensors("cuda", torch.bfloat16, queries, queries)
        mask_mod = masks("cuda")[mask]
        blocks = None if mask_mod is None else create_block_mask(mask_mod, None, None, queries, queries, device="cuda")
        want = flex_attention(*given, block_mask=blocks)
        exact = flex_attention(*(x.double() for x in given), block_mask=blocks)
        close(inner(*given, block_mask=blocks), want, exact)


@pytest.mark.gpu
@NO_GPU
@pytest.mark.parametrize("score", ["none", "alibi", "soft cap"])
@pytest.mark.parametrize("mask", ["none", "causal", "padding"])
def test_gradients_on_a_gpu(mask: str, score: str) -> None:
    fn = attention("cuda", score, mask, 300, 300)

    def run(f: Function, dtype: torch.dtype) -> list[torch.Tensor]:
        given = [x.to(dtype).requires_grad_() for x in tensors("cuda", torch.bfloat16)]
        out, lse = f(*given)
        (out.square().mean() + lse.nan_to_num(neginf=0.0).mean()).backward()
        return [out.detach(), lse.detach(), *(x.grad for x in given if x.grad is not None)]

    want, exact = run(fn, torch.bfloat16), run(fn, torch.float64)
    with reports.collect() as found:
        got = run(litz(fn), torch.bfloat16)
    assert kernels(list(found))
    close(got, want, [x.double() for x in exact])


@pytest.mark.gpu
@NO_GPU
def test_maxima_on_a_gpu() -> None:
    from torch.nn.attention.flex_attention import AuxRequest

    blocks = create_block_mask(masks("cuda")["padding"], 2, None, 300, 300, device="cuda")

    def f(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        out, aux = flex_attention(query, key, value, block_mask=blocks, return_aux=AuxRequest(True, True))
        return out, aux.lse, aux.max_scores

    check(f, *tensors("cuda", torch.bfloat16))


@pytest.mark.gpu
@NO_GPU
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_soft_cap_of_half_types_is_off_no_more_than_eager_s_on_a_gpu(dtype: torch.dtype) -> None:
    """Where it saturates, and where it is almost linear: scores up to 60, and below 1."""
    for factor in (8.0, 0.1):
        query, key, value = tensors("cuda", dtype, 512, 512)
        given = query * factor, key, value
        f = attention("cuda", "soft cap", "causal", 512, 512)
        exact, exact_sums = f(*(x.double() for x in given))
        eager = (f(*given)[0].double() - exact).abs().max()
        found, sums = litz(f)(*given)
        assert (found.double() - exact).abs().max() <= 1.05 * eager
        assert (sums.double() - exact_sums).abs().max() < 2.0**-13 + 1e-4

"""Products and sums of kernels from loops are instructions of their own: each reader of a product reads one number."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from litz_plugins import KernelSource
from support.triton_cases import CASES
from support.triton_compiled import compile_only

SOURCE = KernelSource(
    "kernel",
    "triton",
    """
import triton
import triton.language as tl


@triton.jit
def kernel(p0, p1):
    x = tl.arange(0, 64)
    tmp0 = tl.load(p0 + x)
    tmp1 = tmp0 * tl.load(p0 + 64 + x)
    tl.store(p1 + x, tl.max(tmp1, 0) - tmp1)
""",
    "kernel",
    settings={
        "pointers": ("*fp32", "*fp32"),
        "sizes": 0,
        "unaligned": (),
        "num_warps": 1,
        "limits": (),
        "asserts": False,
    },
)


def test_a_product_is_contracted_where_a_kernel_says_so() -> None:
    """Kernels of templates do, by default: the softmax of attention gains from that."""
    apart = replace(SOURCE, settings={**SOURCE.settings, "contracts": False})
    assert "fma.rn.f32" in compile_only(SOURCE)["ptx"] and "fma" not in compile_only(apart)["ptx"]


def test_kernels_of_loops_do_not() -> None:
    assert CASES and all(CASES[name]().source.settings["contracts"] is False for name in list(CASES)[:5])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_lies_below_a_maximum_is_not_above_it(dtype: torch.dtype) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, z = a * b, a * b + 1
        return (y.amax(1, keepdim=True) - y).sqrt(), y - y, (z - z.amin(0)).sqrt()

    generator = torch.Generator("cuda").manual_seed(0)
    a, b = (torch.randn(300, 500, device="cuda", dtype=dtype, generator=generator) for _ in range(2))
    below, nothing, above = torch.compile(f, backend="litz")(a, b)
    assert not below.isnan().any() and not nothing.any() and not above.isnan().any()
    assert (below == 0).sum() >= 300 and (above == 0).sum() >= 500

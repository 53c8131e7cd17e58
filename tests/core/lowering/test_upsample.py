"""Resampling and its gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from core.lowering.harness import check

aten = torch.ops.aten

SIZES: dict[int, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {
    1: [((5,), (10,)), ((5,), (15,)), ((7,), (10,)), ((9,), (4,))],
    2: [((4, 5), (8, 10)), ((4, 5), (12, 5)), ((4, 5), (7, 3)), ((6, 7), (246, 287))],
    3: [((2, 3, 4), (4, 6, 8)), ((2, 3, 4), (3, 3, 7))],
}


def op_of(exact: bool, ndim: int, backward: bool) -> Any:
    name = f"{'_upsample_nearest_exact' if exact else 'upsample_nearest'}{ndim}d{'_backward' if backward else ''}"
    return getattr(aten, name).default


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_nearest(exact: bool, ndim: int) -> None:
    for size, out in SIZES[ndim]:
        x, grad = torch.randn(1, 2, *size), torch.randn(1, 2, *out)
        check(lambda x, out=out: op_of(exact, ndim, False)(x, list(out)), x)
        check(lambda g, size=size, out=out: op_of(exact, ndim, True)(g, list(out), [1, 2, *size]), grad,
              rtol=1e-4, atol=1e-4)  # fmt: skip


@pytest.mark.parametrize("exact", [False, True])
def test_nearest_by_scales(exact: bool) -> None:
    x, grad = torch.randn(1, 2, 4, 5), torch.randn(1, 2, 6, 12)
    check(lambda x: op_of(exact, 2, False)(x, [6, 12], 1.6, 2.5), x)
    check(lambda g: op_of(exact, 2, True)(g, [6, 12], [1, 2, 4, 5], 1.6, 2.5), grad)


def test_layouts_and_dtypes() -> None:
    x = torch.randn(1, 2, 4, 5).to(memory_format=torch.channels_last)
    check(lambda x: op_of(False, 2, False)(x, [8, 10]), x)
    check(lambda g: op_of(False, 2, True)(g, [4, 5], [1, 2, 2, 5]), x.bfloat16(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("scale", [2, 1.5])
def test_as_captured(mode: str, scale: float) -> None:
    corners = {"align_corners": False} if mode in ("bilinear", "bicubic") else {}
    check(lambda x: F.interpolate(x, scale_factor=scale, mode=mode, **corners), torch.randn(1, 2, 4, 6),
          rtol=1e-4, atol=1e-4)  # fmt: skip


@pytest.mark.parametrize("name, size", [("linear1d", (5,)), ("bilinear2d", (4, 5)), ("trilinear3d", (2, 3, 4))])
def test_smooth_gradients_stay_with_the_library(name: str, size: tuple[int, ...]) -> None:
    op, out = getattr(aten, f"upsample_{name}_backward").default, [2 * n for n in size]
    check(lambda g: op(g, out, [1, 2, *size], False), torch.randn(1, 2, *out), native=False)

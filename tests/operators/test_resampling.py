"""Resampling and its gradients."""

from __future__ import annotations

from itertools import cycle, product
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from operators.harness import check

aten = torch.ops.aten

SIZES: dict[int, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {
    1: [((5,), (10,)), ((5,), (15,)), ((7,), (10,)), ((9,), (4,))],
    2: [((4, 5), (8, 10)), ((4, 5), (12, 5)), ((4, 5), (7, 3)), ((6, 7), (246, 287))],
    3: [((2, 3, 4), (4, 6, 8)), ((2, 3, 4), (3, 3, 7))],
}


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each element searches its outputs, as on a GPU."""
    monkeypatch.setattr("litz_operators.resampling.search_or_raise", lambda ctx, grad: None)


def op_of(exact: bool, ndim: int, backward: bool) -> Any:
    name = f"{'_upsample_nearest_exact' if exact else 'upsample_nearest'}{ndim}d{'_backward' if backward else ''}"
    return getattr(aten, name).default


@pytest.mark.each_value
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_nearest(searched: None, exact: bool, ndim: int) -> None:
    for size, out in SIZES[ndim]:
        x, grad = torch.randn(1, 2, *size), torch.randn(1, 2, *out)
        check(lambda x, out=out: op_of(exact, ndim, False)(x, list(out)), x)
        check(lambda g, size=size, out=out: op_of(exact, ndim, True)(g, list(out), [1, 2, *size]), grad,
              rtol=1e-4, atol=1e-4)  # fmt: skip


@pytest.mark.parametrize("exact", [False, True])
def test_nearest_by_scales(searched: None, exact: bool) -> None:
    x, grad = torch.randn(1, 2, 4, 5), torch.randn(1, 2, 6, 12)
    check(lambda x: op_of(exact, 2, False)(x, [6, 12], 1.6, 2.5), x)
    check(lambda g: op_of(exact, 2, True)(g, [6, 12], [1, 2, 4, 5], 1.6, 2.5), grad)


def test_layouts_and_dtypes(searched: None) -> None:
    x = torch.randn(1, 2, 4, 5).to(memory_format=torch.channels_last)
    check(lambda x: op_of(False, 2, False)(x, [8, 10]), x)
    check(lambda g: op_of(False, 2, True)(g, [4, 5], [1, 2, 2, 5]), x.bfloat16(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("scale", [2, 1.5])
def test_as_captured(mode: str, scale: float) -> None:
    corners = {"align_corners": False} if mode in ("bilinear", "bicubic") else {}
    check(lambda x: F.interpolate(x, scale_factor=scale, mode=mode, **corners), torch.randn(1, 2, 4, 6),
          rtol=1e-4, atol=1e-4)  # fmt: skip


SMOOTH = {"linear1d": 1, "bilinear2d": 2, "trilinear3d": 3, "bicubic2d": 2}


@pytest.mark.each_value
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SMOOTH)
def test_weighted_gradient(searched: None, name: str, dtype: torch.dtype, align_corners: bool) -> None:
    """Enlarged, shrunk, of one element and to one. Eager, which adds one term after the other, is 1e-3 off in float32
    where a source has thousands of outputs."""
    op, ndim = getattr(aten, f"upsample_{name}_backward").default, SMOOTH[name]
    tolerance = 2e-2 if dtype.itemsize == 2 else 1e-5
    for size, out in (*SIZES[ndim], ((1,) * ndim, (6,) * ndim), ((7,) * ndim, (1,) * ndim), ((3,) * ndim, (3,) * ndim)):
        grad = torch.randn(1, 2, *out, dtype=dtype)
        check(lambda g, size=size, out=out: op(g, list(out), [1, 2, *size], align_corners), grad,
              rtol=1e-10 if dtype == torch.float64 else tolerance, atol=10 * tolerance,
              by_float64=dtype == torch.float32)  # fmt: skip


@pytest.mark.parametrize("name", ["bilinear2d", "bicubic2d"])
def test_weighted_gradient_by_scales_and_layouts(searched: None, name: str) -> None:
    op = getattr(aten, f"upsample_{name}_backward").default
    check(lambda g: op(g, [6, 12], [1, 2, 4, 5], False, 1.6, 2.5), torch.randn(1, 2, 6, 12))
    last = torch.randn(2, 3, 8, 10).to(memory_format=torch.channels_last)
    check(lambda g: op(g, [8, 10], [2, 3, 4, 5], False), last)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["bilinear2d", "nearest2d", "bicubic2d"])
def test_an_infinite_gradient_reaches_its_sources_alone(searched: None, name: str, value: float) -> None:
    op, grad = getattr(aten, f"upsample_{name}_backward").default, torch.randn(1, 1, 11, 13)
    grad[0, 0, 5, 7] = value
    rest = () if name == "nearest2d" else (False,)
    check(lambda g: op(g, [11, 13], [1, 1, 4, 5], *rest), grad)


def test_long_lines(searched: None) -> None:
    """Eager rounds some source positions far from 0 to thousandths, in float64 too."""
    for size, out in ((20_011, 30_023), (30_023, 20_011)):
        grad = torch.randn(1, 1, out, dtype=torch.float64)
        check(
            lambda g, n=size, m=out: aten.upsample_linear1d_backward(g, [m], [1, 1, n], False), grad, atol=2e-3, rtol=0
        )
        check(lambda g, n=size, m=out: aten.upsample_nearest1d_backward(g, [m], [1, 1, n]), grad)


@pytest.mark.parametrize(
    "name, size", [("linear1d", (5,)), ("bilinear2d", (4, 5)), ("nearest2d", (4, 5)), ("bicubic2d", (4, 5))]
)
def test_a_cpus_gradient_is_the_librarys_unless_it_adds_blocks(name: str, size: tuple[int, ...]) -> None:
    op, out = getattr(aten, f"upsample_{name}_backward").default, [3 * n // 2 for n in size]
    rest = () if name.startswith("nearest") else (False,)
    check(lambda g: op(g, out, [1, 2, *size], *rest), torch.randn(1, 2, *out), native=False)


def test_bilinear_samples_at_no_place_are_nan() -> None:
    """As in eager on a CPU, where weights are computed of the coordinates, and zeros are padded."""
    nan, inf = float("nan"), float("inf")
    grid = torch.tensor([(nan, 0.0), (0.3, nan), (inf, 0.0), (0.0, -inf), (1e10, 0.0), (0.5, 0.2)]).expand(2, 1, 6, 2)
    x = torch.randn(2, 3, 4, 5)
    turned = grid.transpose(1, 2).flip(2)
    images = x, x.contiguous(memory_format=torch.channels_last), x.mT.contiguous().mT
    grids = cycle((grid.contiguous(), turned, turned.contiguous()))  # each meets both kinds of corners
    for (image, corners), places in zip(product(images, (False, True)), grids, strict=False):
        check(lambda x, g, corners=corners: F.grid_sample(x, g, align_corners=corners), image, places)

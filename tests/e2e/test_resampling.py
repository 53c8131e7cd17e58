"""Resampling through torch.compile: results and gradients as float64 has them, in every mode, size and layout."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from litz import report
from litz.pipeline import generate, make_compiler, plan_schedule
from support.compare import device_param, litz
from support.retarget import cuda_schedules
from support.triton_compiled import compile_only

MODES: dict[str, tuple[int, bool]] = {
    "nearest": (2, False),
    "nearest-exact": (2, False),
    "linear": (1, True),
    "bilinear": (2, True),
    "trilinear": (3, True),
    "bicubic": (2, True),
}
"""Mode: (dimensions, whether corners may be aligned)."""

SIZES: list[dict[str, Any]] = [{"scale_factor": 2}, {"scale_factor": 3.0}, {"scale_factor": 1.5}, {"scale_factor": 0.5}]


def resample(x: Tensor, options: dict[str, Any]) -> Tensor:
    """Between two operations that may be part of its kernels."""
    return F.interpolate(x.sin(), **options).cos()


def both(fn: Any, x: Tensor, options: dict[str, Any]) -> list[Tensor]:
    leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    out = fn(leaf, options)
    weight = torch.linspace(0.5, 1.5, out.numel(), device=x.device, dtype=x.dtype).view(out.shape)
    out.mul(weight).sum().backward()
    assert leaf.grad is not None
    return [out.detach(), leaf.grad]


def assert_as_exact(x: Tensor, options: dict[str, Any], **dynamic: bool) -> None:
    ours, eager = both(litz(resample, **dynamic), x, options), both(resample, x, options)
    for got, theirs, want in zip(ours, eager, both(resample, x.double(), options), strict=True):
        assert got.stride() == theirs.stride() and got.dtype == theirs.dtype
        off, unit = float((theirs.double() - want).abs().max()), float(want.abs().max()) * torch.finfo(x.dtype).eps
        assert float((got.double() - want).abs().max()) <= 2 * off + 4 * unit


@device_param
@pytest.mark.each_value
@pytest.mark.parametrize("options", SIZES, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_modes(device: str, mode: str, options: dict[str, Any]) -> None:
    ndim, corners = MODES[mode]
    x = torch.randn((2, 3, 6, 5, 7)[: ndim + 2], device=device)
    for aligned in (False, True) if corners else (None,):
        given = options if aligned is None else {**options, "align_corners": aligned}
        assert_as_exact(x, {"mode": mode, **given})


@pytest.mark.ci_cases("torch.float16-bilinear-cpu")
@device_param
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_types_and_layouts(device: str, mode: str, dtype: torch.dtype) -> None:
    x = torch.randn(2, 4, 5, 6, device=device, dtype=dtype)
    formats = itertools.cycle((torch.channels_last, torch.contiguous_format))
    for fmt, size in zip(formats, [(15, 6), (7, 11), (1, 1)]):
        assert_as_exact(x.contiguous(memory_format=fmt), {"mode": mode, "size": size})
    assert_as_exact(torch.randn(1, 2, 1, 1, device=device, dtype=dtype), {"mode": mode, "size": (4, 3)})


@pytest.mark.ci_cases("nearest-True-cpu", "bilinear-False-cpu")
@device_param
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "trilinear", "bicubic"])
def test_results_lie_as_the_input_does(device: str, mode: str, dynamic: bool) -> None:
    """Also of few channels. Nearest has two kernels, of images and of volumes; bilinear has few and many of images."""
    dims = MODES[mode][:1]
    for ndim, channels in [(2, 2), (3, 20)] if mode == "nearest" else itertools.product(dims, (2, 20)):
        fmt = torch.channels_last if ndim == 2 else torch.channels_last_3d
        x = torch.randn(2, channels, *(5, 6, 4)[:ndim], device=device).contiguous(memory_format=fmt)
        assert_as_exact(x, {"mode": mode, "size": (7,) * ndim}, dynamic=dynamic)


@pytest.mark.ci_cases("bilinear-cpu")
@device_param
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_sizes_that_vary(device: str, mode: str) -> None:
    """One graph and its backward for all sizes. (Dynamo breaks the graph at a factor that is an int.)"""
    compiled, options = litz(resample, dynamic=True), {"mode": mode, "scale_factor": 2.0}
    with report.collect() as graphs:
        for side in (5, 8, 11):
            x = torch.randn(2, 3, side, side + 1, device=device)
            torch.testing.assert_close(both(compiled, x, options), both(resample, x, options), rtol=1e-4, atol=1e-4)
    assert len(graphs) == 2


@device_param
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_a_gradient_inside_of_a_graph(device: str, mode: str) -> None:
    """`torch.func.grad`: the forward and the gradient are one graph."""
    fn = torch.func.grad(lambda x: resample(x, {"mode": mode, "scale_factor": 2}).square().sum())
    x = torch.randn(1, 2, 4, 5, device=device)
    torch.testing.assert_close(litz(fn)(x), fn(x), rtol=1e-4, atol=1e-4)


def test_torch_has_its_rules_again_after_a_compile() -> None:
    op = torch.ops.aten.upsample_bilinear2d.vec
    before = dict(op.py_kernels)
    litz(resample)(torch.randn(1, 2, 4, 5), {"mode": "bilinear", "scale_factor": 2})
    assert op.py_kernels == before and before


@pytest.mark.parametrize(
    "options", [{"scale_factor": 2}, {"size": (7, 9)}, {"scale_factor": 2, "mode": "bilinear"}], ids=str
)
def test_a_gpus_gradient_is_one_kernel_without_atomic_additions(options: dict[str, Any]) -> None:
    """Compiled for a GPU that is not there."""
    pytest.importorskip("triton")
    x = torch.randn(2, 8, 4, 6).to(memory_format=torch.channels_last).requires_grad_()

    def run(backend: Any) -> None:
        torch.compile(resample, backend=backend, dynamic=False)(x, options).sum().backward()

    compiler = make_compiler()
    schedule = cuda_schedules(run, compiler)[-1]
    (source,) = generate(plan_schedule(schedule, compiler), compiler).values()
    assert "atom" not in compile_only(source)["ptx"]

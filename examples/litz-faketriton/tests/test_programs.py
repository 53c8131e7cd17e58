"""Programs through torch.compile on the made-up device, judged by float64. Needs TRITON_INTERPRET=1 from the start."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import litz_faketriton
from litz import report as reports
from litz.driver.builtin import builtin_plugins
from litz.pipeline import compile_backend
from litz_plugins.manager import make_plugins
from litz_plugins.testing import check_plugin


def random(*size, dtype=torch.float32):
    return torch.randn(size, generator=torch.Generator().manual_seed(len(size))).to(dtype)


def check(fn, *args, bound=2e-6, dynamic=False):
    """`fn(*args)` compiled is at most `bound` of the largest element off from float64. Returns the report."""
    torch._dynamo.reset()
    plugins = make_plugins(builtin_plugins(), extra=[("faketriton", litz_faketriton)], entry_points=())
    backend = lambda gm, inputs: compile_backend(gm, inputs, options={"debug": True}, plugins=plugins)  # noqa: E731
    with reports.collect() as found:
        ours = torch.compile(fn, backend=backend, dynamic=dynamic)(*args)
    exact = fn(*(x.double() for x in args))
    assert ours.shape == exact.shape
    off = float((ours.double() - exact).abs().max() / exact.abs().max())
    assert off < bound, off
    (report,) = found
    assert report.kernel_sources and all("@triton.jit" in text for text in report.kernel_sources.values())
    return report


def test_the_plugin_is_well_formed():
    assert check_plugin(litz_faketriton, name="faketriton").devices == ("cpu",)


def test_pointwise():
    check(lambda x, y: F.gelu(x) * y + 1, random(33, 70), random(70))


def test_softmax():
    check(lambda x: x.softmax(-1), random(20, 130))


@pytest.mark.parametrize("dim", [0, 1])
def test_a_reduction(dim):
    check(lambda x: (x * x).sum(dim), random(70, 300))


def test_a_long_sum_is_split():
    check(lambda x: x.sum(), random(1 << 16).abs())


def test_sizes_that_vary():
    check(lambda x: x.softmax(-1).cumsum(0), random(7, 50), dynamic=True)


def test_a_product_with_an_epilogue_is_one_kernel():
    def fn(x, w, b):
        return F.relu(x @ w + b) * 0.5

    report = check(fn, random(64, 1024), random(1024, 96), random(96))
    (text,) = report.kernel_sources.values()
    assert "tl.dot(" in text


def test_a_package(tmp_path):
    litz_aot = pytest.importorskip("litz_aot")
    plugins = make_plugins(builtin_plugins(), extra=[("faketriton", litz_faketriton)], entry_points=())
    x = random(20, 130)
    folder = Path(litz_aot.compile(lambda x: x.softmax(-1), (x,), tmp_path / "p", plugins=plugins))
    assert list(folder.rglob("kernel.py")) and "warps of 64" in (folder / "package.json").read_text()
    torch.testing.assert_close(litz_aot.load(folder)(x), x.softmax(-1))


def test_half_types():
    check(lambda x: x.softmax(-1), random(20, 130, dtype=torch.float16), bound=1e-3)


def test_buffers_come_from_the_vendors_allocator(monkeypatch):
    from litz_faketriton import launch

    sizes, own = [], launch.allocate
    monkeypatch.setattr(launch, "allocate", lambda size, stride, dtype: sizes.append(size) or own(size, stride, dtype))
    check(lambda x: x + 1, random(5, 6))
    assert (5, 6) in sizes or (30,) in sizes

"""Core without litz-operators: the same results, by calls of torch's kernels; and loops for the same ops with it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from litz import report
from litz.pipeline import compile_backend
from litz_plugins import Plugins
from support.core_alone_cases import core_alone
from support.own_plugins import operators


def planes(x: Tensor) -> Tensor:
    """One value of each kind of op that litz-operators lowers. x: [n, c, 8, 8]."""
    largest, places = F.max_pool2d(x, 2, return_indices=True)
    columns = F.unfold(x, 3, padding=1)
    found = [
        F.max_pool2d(x, 3, 2, 1),
        F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        F.adaptive_avg_pool2d(x, (3, 5)),
        F.adaptive_max_pool2d(x, 3),
        F.max_unpool2d(largest, places, 2),
        F.interpolate(x, scale_factor=2),
        F.interpolate(x, scale_factor=1.5, mode="bilinear"),
        F.fold(columns * columns, (8, 8), 3, padding=1),
        x.unfold(2, 3, 2),
        F.pad(x, (1, 2, 0, 1), "reflect"),
        F.pad(x, (1, 2, 0, 1), "replicate"),
    ]
    return torch.cat(
        [(value * value).sum((2, 3)).flatten() for value in found if value.dim() == 4] + [found[8].sum()[None]]
    )


LOWERED = {
    *("max_pool2d_with_indices", "max_unpool2d", "avg_pool2d", "avg_pool2d_backward", "upsample_nearest2d_backward"),
    *("col2im", "_adaptive_avg_pool2d_backward", "adaptive_max_pool2d_backward", "unfold_backward"),
    *("reflection_pad2d_backward", "replication_pad2d_backward"),
}
"""Calls of core alone that are loops with litz-operators, also on a CPU."""


def results(function: Any, x: Tensor) -> list[Tensor]:
    leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    out = function(leaf)
    weight = torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype)
    (out * weight).sum().backward()
    assert leaf.grad is not None
    return [out.detach(), leaf.grad]


@pytest.mark.ci_cases("alone")
@pytest.mark.parametrize("plugins", [core_alone(), operators()], ids=["alone", "operators"])
def test_by_float64(plugins: Plugins, tmp_path: Path) -> None:
    torch._dynamo.reset()
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    backend = partial(compile_backend, options={"cache_dir": str(tmp_path), "cpp.qualify": False}, plugins=plugins)
    with report.collect() as graphs:
        ours = results(torch.compile(planes, backend=backend, dynamic=False), x)
    for own, eager, exact in zip(ours, results(planes, x), results(planes, x.double()), strict=True):
        assert own.stride() == eager.stride() and own.dtype == eager.dtype
        off = float((eager.double() - exact).abs().max())
        assert float((own.double() - exact).abs().max()) <= 2 * off + 1e-6 * float(exact.abs().max())
    called = {name.removeprefix("aten.").partition(".")[0] for graph in graphs for name in graph.externs}
    assert len(graphs) == 2
    assert called >= LOWERED if "operators" not in plugins.names() else not LOWERED & called, called

"""torch.compile with the plugin, and with it alone: no C++ compiler is there."""

from __future__ import annotations

import copy

import torch
from torch.utils._pytree import tree_leaves, tree_map

import litz_numpy
import litz_operators.plugin
from litz import report as reports
from litz.driver.builtin import builtin_plugins
from litz.pipeline import compile_backend
from litz_plugins.manager import make_plugins

ROUNDING = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 2e-6, torch.float64: 1e-12}
"""What one rounding may cost, relative to the largest element."""


def compiled(fn, dynamic=None):
    torch._dynamo.reset()
    plugins = make_plugins(
        builtin_plugins(), extra=[("numpy", litz_numpy), ("operators", litz_operators.plugin)], entry_points=()
    )
    options = {"debug": True, "cpp.compiler": "/no/such/compiler"}
    return torch.compile(
        fn,
        backend=lambda gm, inputs: compile_backend(gm, inputs, options=options, plugins=plugins),
        dynamic=dynamic,
    )


def double(value):
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).double()
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def check(fn, *args, dynamic=None):
    """`fn(*args)` compiled equals eager, whose own error against float64 is the measure: results, and what is written
    into the arguments. Returns the reports."""
    eager_args, litz_args, exact_args = copy.deepcopy(args), copy.deepcopy(args), tree_map(double, copy.deepcopy(args))
    eager, exact = fn(*eager_args), fn(*exact_args)
    with reports.collect() as found:
        ours = compiled(fn, dynamic)(*litz_args)
    close((ours, litz_args), (eager, eager_args), (exact, exact_args))
    assert all(str(path).endswith(".py") for report in found for path in report.kernel_paths.values())
    return list(found)


def close(ours, eager, exact):
    for got, want, judge in zip(*map(tree_leaves, (ours, eager, exact)), strict=True):
        if not isinstance(want, torch.Tensor):
            continue
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if not want.is_floating_point():
            assert torch.equal(got, want)
            continue
        got, want, judge = (tensor.detach() for tensor in (got, want, judge))
        assert torch.equal(got.isnan(), want.isnan())
        if want.numel():
            scale = judge.abs().nan_to_num(0, 0, 0).max()
            errors = [(x.double() - judge).nan_to_num(0, 0, 0).abs().max() for x in (got, want)]
            assert errors[0] <= 2 * errors[1] + scale * ROUNDING[want.dtype] + 1e-12, errors

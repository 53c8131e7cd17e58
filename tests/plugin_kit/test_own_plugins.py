"""litz's own plugins, core's and the dists', go through the conformance kit: a part of it, which takes seconds.

`check_conformance(plugin)` without limits takes minutes for core, whose ops `make conformance` runs by PyTorch's
samples.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import litz_aot.plugin
import litz_clients.plugin
import litz_collectives.plugin
import litz_contractions.plugin
import litz_cudagraphs.plugin
import litz_layout
import litz_numerics.plugin
import litz_operators.plugin
import litz_passes.plugin
import litz_tools.plugin
from litz.driver.builtin import builtin_plugins
from litz_autotune.plugin import plugin as autotune
from litz_plugins.testing import check_conformance
from litz_testing.plugin_kit.op_samples import VARIANTS

EVERY = 200
"""Of core's ops, each so manieth."""
CASES: dict[str, dict[str, Any]] = {
    "aot": {"examples": ["pointwise"], "builds": True},
    "autotune": {"options": {"max_autotune": True}, "examples": ["products"], "choices": 2},
    "clients": {"examples": ["pointwise"], "builds": True},
    "collectives": {"examples": ["pointwise"], "builds": True},
    "cudagraphs": {"options": {"cuda_graphs": True}, "examples": ["pointwise"], "builds": True},
    "layout": {"examples": ["convolution"]},
    "numerics": {"options": {"numerics.mode": "strict"}, "examples": ["pointwise"]},
    "operators": {"ops": lambda op: "pool2d" in str(op), "variants": VARIANTS[::5]},
    "passes": {"examples": ["reductions"]},
    "tools": {"examples": ["pointwise"], "builds": True},
    "contractions": {"examples": ["one row"], "choices": 2},
    "roofline": {"examples": ["attention"]},
    "core": {"examples": ["reductions"], "variants": VARIANTS[::5]},
}
TRIED = {
    "aot": {"litz_select_exporter", "litz_select_saver"},
    "autotune": {"estimates"},
    "collectives": {"estimates", "pass overlap"},
    "cudagraphs": {"litz_wrap_entry"},
    "layout": {"pass pad_contractions"},
    "numerics": {"pass round_each"},
    "passes": {"pass order_steps", "pass lay_out_temporaries", "pass sum_products"},
    "core": {"pass inline_pointwise", "pass split_reductions", "pass eliminate_dead_code"},
}
"""What must be among what was tried."""


LONG = ("operators", "aot", "layout")
"""Their dists' own tests try what the kit would; that the kit takes a dist of litz's own, the others show."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name in LONG else name for name in CASES]
)
def test_it_conforms(name: str) -> None:
    dists = {
        "aot": litz_aot.plugin,
        "autotune": autotune,
        "clients": litz_clients.plugin,
        "collectives": litz_collectives.plugin,
        "contractions": litz_contractions.plugin,
        "cudagraphs": litz_cudagraphs.plugin,
        "layout": litz_layout,
        "numerics": litz_numerics.plugin,
        "operators": litz_operators.plugin,
        "passes": litz_passes.plugin,
        "tools": litz_tools.plugin,
    }
    plugins: dict[str, Any] = {**dict(builtin_plugins()), **dists}
    count = itertools.count(1)
    how = {"builds": False, "may_be_untried": "*", "ops": lambda op: next(count) % EVERY == 0} | CASES[name]
    found = check_conformance(plugins[name], name=name, **how)
    assert found.trials and not found.problems
    assert TRIED.get(name, set()) <= found.tried, str(found)

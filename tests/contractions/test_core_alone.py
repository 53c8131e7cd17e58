"""Core without litz-contractions: the library runs every contraction, and graphs have keys of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from litz import report as reports
from litz.driver.builtin import builtin_plugins
from litz.graph_cache.fingerprints import goes_by_anything, plugin_parts
from litz.ir import Extern, Template
from litz.pipeline import compile_backend, make_compiler
from litz_plugins import Plugins, make_plugins
from support import retarget
from support.graph_cache import Runs, called_with
from support.own_plugins import CONTRACTIONS


def plugins(*, alone: bool) -> Plugins:
    """Core's plugins: alone, or with litz-contractions."""
    return make_plugins(builtin_plugins(), extra=[] if alone else [CONTRACTIONS], entry_points=())


def below(b: Any, h: Any, query: Any, key: Any) -> Any:
    return query >= key


def nearer(score: Any, b: Any, h: Any, query: Any, key: Any) -> Any:
    return score - 0.1 * (query - key)


BLOCKS = create_block_mask(below, None, None, 64, 64, device="cpu", BLOCK_SIZE=32)


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return flex_attention(q, k, v, score_mod=nearer, block_mask=BLOCKS)  # type: ignore[return-value]


def biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The bias is captured by the function of the scores, and the logsumexp is used."""
    out, sums = flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[i, j], return_lse=True)
    return out * sums[..., None].sigmoid()


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Heads that share keys, and a mask."""
    return F.scaled_dot_product_attention(q, k, v, torch.ones(64, 64).tril().bool(), enable_gqa=True)


HEADS = ((2, 2, 64, 16),) * 3
CASES: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...], bool]] = {
    "product": (lambda a, b, c: F.gelu(F.linear(a, b, c)), ((64, 32), (48, 32), (48,)), True),
    "row": (lambda a, b: F.silu(a @ b) * 2, ((1, 64), (64, 128)), True),
    "few terms": (lambda a, b: (a @ b) * 2 + 1, ((256, 3), (3, 64)), True),
    "broadcast": (lambda a, b: (a[:, :, None] * b[None]).sum(1), ((32, 16), (16, 24)), True),
    "batched": (lambda a, b, c: torch.baddbmm(c, a, b, beta=0.5).tanh(), ((4, 8, 16), (4, 16, 8), (4, 8, 8)), True),
    "convolution": (lambda a, b, c: F.conv2d(a, b, c).relu(), ((2, 3, 9, 9), (8, 3, 3, 3), (8,)), True),
    "attention": (partial(F.scaled_dot_product_attention, is_causal=True), HEADS, True),
    "written out": (lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v, HEADS, True),
    "masked": (masked, ((2, 4, 64, 16), *HEADS[1:]), True),
    "flex_attention": (attended, HEADS, False),
    "biased": (biased, (*HEADS, (64, 64)), False),
}
"""By name: a function, the sizes of its arguments, and whether it has gradients on the CPU."""


def inputs_of(sizes: tuple[tuple[int, ...], ...], train: bool) -> list[torch.Tensor]:
    return [torch.randn(size, requires_grad=train) for size in sizes]


def results(fn: Callable[..., torch.Tensor], inputs: list[torch.Tensor], train: bool) -> list[torch.Tensor]:
    result = fn(*inputs)
    return [result, *torch.autograd.grad(result.square().sum(), inputs)] if train else [result]


@pytest.mark.parametrize("name", CASES)
def test_every_contraction_has_the_right_values(name: str, tmp_path: Path) -> None:
    fn, sizes, train = CASES[name]
    torch._dynamo.reset()
    options = {"cache_dir": str(tmp_path), "cpp.qualify": False}
    backend = partial(compile_backend, options=options, plugins=plugins(alone=True))
    inputs = inputs_of(sizes, train)
    with reports.collect() as collected:
        found = results(torch.compile(fn, backend=backend), inputs, train)
    exact = results(fn, [each.detach().double().requires_grad_(train) for each in inputs], train)
    for own, eager, wanted in zip(found, results(fn, inputs, train), exact, strict=True):
        error, allowed = ((each.double() - wanted).abs().max() for each in (own, eager))
        assert error <= 4 * allowed + 1e-6 * wanted.abs().max()
    ran = [record for report in collected for record in report.contractions]
    assert all(record.implementations[0].name == record.op for record in ran)
    # A broadcast product is one of matrices where the plugin's pass finds it; torch's attention is a call as any other.
    assert bool(ran) == (name in ("product", "row", "few terms", "batched", "convolution", "written out"))
    externs = [call for report in collected for call in report.program.externs]
    calls = [call.target_name for call in externs if not isinstance(call, Template)]
    assert ("flex_attention" in calls) == (name in ("flex_attention", "biased"))


@pytest.mark.parametrize("name", ["product", "convolution", "written out", "flex_attention"])
def test_every_contraction_is_planned_for_a_gpu(name: str) -> None:
    fn, sizes, _ = CASES[name]
    torch._dynamo.reset()
    inputs = inputs_of(sizes, train=False)
    compiled: Any = lambda backend: torch.compile(fn, backend=backend, dynamic=False)(*inputs)
    compiler = make_compiler(plugins=plugins(alone=True))
    records: list[Any] = []
    schedules = retarget.cuda_schedules(compiled, compiler, contractions=records)
    steps = [step for schedule in schedules for step in schedule.steps]
    if name == "flex_attention":
        assert not records and [step.target_name for step in steps if isinstance(step, Extern)][-1] == name
        return
    assert records and all(record.implementations[0].name == record.op for record in records)
    assert {record.subject for record in records} <= {step.name for step in steps}


def test_core_alone_has_keys_of_its_own(tmp_path: Path) -> None:
    """What one made is found by the next of its kind, and not by the other kind."""
    x, w = torch.randn(4, 64), torch.randn(64, 32)
    said = []
    for alone in (False, False, True, True, False):
        runs = Runs(tmp_path, plugins(alone=alone))
        runs.run(called_with(x, w), lambda x, w: torch.relu(x @ w))
        said += runs.said
    assert said == ["miss", "hit", "miss", "hit", "hit"]


def test_a_plugin_that_is_left_out_counts_as_one_that_is_not_installed() -> None:
    blocked = make_compiler(None, {"disable_plugins": ["contractions"]})
    without, with_it = (list(plugin_parts(each)) for each in (blocked, make_compiler()))
    names = {part.name for part in with_it}
    assert not goes_by_anything(make_compiler())  # else nothing is found before dynamo has traced
    assert "plugin contractions" in names and {part.name for part in without} == names - {"plugin contractions"}

"""Settings of kernels measured on a GPU that is there: right, never slower, found again, and a bad tile found out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from litz import report as reports
from support.compare import NO_GPU, ROUNDING, close

pytest.importorskip("litz_autotune")
pytestmark = [pytest.mark.gpu, NO_GPU]

from litz.targets.triton import finish  # noqa: E402
from litz.tiles.shape import Tiling  # noqa: E402
from litz_autotune.kernels import ATTACHMENT  # noqa: E402
from litz_autotune.measurement import summarize  # noqa: E402
from litz_autotune.plugin import plugin  # noqa: E402
from litz_autotune.timing import CudaTimer  # noqa: E402

F = torch.nn.functional
FUNCTIONS: dict[str, tuple[Callable[..., torch.Tensor], tuple[int, int]]] = {
    "gelu": (lambda x: F.gelu(x) * 2, (4096, 2048)),
    "turned": (lambda x: x.t() + 1, (2048, 4096)),
    "softmax": (lambda x: torch.softmax(x, -1), (8192, 1000)),
    "rows": (lambda x: F.layer_norm(x, x.shape[1:]), (4096, 4096)),
    "unaligned rows": (lambda x: torch.softmax(x, -1), (2048, 5003)),
    "columns": (lambda x: x.float().sum(0).to(x.dtype), (8192, 1024)),
    "all": (lambda x: x.float().square().mean().to(x.dtype), (4096, 1024)),
}


def make(size: tuple[int, int], dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator("cuda").manual_seed(1), device="cuda").to(dtype)


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def compiled(fn: Callable[..., Any], folder: Path, **options: Any) -> Callable[..., Any]:
    given = {"cache_dir": str(folder), "graph_cache": False, "max_autotune_pointwise": True, **options}
    return torch.compile(fn, backend="litz", options=given, dynamic=False)


def medians(x: torch.Tensor, **calls: Callable[..., Any]) -> dict[str, float]:
    for call in calls.values():
        call(x)
    functions = {name: partial(call, x) for name, call in calls.items()}
    times = CudaTimer().time(functions, x.device, 0.5)
    return {name: summarize(samples).us for name, samples in times.items()}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_tuned_kernel_is_right_and_no_slower(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    fn, size = FUNCTIONS[name]
    x = make(size, dtype)
    before = plugin.counters.kernels
    with reports.collect() as collected:
        tuned = compiled(fn, tmp_path)
        actual = tuned(x)
    close(actual, fn(x), fn(x.double()), rounding=2 * ROUNDING[dtype])
    assert plugin.counters.kernels > before
    assert collected[0].attachments[ATTACHMENT]
    untuned = compiled(fn, tmp_path, max_autotune_pointwise=False)
    us = medians(x, untuned=untuned, tuned=tuned)
    assert us["tuned"] <= 1.03 * us["untuned"] + 0.5, f"{us}\n{collected[0].attachments[ATTACHMENT]}"


def test_what_was_measured_is_found_again(tmp_path: Path) -> None:
    fn, size = FUNCTIONS["softmax"]
    x = make(size)
    with reports.collect() as first:
        compiled(fn, tmp_path)(x)
    before = vars(plugin.counters).copy()
    torch._dynamo.reset()
    with reports.collect() as again:
        compiled(fn, tmp_path)(x)
    after = vars(plugin.counters)
    assert after["kernels"] == before["kernels"] and after["races"] == before["races"]
    assert after["local_hits"] > before["local_hits"]
    assert first[0].kernel_sources == again[0].kernel_sources


@pytest.mark.parametrize("in_subprocess", [True, False])
def test_no_memory_and_no_random_number_of_the_users_is_touched(in_subprocess: bool, tmp_path: Path) -> None:
    fn, size = FUNCTIONS["gelu"]
    x = make(size)
    kept, state = x.clone(), torch.cuda.get_rng_state()
    compiled(fn, tmp_path, **{"autotune.in_subprocess": in_subprocess})(x)
    assert torch.equal(x, kept) and torch.equal(torch.cuda.get_rng_state(), state)


def test_a_bad_tile_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One element a thread, in programs of one warp: the search climbs out of it, in this process, where it is bad."""
    choose = finish.choose_tiling

    def bad(*given: Any) -> Tiling:
        tiling = choose(*given)
        (axis,) = tiling.axes
        return replace(tiling, axes=(replace(axis, block=32),), num_warps=1, whole=False)

    monkeypatch.setattr(finish, "choose_tiling", bad)
    x = make((8192, 4096))
    fn = FUNCTIONS["gelu"][0]
    untuned = compiled(fn, tmp_path, max_autotune_pointwise=False)
    untuned(x)
    with reports.collect() as collected:
        options = {"autotune.in_subprocess": False, "autotune.search": "exhaustive"}
        tuned = compiled(fn, tmp_path, **options)
        close(tuned(x), fn(x), fn(x.double()), rounding=2 * ROUNDING[x.dtype])
    us = medians(x, untuned=untuned, tuned=tuned)
    assert us["tuned"] < us["untuned"] / 1.5, f"{us}\n{collected[0].attachments[ATTACHMENT]}"


def test_training(tmp_path: Path) -> None:
    """Forward and backward: each kernel of both alone, those that reduce in pieces among them."""
    x, w, b = make((4096, 768)), make((1, 768))[0], make((1, 768), torch.bfloat16)[0]

    def step(fn: Callable[..., Any], *args: torch.Tensor) -> list[torch.Tensor]:
        leaves = [arg.detach().requires_grad_() for arg in args]
        fn(*leaves).square().sum().backward()
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.layer_norm(x, (768,), w, b))

    before = plugin.counters.kernels
    found = step(compiled(fn, tmp_path), x, w, b)
    assert plugin.counters.kernels >= before + 2
    for own, eager, exact in zip(found, step(fn, x, w, b), step(fn, *(t.double() for t in (x, w, b))), strict=True):
        close(own, eager, exact, rounding=4 * ROUNDING[torch.bfloat16])

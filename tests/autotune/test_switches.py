"""The options that say what is tuned, and how much may become one kernel with a contraction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from litz.schedule import Schedule
from litz_autotune.precompile import precompile
from litz_plugins import KernelSource
from support import rivals
from support.fake_gpu import FakeGpu
from support.fake_timer import FakeTimer
from support.redis_server import redis_server
from support.tuned import Tuned

A, B = torch.randn(32, 48), torch.randn(48, 16)
TIMES = FakeTimer((("library", 100.0), ("good", 50.0)))
ONLY_LOOK = {"max_autotune": False, "autotune.search_cache": True}


def triton_wins(name: str) -> float:
    return 50.0 if name.startswith("triton") else 100.0


def looked_up(folder: Path, **options: Any) -> Tuned:
    """`A @ B` compiled with `autotune.search_cache` alone; it has measured nothing, whatever it found."""
    compile_ = Tuned(folder, TIMES, rivals.good, **{**ONLY_LOOK, **options})
    torch.testing.assert_close(compile_(torch.mm, A, B), A @ B)
    counters = compile_.autotune.counters
    assert (counters.tuned, counters.precompiled, counters.races) == (0, 0, 0)
    return compile_


def test_search_cache_measures_nothing_and_takes_what_was_measured(tmp_path: Path) -> None:
    compile_ = looked_up(tmp_path)
    assert compile_.chosen == ["aten.mm.default"] and "not measured before" in compile_.reasons[0]
    Tuned(tmp_path, TIMES, rivals.good)(torch.mm, A, B)
    compile_ = looked_up(tmp_path)
    assert compile_.chosen == ["good"] and compile_.autotune.counters.local_hits == 1
    assert looked_up(tmp_path, **{"autotune.local_cache": False}).chosen == ["aten.mm.default"]
    compile_ = Tuned(tmp_path, TIMES, rivals.good, max_autotune=False)
    compile_(torch.mm, A, B)
    assert compile_.chosen == [], "without it what was measured does not count"


def test_search_cache_asks_the_remote_cache_too(tmp_path: Path) -> None:
    with redis_server(tmp_path) as url:
        options = {"autotune.local_cache": False, "autotune.remote_cache": url}
        assert looked_up(tmp_path / "first", **options).chosen == ["aten.mm.default"]
        Tuned(tmp_path / "second", TIMES, rivals.good, **options)(torch.mm, A, B)
        compile_ = looked_up(tmp_path / "third", **options)
        assert compile_.chosen == ["good"] and compile_.autotune.counters.remote_hits == 1


def test_search_cache_beside_tuning_changes_nothing(tmp_path: Path) -> None:
    compile_ = Tuned(tmp_path, TIMES, rivals.good, **{"autotune.search_cache": True})
    compile_(torch.mm, A, B)
    assert compile_.chosen == ["good"] and compile_.autotune.counters.tuned == 1


def test_under_deterministic_algorithms_no_measurement_counts(tmp_path: Path) -> None:
    Tuned(tmp_path, TIMES, rivals.good)(torch.mm, A, B)
    torch.set_deterministic_debug_mode("error")
    try:
        for options in ({}, ONLY_LOOK):
            compile_ = Tuned(tmp_path, TIMES, rivals.good, **options)
            torch.testing.assert_close(compile_(torch.mm, A, B), A @ B)
            assert compile_.chosen == [] and compile_.autotune.counters.tuned == 0
    finally:
        torch.set_deterministic_debug_mode("default")


def test_without_the_library_something_must_have_been_measured(tmp_path: Path) -> None:
    compiled = FakeGpu(tmp_path, triton_wins, **ONLY_LOOK, **{"autotune.backends": ("triton",)}).compile(torch.mm)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"(?s)NoValidChoicesError.*not measured before"):
        compiled(A, B)


@pytest.mark.parametrize(("options", "expected"), [({"max_autotune_gemm": True}, [True, False]), ({}, [False, False])])
def test_max_autotune_gemm_tunes_products_and_no_convolutions(
    tmp_path: Path, options: dict[str, Any], expected: list[bool]
) -> None:
    gpu = FakeGpu(tmp_path, triton_wins, **{"max_autotune": False, **options})
    image, weight = torch.randn(2, 16, 8, 8), torch.randn(16, 16, 3, 3)
    schedule = gpu.schedule(lambda a, b, x, w: (a @ b, torch.conv2d(x, w)), A, B, image, weight)
    raced = [name for names in gpu.runner.raced for name in names if name.startswith("triton")]
    kinds = ("mm", "convolution")
    assert [any(name.split()[1] == kind for name in raced) for kind in kinds] == expected
    kept = {getattr(step, "kind", "") for step in schedule.externs}
    assert [kind not in kept for kind in kinds] == expected


def three_users(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = a @ b
    return x.relu(), x.sin(), x.cos()


def sum_of_products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b + (a + 1) @ b


def softmax(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a @ b).softmax(-1)


def converted(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.mm(a, b.half().float())


def most_with_a_product(schedule: Schedule) -> int:
    """Nodes of the graph that a step which multiplies does, at most."""
    return max(len(step.origins) for step in schedule.steps if {"mm", "mm_1"} & set(step.origins))


@pytest.mark.each_value
@pytest.mark.parametrize("fn", [three_users, sum_of_products, softmax, converted])
@pytest.mark.parametrize("options", [{"autotune.fusion": False}, {"fusion": False}, {"max_fusion_size": 1}])
def test_a_product_stands_alone_on_request(tmp_path: Path, fn: Callable[..., Any], options: dict[str, Any]) -> None:
    gpu = FakeGpu(tmp_path, triton_wins, **options)
    assert most_with_a_product(gpu.schedule(fn, A, B)) == 1
    assert not any(" with " in name for names in gpu.runner.raced for name in names)


def test_a_product_takes_as_many_users_as_max_fusion_size_leaves(tmp_path: Path) -> None:
    sizes = [
        most_with_a_product(FakeGpu(tmp_path, triton_wins, max_fusion_size=most).schedule(three_users, A, B))
        for most in (None, 3, 2)
    ]
    assert sizes == [4, 3, 2]


def test_a_plugins_own_kernel_is_within_max_fusion_size(tmp_path: Path) -> None:
    """cublasLt's relu is an operation more, whoever offers it."""

    def fn(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.addmm(c, a, b).relu()

    def offered(**options: Any) -> bool:
        gpu = FakeGpu(tmp_path, triton_wins, **options)
        gpu.schedule(fn, torch.randn(16), A, B)
        return any("cublaslt" in name for names in gpu.runner.raced for name in names)

    assert offered() and not offered(max_fusion_size=1)


def test_as_many_threads_compile_as_the_option_says() -> None:
    """All of them wait for one another, so that fewer would not come through."""
    together = threading.Barrier(20)
    sources = {str(n): [KernelSource(str(n), "triton", f"text {n}", "f")] for n in range(20)}
    found = precompile(sources, lambda source: together.wait(30), threads=20)
    assert set(found.values()) == {""}

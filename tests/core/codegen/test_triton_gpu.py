"""Generated Triton kernels on a real device against the IR interpreter; what a launch costs the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from litz.runtime.cache import Cache
from litz.runtime.triton_build import load
from litz_plugins import CodegenContext, DeviceInfo
from support.triton_cases import CASES, Case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


TOO_LARGE = {"wide-offsets"}


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(Path(tmp_path_factory.mktemp("cache")))


def _prepare(case: Case, cache: Cache) -> tuple[dict[str, torch.Tensor], Callable[[], None]]:
    context = CodegenContext(None, DeviceInfo("cuda", 0), case.program, cache)  # type: ignore[arg-type]
    launch = load(case.source, context)
    memory = case.tensors("cuda")
    tensors, sizes = case.arguments(memory)
    arguments = [*(tensor.data_ptr() for tensor in tensors), *sizes]
    return memory, lambda tensors=tensors: launch(*arguments)  # type: ignore[misc]  # counters stay alive, too


@pytest.mark.parametrize("name", [name for name in CASES if name not in TOO_LARGE])
def test_gives_what_the_ir_means(name: str, cache: Cache) -> None:
    case = CASES[name]()
    memory, launch = _prepare(case, cache)
    launch()
    torch.cuda.synchronize()
    case.check(memory)


def test_a_launch_costs_microseconds(cache: Cache) -> None:
    _, launch = _prepare(CASES["bias"](), cache)
    launch()
    torch.cuda.synchronize()
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(100):
            launch()
        best = min(best, (time.perf_counter() - start) / 100)
        torch.cuda.synchronize()
    assert best < 10e-6, f"{best * 1e6:.1f} us"


def test_launches_go_to_the_current_stream(cache: Cache) -> None:
    case = CASES["bias"]()
    memory, launch = _prepare(case, cache)
    launch()
    torch.cuda.synchronize()
    memory["o"].zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    assert not memory["o"].any()
    graph.replay()
    torch.cuda.synchronize()
    case.check(memory)


def test_a_thread_without_a_context_can_launch(cache: Cache) -> None:
    import threading

    case = CASES["bias"]()
    memory, launch = _prepare(case, cache)
    problems: list[BaseException] = []

    def run() -> None:
        try:
            launch()
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert not problems
    case.check(memory)

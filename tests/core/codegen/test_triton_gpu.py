"""Generated Triton kernels on a real device against the IR interpreter; what a launch costs the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from litz import report as reports
from litz.cache.disk import Cache
from litz.target import target_of
from litz.targets.triton import native_launch
from litz.targets.triton.build import load
from litz_plugins import CodegenContext
from support.joined_cases import JOINED
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
    context = CodegenContext(None, target_of("cuda:0"), case.program, cache)  # type: ignore[arg-type]
    launch = load(case.source, context)
    memory = case.tensors("cuda")
    tensors, sizes = case.arguments(memory)
    arguments = [*(tensor.data_ptr() for tensor in tensors), *sizes]
    return memory, lambda: launch(*arguments)


@pytest.mark.parametrize("name", [name for name in CASES if name not in TOO_LARGE])
def test_gives_what_the_ir_means(name: str, cache: Cache) -> None:
    case = CASES[name]()
    memory, launch = _prepare(case, cache)
    launch()
    torch.cuda.synchronize()
    case.check(memory)


@pytest.mark.parametrize("name", JOINED)
def test_several_in_one_launch_give_what_each_gives_alone(name: str, cache: Cache) -> None:
    joined, program = JOINED[name], CASES[JOINED[name].names[0]]().program
    context = CodegenContext(None, target_of("cuda:0"), program, cache)  # type: ignore[arg-type]
    memories = joined.memories("cuda")
    load(joined.source, context)(*(tensor.data_ptr() for tensor in joined.arguments(memories)))
    torch.cuda.synchronize()
    joined.compare(memories)


@pytest.fixture(params=["native", "ctypes"])
def launcher(request: pytest.FixtureRequest, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> str:
    """What launches the test's kernels."""
    name: str = request.param
    _use(name, cache, monkeypatch)
    return name


def _use(name: str, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    path = native_launch.find(None, cache) if name == "native" else None
    if path is None and name == "native":
        pytest.skip("needs a C++ compiler and Python's headers")
    module = None if path is None else native_launch.load_library(path)
    assert (module is None) == (name == "ctypes")
    monkeypatch.setattr(native_launch, "load", lambda compiler, cache: module)


def test_the_extension_launches_faster_than_ctypes(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    best = {"native": float("inf"), "ctypes": float("inf")}
    launches = {}
    for name in best:
        _use(name, cache, monkeypatch)
        launches[name] = _prepare(CASES["bias"](), cache)[1]
    for _ in range(20):
        for name, launch in launches.items():
            launch()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(100):
                launch()
            best[name] = min(best[name], (time.perf_counter() - start) / 100)
    print(", ".join(f"{name} {seconds * 1e6:.2f} us" for name, seconds in best.items()))
    assert best["native"] < best["ctypes"], best


def test_launches_go_to_the_current_stream(launcher: str, cache: Cache) -> None:
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


def test_a_thread_without_a_context_can_launch(launcher: str, cache: Cache) -> None:
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


@pytest.mark.parametrize("channels", [24, 64, 512])
def test_programs_that_combine_see_what_all_others_stored(channels: int) -> None:
    """A race would show as one result of many that is different: statistics of a batch norm, again and again."""
    norms = torch.nn.Sequential(*(torch.nn.BatchNorm2d(channels) for _ in range(4))).cuda()
    x = torch.randn(16, channels, 28, 28, device="cuda").contiguous(memory_format=torch.channels_last)
    with reports.collect() as collected:
        compiled = torch.compile(norms, backend="litz")

        def run() -> tuple[torch.Tensor, torch.Tensor]:
            given = x.clone().requires_grad_()
            out = compiled(given)
            (gradient,) = torch.autograd.grad(out.square().sum(), given)
            return out.detach(), gradient

        first = run()
    assert any("atomic_add(counters" in text for report in collected for text in report.kernel_sources.values())
    for _ in range(300):
        for mine, expected in zip(run(), first, strict=True):
            assert torch.equal(mine, expected)
    wanted = norms(x)
    torch.testing.assert_close(first[0], wanted, rtol=1e-4, atol=1e-4)

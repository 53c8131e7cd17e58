"""What the tests of the seed document test_max_autotune leave out, for litz-autotune: keys, caches that are off,
options alone, a real server. They run as those of test_max_autotune do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from litz.pipeline import schedule_only
from litz_autotune import measuring
from litz_plugins import KernelSource
from support import rivals
from support.fake_gpu import FakeGpu
from support.fake_timer import FakeTimer
from support.redis_server import redis_server
from support.seed_autotune import (
    BACKEND,
    DEVICE,
    HAS_GPU,
    Compiled,
    calls,
    check,
    high_precision,
    randn,
    sin_mm,
    triton_wins,
)
from support.tuned import Tuned

pytestmark = [pytest.mark.gpu] if HAS_GPU else []


@pytest.fixture
def tune(tmp_path: Path) -> Callable[..., Compiled]:
    return lambda fn, dynamic=None, fullgraph=False, **options: Compiled(tmp_path, fn, dynamic, fullgraph, options)


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    with high_precision():
        yield


def test_max_autotune_remote_caching_over_redis(tmp_path: Path) -> None:
    """The same against a real server, tuning on the CPU."""
    args = torch.randn(100, 10), torch.randn(10, 100)
    hits = puts = 0
    with redis_server(tmp_path) as url:
        for attempt in range(4):
            timer = FakeTimer((("library", 100.0), ("good", 50.0)))
            options = {"autotune.local_cache": False, "autotune.remote_cache": url}
            compiled = Tuned(tmp_path / str(attempt), timer, rivals.good, **options)
            torch.testing.assert_close(compiled(sin_mm, *args), sin_mm(*args))
            hits += compiled.autotune.counters.remote_hits
            puts += compiled.autotune.counters.remote_puts
    assert (hits, puts) == (3, 1)


def test_keys(tune: Callable[..., Compiled]) -> None:
    """What was measured is found for the same problem, and for no other: neither for other strides, nor for other
    candidates."""
    rows, inner, columns = (512, 256, 512) if HAS_GPU else (64, 48, 32)  # on a GPU enough for more than 12 tiles
    a, b = randn(rows, inner), randn(inner, columns)

    def measured(left: torch.Tensor, **options: Any) -> int:
        compiled = tune(torch.mm, False, **{"autotune.kernels": False, **options})
        check(compiled, torch.mm, left, b)
        assert (compiled.counted("races") > 0) == bool(compiled.counted("tuned"))
        return compiled.counted("tuned")

    assert measured(a) == 1
    assert measured(a) == 0, "the same again"
    turned = a.t().contiguous().t()
    assert turned.stride() == (1, rows) and measured(turned) == 1, "other strides"
    assert measured(a[:, :1].expand(rows, inner)) == 1, "a stride of 0"
    assert measured(turned) == 0
    more = {"autotune.search": "exhaustive"}
    assert measured(a, **more) == 1, "more candidates"
    assert measured(a, **more) == 0
    assert measured(a) == 0, "what was measured first is still there"


def test_local_cache_off(tune: Callable[..., Compiled], tmp_path: Path) -> None:
    a, b = randn(64, 48), randn(48, 32)
    for _ in range(2):
        compiled = tune(torch.mm, False, **{"autotune.local_cache": False})
        check(compiled, torch.mm, a, b)
        assert compiled.counted("tuned") == 1 and compiled.counted("local_puts") == 0
    assert not list(tmp_path.glob("autotune*"))


def test_max_autotune_gemm_alone(tune: Callable[..., Compiled]) -> None:
    """A product is tuned; a convolution and a pointwise kernel are not."""

    def fn(a: torch.Tensor, b: torch.Tensor, image: torch.Tensor, weight: torch.Tensor) -> Any:
        return a @ b, torch.conv2d(image, weight), image.sin()

    args = randn(64, 48), randn(48, 32), randn(2, 16, 8, 8), randn(16, 16, 3, 3)
    options = {"max_autotune": False, "max_autotune_gemm": True, "autotune.kernels": True}
    compiled = tune(fn, False, **options)
    torch.testing.assert_close(compiled(*args), fn(*args), atol=1e-2, rtol=1e-2)
    assert (compiled.counted("tuned"), compiled.counted("kernels")) == (1, 0)


@pytest.mark.skipif(HAS_GPU, reason="the real one runs where there are two GPUs")
def test_autotune_device_guard_without_a_gpu(tmp_path: Path) -> None:
    """Fake tensors on a second device: what is raced is there, and the code makes that device the current one."""
    gpu = FakeGpu(tmp_path, triton_wins)
    with torch._subclasses.FakeTensorMode():
        x, y = (torch.empty(1024, 1024, device="cuda:1") for _ in range(2))
    options = {"max_autotune": True, "cache_dir": tmp_path, "autotune.search": "fast"}
    torch._dynamo.reset()
    (schedule,) = schedule_only(torch.mm, (x, y), options, gpu.plugins)
    assert {str(buffer.device) for buffer in schedule.program.buffers.values()} == {"cuda:1"}
    assert gpu.runner.raced and str(gpu.runner.racing._device()) == "cuda:1"
    text = gpu.wrapper(schedule)
    assert "with torch.cuda.device(1):" in text and "cuda:0" not in text


def test_no_valid_choices_of_the_seeds_type(tune: Callable[..., Compiled], monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed's own case: float32, 2 x 2, Triton alone. litz's templates do it; where none of them compiles, that
    is the error, with the reason of each."""
    a, b = (torch.ones(2, 2, device=DEVICE) for _ in range(2))
    compiled = tune(lambda a, b: a.matmul(b), **{"autotune.backends": (BACKEND,)})
    torch.testing.assert_close(compiled(a, b), a @ b)
    assert "KernelCall" in compiled.steps[0] if compiled.fake else "mm" not in calls(compiled.code)

    def build(source: KernelSource) -> None:
        raise RuntimeError("no room for 2 x 2")

    monkeypatch.setattr(measuring, "triton_build", lambda *_: build)
    options = {"autotune.backends": (BACKEND,), "autotune.local_cache": False}
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as context:
        tune(lambda a, b: a.matmul(b), **options)(a, b)
    assert "NoValidChoicesError" in str(context.value)
    assert "no room for 2 x 2" in str(context.value), "with the reason"

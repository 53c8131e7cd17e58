"""The tests of the seed document test_max_autotune, by their names, for litz-autotune.

On a machine with a GPU they compile, tune and run on it. Elsewhere the graph is made out to be a GPU's: its candidates
are really compiled, for sm_90; the times are made up so that Triton's kernels win wherever they are offered; and the
schedule that results is run on the CPU by the IR's interpreter, so that what a kernel replaces is checked too. (The
kernels' own numbers are checked in tests/autotune, in Triton's interpreter.)
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import litz
from litz import report as reports
from litz.ir import Program
from litz.options import make_options
from litz_autotune.plugin import plugin as installed
from litz_autotune.pool import Failure, WorkerPool
from litz_autotune.precompile import precompile
from litz_autotune.race import Entrant, Race
from litz_autotune.subprogram import cut, on_device
from litz_autotune.timing import FakeTimer, timer_for
from litz_plugins import KernelSource
from support import rivals
from support.fake_gpu import FakeGpu
from support.gemm_cases import CASES
from support.redis_server import redis_server
from support.tuned import Tuned

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device (its operands take gigabytes)")
pytestmark = [gpu] if HAS_GPU else []
DYNAMIC = pytest.mark.parametrize("dynamic", (False, True))
BACKEND = "triton"


def triton_wins(name: str) -> float:
    return 50.0 if name.startswith("triton") else 100.0


class Compiled:
    """A function tuned for the GPU, the real one or the one that is made out to be there."""

    def __init__(self, folder: Path, fn: Callable[..., Any], dynamic: bool | None, options: dict[str, Any]) -> None:
        torch._dynamo.reset()
        self.fake = None if HAS_GPU else FakeGpu(folder, triton_wins, **options)
        if self.fake is not None:
            self.fn = self.fake.compile(fn, dynamic)
            self.autotune = self.fake.autotune
        else:
            given = {"max_autotune": True, "cache_dir": folder, **options}
            self.fn = torch.compile(fn, backend="litz", dynamic=dynamic, options=given)
            self.autotune = installed
        self.before = vars(self.autotune.counters).copy()
        self.steps: list[str] = []

    def __call__(self, *args: Any) -> Any:
        with reports.collect() as collected:
            result = self.fn(*args)
        if self.fake is not None:
            self.steps = self.fake.steps
        else:
            self.steps += [f"{step.kind} {step.what}" for report in collected for step in report.steps]
        return result

    def counted(self, name: str) -> int:
        """By how much a counter has grown."""
        return int(getattr(self.autotune.counters, name)) - int(self.before[name])


@pytest.fixture
def tune(tmp_path: Path) -> Callable[..., Compiled]:
    return lambda fn, dynamic=None, **options: Compiled(tmp_path, fn, dynamic, options)


def randn(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*size, device=DEVICE).to(dtype)


def check(compiled: Compiled, fn: Callable[..., Any], *args: torch.Tensor, atol: float = 1e-2) -> None:
    torch.testing.assert_close(compiled(*args), fn(*args), atol=atol, rtol=1e-2)


def mm_plus_mm(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    return a @ b + c @ d


def sin_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.sin(a) @ b


def chain_inputs() -> list[torch.Tensor]:
    """Small enough that no product of `chain` leaves float16's range."""
    return [torch.rand(256, 256, device=DEVICE) / 16 for _ in range(3)]


def chain(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    a = (a @ b) @ c
    a, b, c = (t.to(torch.float16) for t in [a, b, c])
    return (a @ b) @ c


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool()
    yield pool
    pool.close()


class TestMaxAutotune:
    def _program(self) -> Program:
        """mm + mm on small matrices, as it is captured."""
        before, _ = CASES["mm-mm"].programs()
        return on_device(cut(before, before.operations, before.operations[-1].writes), torch.device(DEVICE))

    def _race(self, program: Program, folder: Path) -> Race:
        timer, options = timer_for(torch.device(DEVICE)), make_options(None, {"cache_dir": folder})
        return Race("mm + mm", (Entrant("library", program),), program, timer, options, str(folder))

    def test_benchmark_choice_in_subproc(self, pool: WorkerPool, tmp_path: Path) -> None:
        (result,) = pool.run([self._race(self._program(), tmp_path)])
        assert result[0].valid and result[0].us > 0

    def test_benchmark_choice_fail_in_subproc(self, pool: WorkerPool, tmp_path: Path) -> None:
        program = self._program()
        first, *rest = program.operations
        broken = replace(program, operations=(replace(first, target=rivals.raises), *rest))
        race = replace(self._race(program, tmp_path), entrants=(Entrant("broken", broken),))
        (result,) = pool.run([race])
        assert result[0].us == inf and "always raises" in result[0].reason

    @pytest.mark.parametrize("autotune_in_subproc", (True, False))
    @pytest.mark.parametrize("autotune_multi_device", (True, False))
    def test_max_autotune_mm_plus_mm(
        self, tune: Callable[..., Compiled], autotune_in_subproc: bool, autotune_multi_device: bool
    ) -> None:
        m, n, k = (2048, 1536, 64) if HAS_GPU else (128, 96, 64)
        options = {"autotune.in_subprocess": autotune_in_subproc, "autotune.multi_device": autotune_multi_device}
        compiled = tune(mm_plus_mm, **options)
        check(compiled, mm_plus_mm, randn(m, k), randn(k, n), randn(m, k), randn(k, n))
        if not HAS_GPU:
            assert len(compiled.steps) == 1 and compiled.steps[0].startswith(
                "KernelCall aten.mm.default + aten.mm.default"
            )

    @DYNAMIC
    def test_max_autotune_mm_plus_mm_zero_size_input(self, tune: Callable[..., Compiled], dynamic: bool) -> None:
        m, n, k = 0, 1536, 64
        check(tune(mm_plus_mm, dynamic), mm_plus_mm, randn(m, k), randn(k, n), randn(m, k), randn(k, n))

    @DYNAMIC
    def test_max_autotune_regular_mm(self, tune: Callable[..., Compiled], dynamic: bool) -> None:
        compiled = tune(sin_mm, dynamic)
        check(compiled, sin_mm, randn(100, 10), randn(10, 100))
        assert compiled.counted("tuned") == 1

    @DYNAMIC
    def test_max_autotune_regular_mm_zero_size_input(self, tune: Callable[..., Compiled], dynamic: bool) -> None:
        check(tune(sin_mm, dynamic), sin_mm, randn(0, 10), randn(10, 100))

    @DYNAMIC
    def test_max_autotune_remote_caching(self, tmp_path: Path, dynamic: bool) -> None:
        """Against a real server, tuning on the CPU. A function without a contraction has nothing to share: litz's
        pointwise kernels are not measured, so that there are no lookups where the seed counts three."""

        def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

        cases = [
            (sin_mm, (torch.randn(100, 10), torch.randn(10, 100)), (3, 1)),
            (add, (torch.ones(9), torch.ones(9)), (0, 0)),
        ]
        with redis_server(tmp_path) as url:
            for number, (fn, args, expected) in enumerate(cases):
                hits = puts = 0
                for attempt in range(4):
                    folder = tmp_path / f"{number}-{attempt}"
                    timer = FakeTimer((("library", 100.0), ("good", 50.0)))
                    options = {"autotune.local_cache": False, "autotune.remote_cache": url}
                    compiled = Tuned(folder, timer, rivals.good, **options)
                    torch.testing.assert_close(compiled(fn, *args, dynamic=dynamic), fn(*args))
                    hits += compiled.autotune.counters.remote_hits
                    puts += compiled.autotune.counters.remote_puts
                assert (hits, puts) == expected

    def test_precompilation_threads(self) -> None:
        threads: dict[str, int] = {}

        def build(source: KernelSource) -> None:
            threads[source.name] = threading.get_ident()

        names = [f"choice{n}" for n in range(10)]
        sources = {name: [KernelSource(name, "triton", f"text of {name}", "f")] for name in names}
        assert precompile(sources, build, threads=len(names)) == dict.fromkeys(names, "")
        assert set(threads) == set(names), "every choice is precompiled"
        assert threading.get_ident() not in threads.values(), "and none on the main thread"

    def test_max_autotune_addmm(self, tune: Callable[..., Compiled]) -> None:
        check(tune(torch.addmm), torch.addmm, randn(100), randn(100, 10), randn(10, 100))

    @DYNAMIC
    def test_max_autotune_addmm_zero_size_input(self, tune: Callable[..., Compiled], dynamic: bool) -> None:
        check(tune(torch.addmm, dynamic), torch.addmm, randn(100), randn(0, 10), randn(10, 100))

    def test_autotune_conv1x1(self, tune: Callable[..., Compiled]) -> None:
        conv1x1 = torch.nn.Conv2d(3, 16, kernel_size=1).to(memory_format=torch.channels_last).to(DEVICE)
        x = torch.randn(4, 3, 32, 32).contiguous(memory_format=torch.channels_last).to(DEVICE)
        compiled = tune(lambda mod, x: mod(x), **{"autotune.backends": (BACKEND,)})
        with torch.no_grad():
            out = compiled(conv1x1, x)
            torch.testing.assert_close(out, conv1x1(x), atol=1e-2, rtol=0)
        assert compiled.steps and not any(
            step.startswith(("Template", "Extern", "template", "extern")) for step in compiled.steps
        )

    def test_filled_cache_precompile(self, tune: Callable[..., Compiled]) -> None:
        inputs = chain_inputs()
        torch.testing.assert_close(tune(chain)(*inputs), chain(*inputs), atol=1e-2, rtol=1e-2)
        again = tune(chain)
        torch.testing.assert_close(again(*inputs), chain(*inputs), atol=1e-2, rtol=1e-2)
        assert again.counted("precompiled") == 0 and again.counted("races") == 0
        assert again.counted("local_hits") > 0

    def test_search_autotune_cache(self, tune: Callable[..., Compiled]) -> None:
        """Without max-autotune nothing is precompiled."""
        inputs = chain_inputs()
        compiled = tune(chain, max_autotune=False)
        torch.testing.assert_close(compiled(*inputs), chain(*inputs), atol=1e-2, rtol=1e-2)
        assert compiled.counted("precompiled") == 0

    def test_jit_fusion_matches_aot_fusion(self, tune: Callable[..., Compiled], tmp_path: Path) -> None:
        """The graph that torch.export makes ahead of time is fused as the one that dynamo makes just in time; and
        `litz.aot_compile` makes a package of it that runs."""

        def fn(x: torch.Tensor, number: torch.Tensor) -> Any:
            return x + x, number.item(), x * x, x @ x, x**2

        class Module(torch.nn.Module):
            def forward(self, x: torch.Tensor, number: torch.Tensor) -> Any:
                return fn(x, number)

        inputs = (torch.rand(256, 256, device=DEVICE), torch.tensor(3, device=DEVICE))
        with torch._dynamo.config.patch(capture_scalar_outputs=True):
            just_in_time = tune(fn)
            torch.testing.assert_close(just_in_time(*inputs), fn(*inputs))
            exported = torch.export.export(Module(), inputs).module()
            ahead_of_time = tune(lambda x, number: exported(x, number))
            torch.testing.assert_close(ahead_of_time(*inputs), fn(*inputs))
        assert sorted(just_in_time.steps) == sorted(ahead_of_time.steps)
        options = {"max_autotune": True, "cache_dir": tmp_path / "cache"}
        with reports.collect() as collected:
            folder = litz.aot_compile(Module(), inputs, tmp_path / "package", options=options)
        torch.testing.assert_close(litz.aot_load(folder)(*inputs), fn(*inputs))
        if HAS_GPU:
            steps = [f"{step.kind} {step.what}" for report in collected for step in report.steps]
            assert sorted(steps) == sorted(just_in_time.steps)

    def test_precompilations(self, tune: Callable[..., Compiled]) -> None:
        """One for each problem: the product in float32, the one whose result is converted, and the one in float16.
        (The seed counts two: it tunes products without their users.)"""
        inputs = chain_inputs()
        compiled = tune(chain, **{"autotune.local_cache": False})
        torch.testing.assert_close(compiled(*inputs), chain(*inputs), atol=1e-2, rtol=1e-2)
        assert compiled.counted("precompiled") == 3

    def test_cat_addmm(self, tune: Callable[..., Compiled]) -> None:
        def fn(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            return torch.cat([torch.addmm(a, b, c), torch.addmm(b, c, a)], 1)

        check(tune(fn, **{"autotune.backends": (BACKEND,)}), fn, randn(4, 4), randn(4, 4), randn(4, 4))

    def test_triton_template_with_epilogues_and_dynamic_shape(self, tune: Callable[..., Compiled]) -> None:
        def fn(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, mul: torch.Tensor) -> torch.Tensor:
            return (
                torch.nn.functional.relu(torch.matmul(torch.transpose(x, 0, 1), torch.transpose(w, 0, 1)) + bias) * mul
            )

        M0, M1, K, N = 5, 8, 4, 3
        w, b = (torch.rand(*size, device=DEVICE).half() for size in ((N, K), (N,)))
        compiled = tune(fn, True, **{"autotune.backends": (BACKEND,)})
        for m in (M0, M1):
            x, mul = torch.rand(K, m, device=DEVICE).half(), torch.rand(m, N, device=DEVICE).half()
            torch.testing.assert_close(compiled(x, w, b, mul), fn(x, w, b, mul), atol=2e-3, rtol=2e-3)
        assert len(compiled.steps) == 1, "one kernel, for both sizes"

    @pytest.mark.parametrize("device", ("cpu", pytest.param("cuda", marks=gpu)))
    def test_matmul_dropout(self, device: str) -> None:
        """litz's random numbers are not eager's (docs/random.md), so the gradient is checked by what it must be: each
        element a sum of b over the elements that were kept, scaled; and it repeats for equal seeds."""
        if device == "cuda" and not HAS_GPU:
            pytest.skip("needs a CUDA device")
        a = torch.randn(128, 128, device=device, requires_grad=True)
        b = torch.ones(128, 128, device=device)

        def fn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.dropout(a @ b, 0.1).sum()

        torch._dynamo.reset()
        compiled = torch.compile(fn, backend="litz", options={"max_autotune": True})
        found = []
        for _ in range(2):
            a.grad = None
            torch.manual_seed(0)
            compiled(a, b).backward()
            assert a.grad is not None
            found.append(a.grad.clone())
        torch.testing.assert_close(found[0], found[1])
        kept = found[0] * 0.9  # how many of the 128 elements of its row were kept, the same along the row
        torch.testing.assert_close(kept, kept.round(), atol=1e-2, rtol=0)
        assert 0.85 < float(kept.mean()) / 128 < 0.95

    @pytest.mark.gpu2
    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
    def test_autotune_device_guard(self, tmp_path: Path) -> None:
        x, y = (torch.randn(1024, 1024, device="cuda:1") for _ in range(2))
        compiled = Compiled(tmp_path, torch.mm, None, {})
        out = compiled(x, y)
        assert out.device == x.device and torch.cuda.current_device() == 0
        assert torch.allclose(out, x @ y, atol=4e-3, rtol=4e-3)

    def _large(self) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.empty_strided((50257, 32768), (1, 50304), dtype=torch.bfloat16, device="cuda").normal_()
        return x, torch.randn(32768, 768, dtype=torch.bfloat16, device="cuda")

    def _close(self, actual: torch.Tensor, expected: torch.Tensor) -> None:
        """Sums of 32768 products in another order: bfloat16 has 8 bits."""
        error = (actual.float() - expected.float()).norm() / expected.float().norm()
        assert error < 1e-2

    @gpu
    @needs_gpu
    def test_non_contiguous_input_mm(self, tune: Callable[..., Compiled]) -> None:
        x, y = self._large()
        self._close(tune(torch.mm)(x, y), x @ y)

    @gpu
    @needs_gpu
    def test_non_contiguous_input_addmm(self, tune: Callable[..., Compiled]) -> None:
        x, y = self._large()
        b = torch.randn(768, dtype=torch.bfloat16, device="cuda")
        self._close(tune(torch.addmm)(b, x, y), torch.addmm(b, x, y))

    @gpu
    @needs_gpu
    def test_non_contiguous_input_bmm(self, tune: Callable[..., Compiled]) -> None:
        x, y = self._large()
        x3, y3 = (t.as_strided((1, *t.shape), (0, *t.stride())) for t in (x, y))
        self._close(tune(torch.bmm)(x3, y3), torch.bmm(x3, y3))

    @gpu
    @needs_gpu
    def test_non_contiguous_input_mm_plus_mm(self, tune: Callable[..., Compiled]) -> None:
        x1, x2 = (torch.empty_strided((50257, 32768), (1, 50304), device="cuda").normal_() for _ in range(2))
        y1, y2 = (torch.randn(32768, 768, device="cuda") for _ in range(2))
        self._close(tune(mm_plus_mm)(x1, y1, x2, y2), mm_plus_mm(x1, y1, x2, y2))

    def test_no_valid_choices(self, tune: Callable[..., Compiled]) -> None:
        a, b = (torch.zeros(2, 2, device=DEVICE) for _ in range(2))
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as context:
            tune(lambda a, b: a.matmul(b), **{"autotune.backends": ()})(a, b)
        assert "NoValidChoicesError" in str(context.value)

    @pytest.mark.parametrize("multi_template", (True, False))
    def test_inf_timing(self, tmp_path: Path, multi_template: bool) -> None:
        """multi_template: with a user that competes along."""
        a, b = torch.zeros(16, 16), torch.zeros(16, 16)
        fn = (lambda a, b: a.matmul(b).relu()) if multi_template else (lambda a, b: a.matmul(b))
        compiled = FakeGpu(tmp_path, lambda name: inf, **{"autotune.backends": (BACKEND,)}).compile(fn)
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as context:
            compiled(a, b)
        assert "NoValidChoicesError" in str(context.value)


@dataclass(frozen=True)
class VisibleDevices:
    """A request that looks at the CUDA_VISIBLE_DEVICES of the process that it runs in."""

    value: float
    multi_device: bool
    parent_visible_devices: str | None

    def run(self, state: dict[str, Any]) -> float:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if not self.multi_device:
            assert visible == self.parent_visible_devices
        else:
            assert self.parent_visible_devices is not None
            assert visible in self.parent_visible_devices.split(",")
        return self.value


class TestTuningProcess:
    def test_tuning_pool_crash(self) -> None:
        pool = WorkerPool()
        try:
            (result,) = pool.run([VisibleDevices(3.14, False, "invalid")])
            assert isinstance(result, Failure)
            (result,) = pool.run([VisibleDevices(3.14, False, os.environ.get("CUDA_VISIBLE_DEVICES"))])
            assert result == 3.14
        finally:
            pool.close()

    def test_tuning_pool_multiple_devices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        inherited = os.environ.get("CUDA_VISIBLE_DEVICES")
        devices = inherited.split(",") if inherited else [str(d) for d in range(max(2, torch.cuda.device_count()))]
        parent_visible_devices = ",".join(devices[-2:])
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", parent_visible_devices)
        pool = WorkerPool(tuple(range(len(devices[-2:]))))
        try:
            first, second = (VisibleDevices(value, True, parent_visible_devices) for value in (3.14, 2.718))
            assert pool.run([first, second]) == [3.14, 2.718]
        finally:
            pool.close()

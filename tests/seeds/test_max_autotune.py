"""The tests of the seed document test_max_autotune, by their names, for litz-autotune.

On a machine with a GPU they compile, tune and run on it. Elsewhere the graph is made out to be a GPU's: the times are
made up so that Triton's kernels win wherever they are offered, and the schedule that results is run on the CPU by the
IR's interpreter, so that what a kernel replaces is checked too. (The kernels' own numbers are checked in
tests/autotune, in Triton's interpreter.) In the tests that BUILT names their candidates are really compiled, for sm_90.

float32 is multiplied at precision "high", as in the seed: in TF32 on a GPU. So two right kernels differ there by more
than the seed's tolerances, and results are judged by float64, element by element (`every_element`).
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.testing import reset_rng_state

pytest.importorskip("triton")

import litz_aot
from litz import report as reports
from litz.codegen.facts import entry_facts
from litz.ir import Program
from litz.options import make_options
from litz.pipeline import make_compiler, plan_schedule
from litz_autotune import Autotune, measuring
from litz_autotune.measurement import failed
from litz_autotune.plugin import plugin as installed
from litz_autotune.pool import Failure, InProcess, WorkerPool
from litz_autotune.race import Entrant, Race
from litz_autotune.remote import RemoteStore
from litz_autotune.timing import timer_for
from litz_contractions.subprogram import cut, on_device
from litz_cudagraphs import recordings
from litz_plugins import KernelSource
from litz_plugins.manager import make_plugins
from support import rivals
from support.compare import every_element
from support.fake_gpu import FakeGpu
from support.retarget import cuda_schedules
from support.seed_autotune import (
    BACKEND,
    DEVICE,
    DYNAMIC,
    HAS_GPU,
    ONLY_KERNELS,
    Compiled,
    CountingPool,
    Killed,
    MemoryServer,
    VisibleDevices,
    Where,
    calls,
    chain,
    chain_inputs,
    check,
    check_text,
    high_precision,
    library_alone,
    mm_plus_mm,
    randn,
    sin_mm,
    triton_wins,
)
from support.tuned import Tuned

gpu = pytest.mark.gpu
BUILT = (
    *("test_max_autotune_mm_plus_mm", "test_precompilations"),
    "test_triton_template_with_epilogues_and_dynamic_shape",
)
"""Tests that fail where a candidate does not compile: in most of the others the library then wins, which they allow."""
pytestmark = [gpu] if HAS_GPU else [pytest.mark.usefixtures("interpreters_with_litz")]


@pytest.fixture
def tune(tmp_path: Path) -> Callable[..., Compiled]:
    return lambda fn, dynamic=None, fullgraph=False, **options: Compiled(tmp_path, fn, dynamic, fullgraph, options)


@pytest.fixture(autouse=True)
def built_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, only the tests of BUILT compile their candidates."""
    if not HAS_GPU and not request.node.name.startswith(BUILT):
        monkeypatch.setattr("litz.targets.triton.build.build", lambda *_: None)


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    with high_precision():
        yield


@pytest.fixture(scope="module")
def pool() -> Iterator[CountingPool]:
    pool = CountingPool()
    yield pool
    pool.close()


class TestMaxAutotune:
    def _program(self) -> Program:
        """mm + mm of the seed's sizes, as it is captured."""
        tensors = [torch.zeros(size) for size in ((2, 3), (3, 2), (2, 3), (3, 2))]
        torch._dynamo.reset()
        (schedule,) = cuda_schedules(
            lambda backend: torch.compile(mm_plus_mm, backend=backend)(*tensors),
            make_compiler(None, {"disable_plugins": ("autotune", "contractions")}),
        )
        before = schedule.program
        return on_device(cut(before, before.operations, before.operations[-1].writes), torch.device(DEVICE))

    def _race(self, program: Program, folder: Path) -> Race:
        timer, options = timer_for(torch.device(DEVICE)), make_options(None, {"cache_dir": folder})
        return Race("mm + mm", (Entrant("library", program),), program, timer, options, str(folder))

    def test_benchmark_choice_in_subproc(self, pool: CountingPool, tmp_path: Path) -> None:
        (result,) = pool.run([self._race(self._program(), tmp_path)])
        assert result[0].valid and result[0].us > 0
        (process,) = pool.run([Where()])
        assert process != os.getpid() and pool.workers[0].pid is not None

    def test_benchmark_choice_fail_in_subproc(self, pool: CountingPool, tmp_path: Path) -> None:
        program = self._program()
        first, *rest = program.operations
        broken = replace(program, operations=(replace(first, target=rivals.raises), *rest))
        race = replace(self._race(program, tmp_path), entrants=(Entrant("broken", broken),))
        (result,) = pool.run([race])
        assert result[0].us == inf and "always raises" in result[0].reason
        (result,) = pool.run([self._race(program, tmp_path)])
        assert result[0].valid, "the next choice is measured all the same"

    @pytest.mark.each_value
    @pytest.mark.parametrize("autotune_in_subproc", (True, False))
    @pytest.mark.parametrize("autotune_multi_device", (True, False))
    def test_max_autotune_mm_plus_mm(
        self,
        tune: Callable[..., Compiled],
        tmp_path: Path,
        pool: CountingPool,
        monkeypatch: pytest.MonkeyPatch,
        autotune_in_subproc: bool,
        autotune_multi_device: bool,
    ) -> None:
        m, n, k = (2048, 1536, 64) if HAS_GPU else (128, 96, 64)
        options = {"autotune.in_subprocess": autotune_in_subproc, "autotune.multi_device": autotune_multi_device}
        args = randn(m, k), randn(k, n), randn(m, k), randn(k, n)
        if HAS_GPU:
            installed.close()
        compiled = tune(mm_plus_mm, **options)
        check(compiled, mm_plus_mm, *args)
        if HAS_GPU:
            several = autotune_multi_device and torch.cuda.device_count() > 1
            self._measured_by(compiled.autotune, autotune_in_subproc, torch.cuda.device_count() if several else 1)
            return
        assert len(compiled.steps) == 1
        assert compiled.steps[0].startswith("KernelCall aten.mm.default + aten.mm.default")
        check_text(compiled, mm_plus_mm, args, tmp_path)
        # Who measures: as on a machine of two GPUs, and on the CPU really.
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        autotune = Autotune()
        specs = make_plugins(extra=[("autotune", autotune)], entry_points=()).option_specs()
        autotune._runner(make_options(None, options, specs), "cuda", 0)
        self._measured_by(autotune, autotune_in_subproc, 2 if autotune_multi_device else 1)
        monkeypatch.undo()
        tuned = Tuned(tmp_path, None, rivals.good, **options)
        tuned.autotune._runners[None,] = pool
        before = pool.asked
        check(lambda *args: tuned(mm_plus_mm, *args), mm_plus_mm, *args)  # type: ignore[arg-type]
        assert tuned.autotune.counters.races > 0 and (pool.asked > before) == autotune_in_subproc
        assert ("here" in tuned.autotune._runners) == (not autotune_in_subproc)

    def _measured_by(self, autotune: Autotune, in_subprocess: bool, devices: int) -> None:
        """This process, or one other for each device, which sees that alone."""
        (runner,) = autotune._runners.values()
        if not in_subprocess:
            assert isinstance(runner, InProcess)
            return
        assert isinstance(runner, WorkerPool)
        expected = (None,) if devices == 1 else tuple(range(devices))
        assert tuple(worker.device for worker in runner.workers) == expected
        if HAS_GPU:
            assert all(worker.pid not in (None, os.getpid()) for worker in runner.workers)

    @DYNAMIC
    def test_max_autotune_mm_plus_mm_zero_size_input(self, tune: Callable[..., Compiled], dynamic: bool) -> None:
        m, n, k = 0, 1536, 64
        args = randn(m, k), randn(k, n), randn(m, k), randn(k, n)
        library_alone(tune(mm_plus_mm, dynamic), mm_plus_mm, *args)

    @DYNAMIC
    def test_max_autotune_regular_mm(self, tune: Callable[..., Compiled], dynamic: bool) -> None:
        compiled = tune(sin_mm, dynamic, **{"autotune.in_subprocess": True})
        check(compiled, sin_mm, randn(100, 10), randn(10, 100))
        assert compiled.counted("tuned") == 1

    @DYNAMIC
    def test_max_autotune_regular_mm_zero_size_input(self, tune: Callable[..., Compiled], dynamic: bool) -> None:
        args = randn(0, 10), randn(10, 100)
        library_alone(tune(sin_mm, dynamic), sin_mm, *args)

    @DYNAMIC
    def test_max_autotune_remote_caching(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dynamic: bool) -> None:
        """Four processes' worth of caches: the first measures and stores, the others find: of a contraction, and of a
        pointwise kernel, whose tile is searched for."""

        def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

        cases = [
            (sin_mm, (randn(100, 10), randn(10, 100)), "tuned", {"autotune.kernels": False}),
            (add, (randn(100, 100), randn(100, 100)), "kernels", ONLY_KERNELS),
        ]
        for number, (fn, args, counter, more) in enumerate(cases):
            options = {"autotune.local_cache": False, "autotune.remote_cache": "redis://in-memory", **more}
            server, tuned, steps = MemoryServer(), [], []
            monkeypatch.setattr(RemoteStore, "_connect", lambda store, server=server: server)
            for attempt in range(4):
                compiled = Compiled(tmp_path / f"{number}-{attempt}", fn, dynamic, False, options)
                check(compiled, fn, *args)
                tuned.append(compiled.counted(counter))
                assert (compiled.counted("races") > 0) == (attempt == 0), "who finds measures nothing"
                steps.append(compiled.steps + compiled.settings)
            assert (server.hits, server.puts) == (3, 1)
            assert tuned == [1, 0, 0, 0]
            assert all(own == steps[0] for own in steps), "and decides alike"
            assert HAS_GPU or counter == "tuned" or "warps" in str(steps[0]), "made-up times are won by 2 warps"

    def test_precompilation_threads(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every choice is compiled before it is measured, never on the main thread, and as many at a time as `threads`
        says: the first ten wait for one another."""
        threads: dict[str, int] = {}
        together = threading.Barrier(10)
        counted = itertools.count()

        def build(source: KernelSource) -> None:
            threads[source.text] = threading.get_ident()
            if next(counted) < 10:
                together.wait(60)

        monkeypatch.setattr(measuring, "triton_build", lambda *_: build)
        options = {"threads": 10, "autotune.search": "default", "autotune.in_subprocess": False}
        gpu = FakeGpu(tmp_path, triton_wins, **options)
        gpu.schedule(torch.mm, torch.randn(512, 512), torch.randn(512, 512))
        raced = {name for names in gpu.runner.raced for name in names if name.startswith("triton")}
        assert len(raced) >= 10 and len(threads) >= len(raced), "every choice is precompiled"
        assert len(set(threads.values())) == 10
        assert threading.get_ident() not in threads.values(), "and none on the main thread"

    @DYNAMIC
    def test_max_autotune_addmm(
        self, tune: Callable[..., Compiled], monkeypatch: pytest.MonkeyPatch, dynamic: bool
    ) -> None:
        monkeypatch.setattr(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False)
        x, a, b = randn(100), randn(100, 10), randn(10, 100)
        compiled = tune(torch.addmm, dynamic, **{"autotune.in_subprocess": True})
        torch.testing.assert_close(compiled(x, a, b), torch.addmm(x, a, b), atol=1e-2, rtol=1e-2)
        check(compiled, torch.addmm, x, a, b)

    @DYNAMIC
    def test_max_autotune_addmm_zero_size_input(self, tune: Callable[..., Compiled], dynamic: bool) -> None:
        x, a, b = randn(100), randn(0, 10), randn(10, 100)
        library_alone(tune(torch.addmm, dynamic), torch.addmm, x, a, b)

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
        assert "convolution" not in calls(compiled.code) and "conv2d" not in calls(compiled.code)

    def test_filled_cache_precompile(self, tune: Callable[..., Compiled]) -> None:
        inputs, options = chain_inputs(), {"mode": "max-autotune-no-cudagraphs"}
        torch.testing.assert_close(tune(chain, **options)(*inputs), chain(*inputs), atol=1e-2, rtol=1e-2)
        again = tune(chain, **options)
        torch.testing.assert_close(again(*inputs), chain(*inputs), atol=1e-2, rtol=1e-2)
        assert again.counted("precompiled") == 0 and again.counted("races") == 0
        assert again.counted("local_hits") > 0

    def test_search_autotune_cache(self, tune: Callable[..., Compiled]) -> None:
        """What the seed asserts, of an empty cache: nothing is precompiled. Nor is anything of a filled one, and the
        program is that which was tuned."""
        inputs, options = chain_inputs(), {"max_autotune": False, "autotune.search_cache": True}

        def searched() -> Compiled:
            compiled = tune(chain, **options)
            torch.testing.assert_close(compiled(*inputs), chain(*inputs), atol=1e-2, rtol=1e-2)
            assert compiled.counted("precompiled") == compiled.counted("tuned") == compiled.counted("races") == 0
            return compiled

        assert searched().counted("local_hits") == 0
        tuned = tune(chain)
        tuned(*inputs)
        after = searched()
        assert after.counted("local_hits") == tuned.counted("tuned") > 0
        assert after.steps == tuned.steps

    def test_jit_fusion_matches_aot_fusion(self, tune: Callable[..., Compiled], tmp_path: Path) -> None:
        """The graph that torch.export makes ahead of time is fused as the one that dynamo makes just in time, two nodes
        in a kernel at most; and `litz_aot.compile` makes a package of it that runs."""

        def fn(x: torch.Tensor, number: torch.Tensor) -> Any:
            return x + x, number.item(), x * x, x @ x, x**2

        class Module(torch.nn.Module):
            def forward(self, x: torch.Tensor, number: torch.Tensor) -> Any:
                return fn(x, number)

        x, number = torch.rand(256, 256, device=DEVICE), torch.tensor(3, device=DEVICE)

        def right(found: Any) -> None:
            expected = fn(x, number)
            exact = x.double() @ x.double()
            for position, (own, wanted) in enumerate(zip(found, expected, strict=True)):
                if position == 3:
                    every_element(own, wanted, lambda part: exact[part])
                else:
                    torch.testing.assert_close(own, wanted)

        options = {"max_fusion_size": 2}
        with torch._dynamo.config.patch(capture_scalar_outputs=True):
            just_in_time = tune(fn, **options)
            right(just_in_time(x, number))
            exported = torch.export.export(Module(), (x, number)).module()
            ahead_of_time = tune(lambda x, number: exported(x, number), **options)
            right(ahead_of_time(x, number))
        assert sorted(just_in_time.steps) == sorted(ahead_of_time.steps)
        assert sorted(just_in_time.sizes) == sorted(ahead_of_time.sizes)
        assert max(just_in_time.sizes) == 2, "three of its nodes read x, and would be one kernel"
        with reports.collect() as collected:
            folder = litz_aot.compile(
                Module(),
                (x, number),
                tmp_path / "package",
                options={"max_autotune": True, "cache_dir": tmp_path, **options},
            )
        right(litz_aot.load(folder)(x, number))
        assert max(len(step.origins) for report in collected for step in report.steps) == 2
        if HAS_GPU:
            steps = [f"{step.kind} {step.what}" for report in collected for step in report.steps]
            assert sorted(steps) == sorted(just_in_time.steps)

    @pytest.mark.parametrize(("fusion", "expected"), [(False, 2), (True, 3)])
    def test_precompilations(
        self, tune: Callable[..., Compiled], monkeypatch: pytest.MonkeyPatch, fusion: bool, expected: int
    ) -> None:
        """The seed counts two, in the default configuration: of four products two are in float32 and two in float16,
        and equal ones are compiled once. Counted by what was compiled: the texts are of two types of operands, and none
        is compiled twice. litz tunes products with their users too, by default, so that one of float32 is another
        problem: its kernel may convert the result to float16."""
        inputs = chain_inputs()
        texts: list[tuple[str, str]] = []
        make_build = measuring.triton_build

        def counting(*given: Any) -> Callable[[KernelSource], None]:
            build = make_build(*given)

            def one(source: KernelSource) -> None:
                operands = source.settings["pointers"][:2]
                texts.append(("float16" if "*fp16" in operands else "float32", source.text))
                build(source)

            return one

        monkeypatch.setattr(measuring, "triton_build", counting)
        options = {"mode": "max-autotune-no-cudagraphs", "autotune.local_cache": False, "autotune.fusion": fusion}
        compiled = tune(chain, **options, **{"autotune.kernels": False})
        torch.testing.assert_close(compiled(*inputs), chain(*inputs), atol=1e-2, rtol=1e-2)
        assert compiled.counted("precompiled") == expected
        kinds = {kind for kind, _ in texts}
        assert kinds == {"float32", "float16"}, "two precompilations, by what they compile"
        if not fusion:
            assert len(texts) == len(set(texts)), "each text once"

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
        generator = torch.Generator().manual_seed(0)

        def rand(*size: int) -> torch.Tensor:
            return torch.rand(*size, generator=generator).half().to(DEVICE)

        w, b = rand(N, K), rand(N)
        options = {
            "mode": "max-autotune-no-cudagraphs",
            "autotune.in_subprocess": True,
            "autotune.backends": (BACKEND,),
        }
        compiled = tune(fn, True, fullgraph=True, **options)
        for m in (M0, M1):
            x, mul = rand(K, m), rand(m, N)
            actual, exact = compiled(x, w, b, mul), fn(*(t.double() for t in (x, w, b, mul)))
            # Two roundings, of the product and of the result: eager's four can be off by more than the tolerance.
            torch.testing.assert_close(actual.double(), exact, rtol=1e-3, atol=1e-5)
            torch.testing.assert_close(actual, fn(x, w, b, mul))
        assert len(compiled.steps) == 1, "one kernel, for both sizes"

    @pytest.mark.parametrize("device", ("cpu", pytest.param("cuda", marks=gpu)))
    def test_matmul_dropout(self, tmp_path: Path, device: str) -> None:
        """The gradient through a dropout is eager's: the same elements are dropped. The backward is called inside of
        what is compiled, as in the seed; each run starts without a gradient, which in the seed eager's would be too."""
        if device == "cuda" and not HAS_GPU:
            pytest.skip("needs a CUDA device")

        def fwd(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.dropout(a @ b, 0.1)

        def fn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
            fwd(a, b).sum().backward()
            return a.grad

        N = 128
        a = torch.randn(N, N, device=device, requires_grad=True)
        b = torch.randn(N, N, device=device)
        options = {
            "fallback_random": True,
            "benchmark_kernels": True,
            "max_autotune_gemm": True,
            "cache_dir": tmp_path,
        }

        def run(call: Callable[..., torch.Tensor | None]) -> torch.Tensor:
            a.grad = None
            reset_rng_state()
            result = call(a, b)
            assert result is not None
            return result.detach().clone()

        torch._dynamo.reset()
        with reports.collect() as collected:
            ref, act = run(fn), run(torch.compile(fn, backend="litz", options=options))
        # In TF32 two right products of 128 terms differ by more than in float32.
        tolerance = 1e-1 if device == "cuda" else 1e-4
        torch.testing.assert_close(act, ref, atol=tolerance, rtol=tolerance)
        forward = torch.compile(fwd, backend="litz", options=options)
        ref, act = run(fwd), run(forward)
        torch.testing.assert_close(act, ref, atol=tolerance, rtol=tolerance)
        assert torch.equal(act == 0, ref == 0) and 0.05 < float((act == 0).float().mean()) < 0.15
        kernels = [path for report in collected for path in report.kernel_paths.values()]
        assert kernels and all(path.with_suffix(".json").is_file() for path in kernels), "each can be timed alone"

    @pytest.mark.gpu2
    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
    def test_autotune_device_guard(self, tmp_path: Path) -> None:
        x, y = (torch.randn(1024, 1024, device="cuda:1") for _ in range(2))
        compiled = Compiled(tmp_path, torch.mm, None, False, {})
        check(compiled, torch.mm, x, y, tolerance=4e-3)
        assert compiled(x, y).device == x.device and torch.cuda.current_device() == 0

    def _non_contiguous(
        self,
        tune: Callable[..., Compiled],
        tmp_path: Path,
        fn: Callable[..., Any],
        pairs: int,
        dtype: torch.dtype,
        batched: bool,
        bias: bool,
    ) -> None:
        """The seed's product of strided operands, or a small one of like strides; with mode "max-autotune".

        A GPU's fourth call is of a recorded CUDA graph, and of other numbers than those that it was recorded with.
        """
        m, k, n, padded = (50257, 32768, 768, 50304) if HAS_GPU else (257, 96, 48, 304)
        lefts = [torch.empty_strided((m, k), (1, padded), dtype=dtype, device=DEVICE).normal_() for _ in range(pairs)]
        rights = [torch.randn(k, n, dtype=dtype, device=DEVICE) for _ in range(pairs)]
        added = [torch.randn(n, dtype=dtype, device=DEVICE)] if bias else []

        def arguments() -> list[torch.Tensor]:
            matrices = [matrix for pair in zip(lefts, rights, strict=True) for matrix in pair]
            if batched:
                matrices = [matrix.as_strided((1, *matrix.shape), (0, *matrix.stride())) for matrix in matrices]
            return [*added, *matrices]

        def exact(part: slice) -> torch.Tensor:
            total = sum(a[part].double() @ b.double() for a, b in zip(lefts, rights, strict=True))
            assert isinstance(total, torch.Tensor)
            return total + added[0].double() if bias else total

        compiled = tune(fn, mode="max-autotune")
        for call in range(4 if HAS_GPU else 1):
            if call == 3:
                rights[0].neg_()
            actual, eager = compiled(*arguments()), fn(*arguments())
            if batched:
                assert actual.shape == eager.shape == (1, m, n)
                actual, eager = actual[0], eager[0]
            if call in (0, 3):  # the others warm up and record
                every_element(actual, eager, exact)
        if HAS_GPU:
            assert recordings.count() > 0
            recordings.release()
        else:
            assert compiled.fake is not None and compiled.fake.compiler.options.cuda_graphs
            (schedule,) = compiled.fake.schedules
            plan = plan_schedule(schedule, compiled.fake.compiler)
            assert not entry_facts(plan).obstacle
            assert "Kernel" in compiled.steps[0], "not the library: a kernel's meaning was run"
            check_text(compiled, fn, arguments(), tmp_path, 1e-2)

    def test_non_contiguous_input_mm(self, tune: Callable[..., Compiled], tmp_path: Path) -> None:
        self._non_contiguous(tune, tmp_path, torch.mm, 1, torch.bfloat16, batched=False, bias=False)

    def test_non_contiguous_input_addmm(self, tune: Callable[..., Compiled], tmp_path: Path) -> None:
        self._non_contiguous(tune, tmp_path, torch.addmm, 1, torch.bfloat16, batched=False, bias=True)

    def test_non_contiguous_input_bmm(self, tune: Callable[..., Compiled], tmp_path: Path) -> None:
        self._non_contiguous(tune, tmp_path, torch.bmm, 1, torch.bfloat16, batched=True, bias=False)

    def test_non_contiguous_input_mm_plus_mm(self, tune: Callable[..., Compiled], tmp_path: Path) -> None:
        self._non_contiguous(tune, tmp_path, mm_plus_mm, 2, torch.float32, batched=False, bias=False)

    @pytest.mark.parametrize(
        ("backends", "dtype"), [((), torch.float32), ((BACKEND,), torch.float64)], ids=["none", BACKEND]
    )
    def test_no_valid_choices(
        self, tune: Callable[..., Compiled], backends: tuple[str, ...], dtype: torch.dtype
    ) -> None:
        """Without the library, where no template is allowed, and where none can do it: there is none for float64."""
        a, b = (torch.zeros(2, 2, device=DEVICE, dtype=dtype) for _ in range(2))
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as context:
            tune(lambda a, b: a.matmul(b), **{"autotune.backends": backends})(a, b)
        assert "NoValidChoicesError" in str(context.value)

    @pytest.mark.parametrize("multi_template", (True, False))
    def test_inf_timing(self, tmp_path: Path, multi_template: bool) -> None:
        """multi_template: with a user that competes along, and without one."""
        a, b = torch.zeros(16, 16), torch.zeros(16, 16)
        fn = (lambda a, b: a.matmul(b).relu()) if multi_template else (lambda a, b: a.matmul(b))
        gpu = FakeGpu(tmp_path, lambda name: inf, **{"autotune.backends": (BACKEND,)})
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as context:
            gpu.compile(fn)(a, b)
        assert "NoValidChoicesError" in str(context.value)
        names = {name for names in gpu.runner.raced for name in names}
        assert any("with 1 user" in name for name in names) == multi_template


class TestTuningProcess:
    def test_tuning_pool_crash(self, pool: CountingPool) -> None:
        """What fails costs itself alone, and so does what takes its process along: the other choices of the same call
        are measured, before it and after it, in a process that takes its place."""
        inherited = os.environ.get("CUDA_VISIBLE_DEVICES")
        (result,) = pool.run([VisibleDevices(3.14, False, "invalid")])
        assert isinstance(result, Failure) and failed(result.reason).us == inf
        (result,) = pool.run([VisibleDevices(3.14, False, inherited)])
        assert result == (3.14, inherited)
        (earlier,), lost = pool.run([Where()]), pool.workers[0].pid
        choices = [VisibleDevices(value, False, inherited) for value in (1.0, 2.0)]
        before, crash, after, process = pool.run([choices[0], Killed(), choices[1], Where()])
        assert (before, after) == ((1.0, inherited), (2.0, inherited))
        assert isinstance(crash, Failure) and crash.crashed and "signal 9" in crash.reason
        assert process != earlier and pool.workers[0].pid not in (None, lost)
        assert lost is not None and not Path(f"/proc/{lost}").exists()

    def test_tuning_pool_multiple_devices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Names of devices that differ from their numbers: each process sees one of them, and both are at work."""
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
        pool = WorkerPool((0, 1))
        try:
            first, second = (VisibleDevices(value, True, "5,7") for value in (3.14, 2.718))
            found = pool.run([first, second])
            assert [value for value, _ in found] == [3.14, 2.718]
            assert {visible for _, visible in found} == {"5", "7"}
            assert len({worker.pid for worker in pool.workers}) == 2
        finally:
            pool.close()

"""Tuning for a GPU that is not there: which candidates compete for which work, and what takes its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from litz.codegen.wrapper import generate_wrapper
from litz.ir import KernelCall, Template
from litz.pipeline import generate, plan_schedule
from litz.schedule.schedule import Kernel
from litz_contractions.products.kernel import write_gemm
from support.fake_gpu import FakeGpu
from support.triton_compiled import compile_only

F = torch.nn.functional
X, W, BIAS = torch.randn(64, 128), torch.randn(96, 128), torch.randn(96)


@pytest.fixture(autouse=True)
def nothing_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """What competes and wins follows from plans and times. tests/autotune/test_gemm_build.py compiles candidates."""
    monkeypatch.setattr("litz.targets.triton.build.build", lambda *_: None)


def triton_wins(name: str) -> float:
    return 50.0 if name.startswith("triton") else 100.0


def library_wins(name: str) -> float:
    return 50.0 if name.startswith("library") else 100.0


def mlp(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b))


def test_a_product_and_its_users_become_one_kernel(tmp_path: Path) -> None:
    gpu = FakeGpu(tmp_path, triton_wins)
    schedule = gpu.schedule(mlp, X, W, BIAS)
    (call,) = schedule.steps
    assert isinstance(call, KernelCall)
    estimate = plan_schedule(schedule, gpu.compiler).estimates[call.name]
    assert estimate.us == 50.0 and "measured" in estimate.why
    wrapper = gpu.wrapper(schedule)
    assert f"{call.name}(" in wrapper and "_empty_cuda((64, 96)" in wrapper and "addmm" not in wrapper.partition("#")[0]


def test_the_library_and_its_users_stay_where_they_are_faster(tmp_path: Path) -> None:
    schedule = FakeGpu(tmp_path, library_wins).schedule(mlp, X, W, BIAS)
    assert [type(step).__name__ for step in schedule.steps] == ["Template", "Kernel"]


def test_a_candidate_is_timed_with_its_users_against_the_library_with_them(tmp_path: Path) -> None:
    gpu = FakeGpu(tmp_path, triton_wins)
    gpu.schedule(mlp, X, W, BIAS)
    *screens, final = gpu.runner.raced
    assert all(len(names) == 1 and "with 1 user" in names[0] for names in screens)
    assert final[0].startswith("library with ") and len(final) == 4


def test_a_user_that_could_be_fused_elsewhere_counts_for_its_bytes_only(tmp_path: Path) -> None:
    """The residual goes into the softmax's kernel for free: fused, the product must beat the library call alone. (Rows
    of 384 are too long for a tile, which would do it all.)"""

    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.softmax(F.linear(x, w) + b, -1) + (F.linear(x, w) + b)

    times = {"library": 100.0}
    gpu = FakeGpu(tmp_path, lambda name: times.get(name, 130.0 if name.startswith("library") else 110.0))
    schedule = gpu.schedule(fn, X, torch.randn(384, 128), torch.randn(384))
    assert any("library" in names for names in gpu.runner.raced)
    assert not any(isinstance(step, KernelCall) for step in schedule.steps)


@pytest.mark.parametrize(
    "fn, stays",
    [
        (lambda x, w, y: (x @ w) * y.sum(-1, keepdim=True), True),  # core does sum and product in one kernel
        (lambda x, w, y: (lambda total: (total + x) @ w * total)(y.cos().sum(-1, keepdim=True)), False),
        (lambda x, w, y: (x @ w) * y.relu(), False),  # inlined
    ],
)
def test_nor_does_a_user_of_what_a_loop_makes(tmp_path: Path, fn: Callable[..., torch.Tensor], stays: bool) -> None:
    gpu = FakeGpu(tmp_path, lambda name: {"library": 100.0}.get(name, 130.0 if name.startswith("library") else 110.0))
    schedule = gpu.schedule(fn, X, torch.randn(128, 384), torch.randn(64, 384))
    assert any(isinstance(step, KernelCall) for step in schedule.steps) is not stays


def test_what_does_not_run_leaves_the_library(tmp_path: Path) -> None:
    gpu = FakeGpu(tmp_path, lambda name: "out of memory" if name.startswith("triton") else 100.0)
    schedule = gpu.schedule(torch.mm, X, W.t())
    assert isinstance(schedule.steps[0], Template)


def test_equal_products_of_a_model_are_tuned_once(tmp_path: Path) -> None:
    gpu = FakeGpu(tmp_path, triton_wins)
    square = torch.randn(64, 64)

    def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = (x @ w).relu()
        return x

    schedule = gpu.schedule(layers, torch.randn(64, 64), square)
    calls = [step for step in schedule.steps if isinstance(step, KernelCall)]
    assert len(calls) == 4 and len({call.source.text for call in calls}) == 1
    assert gpu.autotune.counters.tuned == 1 and gpu.autotune.counters.precompiled == 1


@pytest.mark.parametrize(("wins", "written"), [(triton_wins, 1), (library_wins, 0)])
def test_what_was_measured_before_is_written_only_if_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wins: Callable[[str], float], written: int
) -> None:
    texts: list[str] = []

    def counted(*args: object, **kwargs: object) -> object:
        source = write_gemm(*args, **kwargs)  # type: ignore[arg-type]
        texts.append(source.text)
        return source

    monkeypatch.setattr("litz_contractions.products.choice.write_gemm", counted)
    first = FakeGpu(tmp_path, wins)
    first.schedule(mlp, X, W, BIAS)
    assert first.autotune.counters.tuned == 1 and len(texts) >= 4
    texts.clear()
    again = FakeGpu(tmp_path, wins)
    again.schedule(mlp, X, W, BIAS)
    assert again.autotune.counters.tuned == 0 and len(texts) == written


def test_other_code_that_makes_kernels_asks_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGpu(tmp_path, triton_wins).schedule(torch.mm, X, W.t())
    monkeypatch.setattr("litz_autotune.contest.makers", lambda: "another version")
    again = FakeGpu(tmp_path, triton_wins)
    again.schedule(torch.mm, X, W.t())
    assert again.autotune.counters.tuned == 1


def test_a_sum_in_parts_is_one_step_and_gives_its_workspace_back(tmp_path: Path) -> None:
    def split_wins(name: str) -> float:
        return 10.0 if "split" in name else 100.0

    a, b = torch.randn(32, 8192, dtype=torch.bfloat16), torch.randn(8192, 64, dtype=torch.bfloat16)
    gpu = FakeGpu(tmp_path, split_wins, **{"autotune.search": "default"})
    schedule = gpu.schedule(lambda a, b: (a @ b).relu(), a, b)
    memory = plan_schedule(schedule, gpu.compiler).memory
    (step,) = schedule.steps
    assert isinstance(step, KernelCall) and "split" in step.source.text and step.source.settings["counters"] > 0
    (workspace,) = (name for name in step.writes if name.endswith("parts"))
    assert workspace in memory.free[0]


def test_dynamic_shapes_keep_their_symbols(tmp_path: Path) -> None:
    schedule = FakeGpu(tmp_path, triton_wins).schedule(mlp, X, W, BIAS, dynamic=True)
    (call,) = schedule.steps
    assert isinstance(call, KernelCall) and call.source.settings["sizes"] >= 2
    assert isinstance(call.source.settings["grid"], str)


def test_a_size_may_have_a_kernel_where_another_has_the_library(tmp_path: Path) -> None:
    """Fused for 64 rows, the library and a kernel for its users at 4096: both right for all, and compiled."""

    def times(name: str) -> float:
        (rows,) = gpu.runner.racing.entrants[0].program.hints.values()
        return 50.0 if name.startswith("triton") is (rows < 1000) else 100.0

    gpu = FakeGpu(tmp_path, times, sizes=(4096,))
    x = torch.randn(64, 128)
    torch._dynamo.mark_dynamic(x, 0)
    schedule = gpu.schedule(mlp, x, W, BIAS, dynamic=None)
    assert schedule.cases is not None
    plan = plan_schedule(schedule, gpu.compiler)
    sources = generate(plan, gpu.compiler)
    wrapper = generate_wrapper(plan, sources)
    small, large = ([type(step).__name__ for step in one.steps] for one in schedule.cases.each)
    assert (small, large) == (["KernelCall"], ["Template", "Kernel"])
    assert all(compile_only(source)["cubin"] for source in sources.values()) and len(sources) == 2
    assert "> 512)](args)" in wrapper.text and wrapper.text.count("aten_addmm") == 2  # its definition and its call


@pytest.mark.parametrize("dynamic", [False, True])
def test_nothing_is_offered_for_an_empty_result(tmp_path: Path, dynamic: bool) -> None:
    gpu = FakeGpu(tmp_path, triton_wins)
    schedule = gpu.schedule(torch.mm, torch.randn(0, 10), torch.randn(10, 100), dynamic=dynamic)
    assert not any(isinstance(step, KernelCall) for step in schedule.steps) and not gpu.runner.raced


def test_without_a_gpu_the_library_stays(tmp_path: Path) -> None:
    gpu = FakeGpu(tmp_path, triton_wins)
    gpu.autotune.tuner.timer = None
    schedule = gpu.schedule(torch.mm, X, W.t())
    assert isinstance(schedule.steps[0], Template) and not gpu.runner.raced


@pytest.mark.thorough
def test_two_products_and_their_sum_become_one_kernel(tmp_path: Path) -> None:
    tensors = [torch.randn(*size) for size in ((64, 32), (32, 96), (64, 48), (48, 96))]
    gpu = FakeGpu(tmp_path, triton_wins)
    schedule = gpu.schedule(lambda a, b, c, d: (a @ b + c @ d).relu(), *tensors)
    (call,) = schedule.steps
    assert isinstance(call, KernelCall) and call.source.text.count("tl.dot") == 2
    assert gpu.autotune.counters.tuned == 1  # the second product is not asked about again


def test_what_makes_an_operand_goes_into_the_kernel(tmp_path: Path) -> None:
    gpu = FakeGpu(tmp_path, lambda name: 50.0 if "triton" in name and "1 producer and 1 user" in name else 100.0)
    schedule = gpu.schedule(lambda x, w: (x.to(torch.bfloat16) @ w).relu(), X, W.t().bfloat16())
    (call,) = schedule.steps
    assert isinstance(call, KernelCall) and call.source.settings["pointers"][0] == "*fp32"
    assert {tuple(n.partition(" with ")[2] for n in names if "library" in n) for names in gpu.runner.raced} >= {
        ("1 producer and 1 user",),
        ("1 user (1)",),
    }


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: ((y := x.to(torch.bfloat16)) @ w, y.sum()),  # someone else reads the operand
        lambda x, w: ((y := x.to(torch.bfloat16)) @ w, y),  # it is returned
        lambda x, w: (x - x.sum(-1, keepdim=True)).to(torch.bfloat16) @ w,  # core fuses it with the sum
    ],
)
def test_what_else_is_needed_or_better_fused_before_stays(tmp_path: Path, fn: Callable[..., torch.Tensor]) -> None:
    gpu = FakeGpu(tmp_path, triton_wins)
    gpu.schedule(fn, X, W.t().bfloat16())
    assert gpu.runner.raced and not any("producer" in name for names in gpu.runner.raced for name in names)


def test_rows_that_fit_a_tile_are_reduced_in_it(tmp_path: Path) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(F.linear(x, w, b), (96,)).relu()

    (call,) = FakeGpu(tmp_path, triton_wins).schedule(fn, X, W, BIAS).steps
    assert isinstance(call, KernelCall) and "RBLOCK: tl.constexpr = 128" in call.source.text
    assert "tl.program_id(0)" in call.source.text and call.source.settings["grid"] <= 4


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: torch.softmax(x @ w.repeat(1, 4), -1),  # rows of 384
        lambda x, w: torch.softmax(x @ w, 0),  # of columns
        lambda x, w: (x @ w).cumsum(-1),  # a scan
    ],
)
def test_other_reductions_are_kernels_of_their_own(tmp_path: Path, fn: Callable[..., torch.Tensor]) -> None:
    gpu = FakeGpu(tmp_path, triton_wins)
    steps = gpu.schedule(fn, X, W.t().contiguous()).steps
    assert any(isinstance(step, Kernel) and step.loop.reduction_ranges for step in steps)
    assert not any("RBLOCK" in step.source.text for step in steps if isinstance(step, KernelCall))


def test_a_convolution_and_its_activation_become_one_kernel(tmp_path: Path) -> None:
    x, w, b = torch.randn(2, 16, 8, 8), torch.randn(32, 16, 3, 3), torch.randn(32)
    schedule = FakeGpu(tmp_path, triton_wins).schedule(lambda x, w, b: F.conv2d(x, w, b, padding=1).relu(), x, w, b)
    (call,) = schedule.steps
    assert isinstance(call, KernelCall) and "convolution" in call.target_name


def test_a_bias_is_part_of_a_convolutions_kernel_or_one_of_its_own(tmp_path: Path) -> None:
    """The library is called without it, and timed together with the kernel that adds it."""
    x, w, b = torch.randn(2, 16, 8, 8), torch.randn(32, 16, 3, 3), torch.randn(32)

    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, b, padding=1)

    (call,) = FakeGpu(tmp_path / "a", triton_wins).schedule(fn, x, w, b).steps
    assert isinstance(call, KernelCall)
    gpu = FakeGpu(tmp_path / "b", library_wins)
    call, kernel = gpu.schedule(fn, x, w, b).steps
    assert isinstance(call, Template) and call.args[2] is None and isinstance(kernel, Kernel)
    assert any(name.startswith("library with 1 user") for names in gpu.runner.raced for name in names)


def test_channels_last_depthwise_with_a_bias_is_one_loop(tmp_path: Path) -> None:
    x = torch.randn(2, 6, 9, 8).contiguous(memory_format=torch.channels_last)
    w, b = torch.randn(6, 1, 3, 3), torch.randn(6)
    gpu = FakeGpu(tmp_path, lambda name: 50.0 if name.startswith("depthwise") else 100.0)

    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.silu(F.conv2d(x, w, b, groups=6))

    torch.testing.assert_close(gpu.compile(fn)(x, w, b), fn(x, w, b), atol=1e-5, rtol=1e-5)
    (kernel,) = gpu.schedules[0].steps
    assert isinstance(kernel, Kernel)


def test_groups_of_few_channels_stay_with_the_library(tmp_path: Path) -> None:
    x, w = torch.randn(2, 4, 8, 8), torch.randn(8, 2, 3, 3)
    gpu = FakeGpu(tmp_path, triton_wins)
    schedule = gpu.schedule(lambda x, w: F.conv2d(x, w, groups=2), x, w)
    assert isinstance(schedule.steps[0], Template) and not gpu.runner.raced


@pytest.mark.parametrize(
    "size, options",
    [
        ((6, 1, 3, 3), {"padding": 1}),
        ((6, 1, 3, 2), {"stride": 2, "padding": (2, 1), "dilation": (2, 1)}),
        ((12, 1, 3, 3), {}),
    ],
)
def test_a_depthwise_convolution_becomes_a_loop_that_core_fuses(
    tmp_path: Path, size: tuple[int, ...], options: dict[str, int]
) -> None:
    """Run in the IR's interpreter, and compiled."""
    x, w, b = torch.randn(2, 6, 9, 8), torch.randn(*size), torch.randn(size[0])
    gpu = FakeGpu(tmp_path, lambda name: 50.0 if name.startswith("depthwise") else 100.0)

    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.silu(F.conv2d(x, w, b, groups=6, **options))

    torch.testing.assert_close(gpu.compile(fn)(x, w, b), fn(x, w, b), atol=1e-5, rtol=1e-5)
    (schedule,) = gpu.schedules
    (kernel,) = schedule.steps
    (source,) = generate(plan_schedule(schedule, gpu.compiler), gpu.compiler).values()
    assert isinstance(kernel, Kernel) and compile_only(source)["cubin"]


def cublaslt_wins(name: str) -> float:
    return 20.0 if name.startswith("cublaslt") else 100.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_library_may_take_the_relu_on_its_way_out(tmp_path: Path, dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.relu(F.linear(x, w, b))

    gpu = FakeGpu(tmp_path, cublaslt_wins)
    tensors = [t.to(dtype) for t in (X, W, BIAS)]
    compiled = gpu.compile(fn)
    torch.testing.assert_close(compiled(*tensors), fn(*tensors), atol=2e-2, rtol=2e-2)
    assert gpu.steps == ["Extern aten._addmm_activation.default"]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w, b: F.linear(x, w, b).clamp(0, 6),
        lambda x, w, b: (y := F.linear(x, w, b)).relu() + y.sum(),
        lambda x, w, b: torch.addmm(b, x, w.t(), beta=2).relu(),
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
    ],
)
def test_what_is_no_relu_of_a_linear_has_no_such_call(tmp_path: Path, fn: Callable[..., torch.Tensor]) -> None:
    gpu = FakeGpu(tmp_path, cublaslt_wins)
    compiled = gpu.compile(fn)
    torch.testing.assert_close(compiled(X, W, BIAS), fn(X, W, BIAS), atol=1e-3, rtol=1e-3)
    assert not any("_addmm_activation" in step for step in gpu.steps)


def test_no_library_call_is_offered_where_the_library_may_not_run(tmp_path: Path) -> None:
    gpu = FakeGpu(tmp_path, cublaslt_wins, **{"autotune.backends": ("triton",)})
    gpu.compile(lambda x, w, b: F.relu(F.linear(x, w, b)))(X, W, BIAS)
    assert all(step.startswith("KernelCall") for step in gpu.steps)


def test_a_product_that_was_padded_competes_as_it_was(tmp_path: Path) -> None:
    """A kernel writes rows that begin anywhere, and needs no padding."""
    wins = lambda name: 50.0 if name.startswith("triton") and name.endswith("1 producer and 1 user") else 100.0
    gpu = FakeGpu(tmp_path, wins)

    def padded(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:  # as litz-layout does
        return (x @ F.pad(w, (0, 0, 0, 7)).t())[:, :97].clone()

    schedule = gpu.schedule(padded, torch.randn(64, 128).bfloat16(), torch.randn(97, 128).bfloat16())
    (call,) = schedule.steps
    assert isinstance(call, KernelCall) and "97" in call.source.text and "104" not in call.source.text

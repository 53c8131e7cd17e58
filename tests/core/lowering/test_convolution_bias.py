"""A convolution's bias is a Loop's where the library would take a kernel for it, and lies as eager's result does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.capture.graph import Graph
from litz.ir import Extern, Loop, Program, Template
from litz.ir.interpret import interpret
from litz.lower import lower
from litz.schedule.schedule import Kernel, Schedule
from litz.target import describe, target_named, target_of
from litz_plugins import Target
from support.compare import NO_GPU
from support.retarget import cuda_schedules

from .harness import capture, compare

BIAS = torch.randn(12)
BACKWARD = "aten.convolution_backward.default"


def apart(device: torch.device) -> Target:
    """The CPU, as if its library took a kernel for the bias."""
    return replace(target_of(device), abilities=frozenset({"separate_bias"}))


def bias_of(program: Program) -> Any:
    (template,) = (operation for operation in program.operations if isinstance(operation, Template))
    return template.args[2]


def check(function: Callable[..., Any], *inputs: torch.Tensor, dynamic: bool = False) -> Program:
    """The program on such a target, run by the interpreter against eager in value and stride."""
    graph: Graph = capture(function, *inputs, dynamic=dynamic)
    program = lower(graph, target_of=apart)
    given = [tensor.clone() for tensor in inputs]
    expected = [function(*inputs)]
    compare(interpret(program, given), expected, rtol=1e-5, atol=1e-5, strides=True, program=program)
    return program


@pytest.mark.each_value
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("convolve", "image", "weight"),
    [
        (F.conv1d, (2, 8, 9), (12, 8, 3)),
        (F.conv2d, (2, 8, 9, 7), (12, 8, 3, 2)),
        (F.conv3d, (2, 4, 5, 6, 7), (12, 4, 3, 1, 2)),
        (lambda x, w, b: F.conv2d(x, w, b, 2, 1, 2, 4), (2, 8, 9, 9), (12, 2, 3, 3)),
        (lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1), (2, 8, 5, 6), (8, 12, 3, 3)),
        (F.conv2d, (1, 8, 1, 1), (12, 8, 1, 1)),
    ],
)
def test_the_bias_is_added_by_a_loop(
    convolve: Callable[..., Any], image: tuple[int, ...], weight: tuple[int, ...], dynamic: bool
) -> None:
    program = check(convolve, torch.randn(image), torch.randn(weight), BIAS, dynamic=dynamic)
    assert bias_of(program) is None and len(program.loops) == 1


def test_a_result_without_elements_or_with_one_channel() -> None:
    check(F.conv2d, torch.randn(0, 8, 9, 9), torch.randn(12, 8, 3, 3), BIAS)
    check(F.conv2d, torch.randn(2, 8, 9, 9), torch.randn(1, 8, 3, 3), BIAS[:1])


def test_the_bias_may_be_a_view() -> None:
    check(lambda x, w, b: F.conv2d(x, w, b[::2]), torch.randn(2, 8, 9, 9), torch.randn(6, 8, 3, 3), BIAS)
    check(lambda x, w, b: F.conv2d(x, w, b[:1].expand(6)), torch.randn(2, 8, 9, 9), torch.randn(6, 8, 3, 3), BIAS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_as_right_as_eager(dtype: torch.dtype) -> None:
    """A large bias: added after the result was rounded, as eager does, or before, but not twice rounded on top."""
    x, w, b = torch.randn(2, 32, 9, 9), torch.randn(16, 32, 3, 3), 100 * torch.randn(16)
    x, w, b = x.to(dtype), w.to(dtype), b.to(dtype)
    program = lower(capture(F.conv2d, x, w, b), target_of=apart)
    (actual,) = interpret(program, [x, w, b])
    exact = F.conv2d(x.double(), w.double(), b.double())
    bare = F.conv2d(x, w) + b[:, None, None]  # what torch does on CUDA
    error, eagers = ((value.double() - exact).abs() for value in (actual, bare))
    assert error.max() <= eagers.max() and error.mean() <= eagers.mean() * 1.001


@pytest.mark.parametrize("groups", [1, 8])
def test_channels_last_stays(groups: int) -> None:
    x = torch.randn(2, 8, 9, 7).contiguous(memory_format=torch.channels_last)
    w = torch.randn(16, 8 // groups, 3, 3).contiguous(memory_format=torch.channels_last)
    program = check(lambda x, w, b: F.conv2d(x, w, b, groups=groups), x, w, torch.randn(16))
    assert bias_of(program) is None
    (loop,) = (operation for operation in program.operations if isinstance(operation, Loop))
    assert int(program.buffers[loop.stores[0].buffer].layout.stride[1]) == 1


def test_what_the_library_adds_on_its_way_out_is_left_to_it() -> None:
    x, w, b = torch.randn(2, 8, 9, 7), torch.randn(16, 1, 3, 3), torch.randn(16)
    depthwise = lambda x, w, b: F.conv2d(x, w, b, groups=8)
    assert bias_of(check(depthwise, x, w, b)) is not None
    on_cpu = lower(capture(F.conv2d, x, torch.randn(16, 8, 3, 3), b))
    assert bias_of(on_cpu) is not None and not on_cpu.loops
    check(F.conv2d, x.cfloat(), torch.randn(16, 8, 3, 3).cfloat(), b.cfloat())


def test_gpus_have_the_ability() -> None:
    assert "separate_bias" in target_named("H100 SXM").abilities and "separate_bias" not in target_of("cpu").abilities


class Block(torch.nn.Module):
    """A residual block whose convolutions have biases."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(16) if norm else torch.nn.Identity() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](self.first(x)).relu()
        return (x + self.norms[1](self.second(y))).relu()


def own_and_of_biases(schedule: Schedule) -> int:
    """litz's kernels, and the library's that sum a bias's gradient."""
    summed = [getattr(step, "target_name", "") == BACKWARD and step.args[10][2] for step in schedule.steps]
    return sum(isinstance(step, Kernel) for step in schedule.steps) + sum(map(bool, summed))


@pytest.mark.each_value
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_a_block_has_no_more_steps_than_with_the_bias_inside(
    norm: bool, last: bool, train: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none of its convolutions has a bias."""
    x = torch.randn(2, 16, 14, 14).contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    model = Block(norm).train(train).to(memory_format=torch.channels_last if last else torch.contiguous_format)

    def run(backend: Callable[..., Any]) -> None:
        torch._dynamo.reset()
        with torch.set_grad_enabled(train):
            model_out = torch.compile(model, backend=backend)(x)
        if train:
            model_out.sum().backward()

    schedules = cuda_schedules(run)
    calls = [step for schedule in schedules for step in schedule.steps if isinstance(step, Extern)]
    forward = [call for call in calls if call.target_name == "aten.convolution.default"]
    assert len(forward) == 2 and all(call.args[2] is None for call in forward)
    kernels = [own_and_of_biases(schedule) for schedule in schedules]
    describe._cuda_target_here.cache_clear()
    family = describe.nearest_family(90)
    fewer = replace(family, abilities=family.abilities - {"separate_bias"})
    monkeypatch.setattr(describe, "nearest_family", lambda capability: fewer)
    before = [own_and_of_biases(schedule) for schedule in cuda_schedules(run)]
    describe._cuda_target_here.cache_clear()
    assert all(now <= then for now, then in zip(kernels, before, strict=True))
    assert kernels[0] == before[0]


@pytest.mark.gpu
@NO_GPU
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_on_a_gpu_the_bias_costs_no_kernel(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 64, 56, 56, device="cuda").to(dtype).contiguous(memory_format=torch.channels_last)
    w = (torch.randn(64, 64, 3, 3, device="cuda") / 24).to(dtype).contiguous(memory_format=torch.channels_last)
    b = torch.randn(64, device="cuda").to(dtype)
    fn = lambda x, w, b: F.conv2d(x, w, b, padding=1).relu()
    compiled = torch.compile(fn, backend="litz", options={"cache_dir": tmp_path})
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        actual, eager = compiled(x, w, b), fn(x, w, b)
        exact = fn(x.double(), w.double(), b.double())
        assert actual.stride() == eager.stride()
        assert (actual.double() - exact).abs().max() <= 1.01 * (eager.double() - exact).abs().max() + 1e-6
        counts = []
        for call in (lambda: F.conv2d(x, w, padding=1), lambda: compiled(x, w, b), lambda: fn(x, w, b)):
            call()
            torch.cuda.synchronize()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
                call()
                torch.cuda.synchronize()
            counts.append(sum(row.count for row in seen.key_averages() if row.self_device_time_total > 0))
    bare, ours, eagers = counts
    # A bare one of float32 may have kernels that ours does without: an H200 took 4, and 4 with bias and relu.
    assert ours <= bare + 1 and eagers > ours

"""The CUDA path on a machine without a GPU: fake tensors are captured, scheduled and generated, kernels compiled.

Every Triton kernel of the models below is compiled for sm_90, to the cubin, which needs no device.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from litz.codegen.wrapper import generate_wrapper
from litz.pipeline import generate, make_compiler, plan_schedule, schedule_only
from litz.schedule import Schedule
from support.retarget import cuda_schedules
from support.triton_compiled import compile_only

pytest.importorskip("triton")
MODE = FakeTensorMode(allow_non_fake_inputs=True)


def compile_all(schedules: list[Schedule]) -> int:
    """Generate every kernel and compile it; how many different ones there were."""
    compiler = make_compiler()
    sources: dict[str, Any] = {}
    for schedule in schedules:
        for source in generate(plan_schedule(schedule, compiler), compiler).values():
            assert source.language == "triton"
            sources.setdefault(source.text, source)
    with ThreadPoolExecutor(4) as pool:
        for asm in pool.map(compile_only, sources.values()):
            assert asm["ptx"] and asm["cubin"]
    return len(sources)


@pytest.mark.ci_cases("dtype0")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gpt2(dtype: torch.dtype) -> None:
    transformers = pytest.importorskip("transformers")
    torch._dynamo.reset()
    config = transformers.GPT2Config(use_cache=False, n_layer=1, vocab_size=1000)
    model = transformers.GPT2LMHeadModel(config).to(dtype).eval()
    tokens = torch.randint(0, 100, (2, 32))

    def run(backend: Callable[..., Any]) -> None:
        with torch.no_grad():
            torch.compile(model, backend=backend)(tokens)

    schedules = cuda_schedules(run)
    assert len(schedules) == 1
    assert compile_all(schedules) >= 3


@pytest.mark.nightly
def test_resnet_training() -> None:
    """One block of each width of ResNet-50."""
    transformers = pytest.importorskip("transformers")
    torch._dynamo.reset()
    config = transformers.ResNetConfig(num_labels=10, depths=[1, 1, 1, 1])
    model = transformers.ResNetForImageClassification(config).train()
    pixels, labels = torch.randn(4, 3, 64, 64), torch.tensor([1, 2, 3, 4])

    def run(backend: Callable[..., Any]) -> None:
        torch.compile(model, backend=backend)(pixel_values=pixels, labels=labels).loss.backward()

    schedules = cuda_schedules(run)
    assert [schedule.program.name.rpartition("_")[2] for schedule in schedules] == ["forward", "backward"]
    assert compile_all(schedules) >= 20


def test_a_language_model_training_step() -> None:
    hidden = torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Dropout(0.1)
    model = torch.nn.Sequential(torch.nn.Embedding(100, 64), *hidden, torch.nn.Linear(128, 10)).to(torch.bfloat16)
    tokens, labels = torch.randint(0, 100, (32, 16)), torch.randint(0, 10, (512,))

    def step(tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels)

    schedules = cuda_schedules(lambda backend: torch.compile(step, backend=backend)(tokens, labels).backward())
    assert [schedule.program.name.rpartition("_")[2] for schedule in schedules] == ["forward", "backward"]
    assert compile_all(schedules) >= 3  # small ones share a launch


def test_tensors_without_elements() -> None:
    """Nothing moves along any axis of theirs, so that there is no best one."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.nn.functional.pad(x, (1, 1)), x.repeat(2, 2), x.flip(0), x.t() + 1, torch.cat([x, x], 1)

    schedules = cuda_schedules(lambda backend: torch.compile(f, backend=backend)(torch.randn(0, 3)))
    assert compile_all(schedules) >= 1


def test_dynamic_shapes() -> None:
    with MODE:
        x = torch.empty(8, 100, device="cuda")
    schedules = schedule_only(lambda x: torch.nn.functional.softmax(x * 2 + 1, -1), (x,), dynamic=True)
    assert schedules[0].program.hints
    assert compile_all(schedules) == 1


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, number: x * number,
        lambda x, number: x * number.to(x.device),
        lambda x, number: x + torch.log(torch.tensor(0.3)) * number.to(x.device, torch.float64),
    ],
    ids=["as it is", "moved", "moved and converted"],
)
def test_a_number_of_the_cpus_is_an_argument_of_the_kernel(compute: Callable[..., torch.Tensor]) -> None:
    """No copy from memory that is not pinned, once for each layer that has one: its value is filled in."""
    with MODE:
        x, number = torch.empty(8, 100, device="cuda"), torch.empty((), dtype=torch.float32)
    schedules = schedule_only(compute, (x, number))
    (schedule,) = schedules
    assert not schedule.externs and len(schedule.kernels) == 1
    plan, compiler = plan_schedule(schedule, make_compiler()), make_compiler()
    text = generate_wrapper(plan, generate(plan, compiler)).text
    assert text.count("_number_on(") == 1 and ".to(" not in text
    assert compile_all(schedules) == 1


@pytest.mark.ci_cases("dtype1")  # dtype1 has a conversion more
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_cross_entropy_is_one_kernel(dtype: torch.dtype) -> None:
    """It reads the scores and writes their gradient: nothing else is as large, such as a row of zeros and a one."""
    scores, labels = torch.randn(64, 501, dtype=dtype, requires_grad=True), torch.randint(0, 501, (64,))

    def step(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(scores.float(), labels)

    schedules = cuda_schedules(lambda backend: torch.compile(step, backend=backend)(scores, labels).backward())
    backward = schedules[1]
    assert len(backward.steps) == 1
    assert plan_schedule(backward, make_compiler()).memory.peak_bytes == 64 * 501 * dtype.itemsize
    assert compile_all(schedules) >= 2


@pytest.mark.gpu
def test_numbers_and_literals_reach_the_device_without_copies() -> None:

    def compute(x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        weights = torch.tensor([0.5, 2.0, -1.0, 4.0]).to(x.device)
        return x * weights / torch.log(torch.tensor(0.3)) + number + number.to(x.device)

    x, number = torch.randn(64, 4, device="cuda"), torch.tensor(0.75)
    compiled = torch.compile(compute, backend="litz", dynamic=False)
    torch.testing.assert_close(compiled(x, number), compute(x, number))
    compiled(x, number)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        out = compiled(x, torch.tensor(-3.0))
        torch.cuda.synchronize()
    assert not [event.key for event in recorded.key_averages() if "Memcpy HtoD" in event.key]
    torch.testing.assert_close(out, compute(x, torch.tensor(-3.0)))


def test_a_reduction_over_positions_that_sizes_divide() -> None:
    """A bias's gradient over a batch of heads, all sizes symbols: how far its values lie apart is asked for a split."""

    def summed(gradient: torch.Tensor) -> torch.Tensor:
        batch, heads, length, width = gradient.shape
        return gradient.permute(0, 2, 1, 3).reshape(batch * length, heads * width).sum(0)

    with MODE:
        gradient = torch.empty(8, 12, 1000, 64, device="cuda")
        (schedule,) = schedule_only(summed, [gradient], dynamic=True)
    assert [kernel.loop.is_reduction for kernel in schedule.kernels] == [True] * len(schedule.kernels)

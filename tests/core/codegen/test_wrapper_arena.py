"""The text of a wrapper whose small buffers lie in an arena; and such wrappers run on the CPU, planned as for CUDA."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from litz import pipeline
from litz import report as reports
from litz.codegen.wrapper import generate_wrapper
from litz.driver import stages
from litz.driver.builtin import builtin_plugins
from litz.execution import ExecutionPlan, plan_execution
from litz.pipeline import generate, make_compiler
from litz.schedule import Schedule
from litz_plugins import Target, TargetOf
from litz_plugins.manager import make_plugins
from support.compare import NO_GPU, close
from support.retarget import cuda_schedules


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """An arena for buffers on the CPU too."""

    def plan(schedule: Schedule, target_of: TargetOf, **given: Any) -> ExecutionPlan:
        def with_arena(device: torch.device) -> Target:
            return replace(target_of(device), abilities=frozenset({"arena"}))

        return plan_execution(schedule, **given, target_of=with_arena)

    monkeypatch.setattr(stages, "plan_execution", plan)


def with_arena(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` compiled for the CPU with an arena, and one kernel per loop so that there are many buffers."""
    torch._dynamo.reset()
    plugins = make_plugins(builtin_plugins(), entry_points=())

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return pipeline.compile_backend(gm, inputs, options={"fusion": False}, plugins=plugins)

    return torch.compile(f, backend=backend)


def addresses(text: str) -> set[int]:
    """The offsets that kernels are handed."""
    return {int(at or 0) for at in re.findall(r"\b_arena(?: \+ (\d+))?(?=[,)])", text)}


def test_kernels_take_addresses_in_one_allocation() -> None:

    def run(backend: Callable[..., Any]) -> None:
        def f(x: torch.Tensor) -> torch.Tensor:
            y = (x - x.mean()) / x.std()
            return torch.mm(y.t(), y * y.sum(0))

        torch.compile(f, backend=backend)(torch.randn(1 << 14, 64))

    (schedule,) = cuda_schedules(run)
    whole = pipeline.plan_schedule(schedule, make_compiler())
    plan = whole.memory
    text = generate_wrapper(whole, generate(whole, make_compiler())).text
    assert len(plan.arena) >= 2
    assert f"_arena_memory = _empty_cuda(({plan.arena_bytes},), (1,), torch.uint8)\n" in text
    assert text.count("_arena_memory.data_ptr()") == 1
    assert addresses(text) == set(plan.arena.values())
    for name, offset in plan.arena.items():
        assert f"{name} at {offset}" in text
        code = "\n".join(line for line in text.splitlines() if not line.strip().startswith("#"))
        assert not re.search(rf"\b{name}\b", code)


def batch_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Small statistics, forward and backward."""
    mean = x.mean(0)
    var = ((x - mean) ** 2).mean(0)
    spread = (weight * var.sum()).flip(0) * mean.flip(0)
    return torch.mm((x - mean) * torch.rsqrt(var + 0.1), weight.outer(spread)).tanh()


def test_a_training_step_runs_in_it() -> None:
    def step(f: Callable[..., Any]) -> tuple[torch.Tensor, ...]:
        out = f(x, weight)
        return out, *torch.autograd.grad(out.square().sum(), (x, weight))

    x, weight = (torch.randn(size, dtype=torch.float64, requires_grad=True) for size in ((64, 48), (48,)))
    with reports.collect() as found:
        results = step(with_arena(batch_norm))
    for actual, expected in zip(results, step(batch_norm), strict=True):
        torch.testing.assert_close(actual, expected)
    assert len(found) == 2
    for report in found:
        plan = report.plan.memory
        assert addresses(report.wrapper_source) == set(plan.arena.values())
        assert len(plan.arena) > len(set(plan.arena.values())) >= 2, report.name


@NO_GPU
@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_training_step_on_a_gpu(mode: str) -> None:
    """Several steps, other work between, so that memory of one call comes back in the next."""

    def step(f: Callable[..., Any]) -> tuple[torch.Tensor, ...]:
        out = f(x, weight)
        return out, *torch.autograd.grad(out.square().sum(), (x, weight))

    torch._dynamo.reset()
    compiled = torch.compile(batch_norm, backend="litz", mode=mode)
    with reports.collect() as found:
        for _ in range(3):
            x = torch.randn(1 << 14, 48, dtype=torch.float64, device="cuda", requires_grad=True)
            weight = torch.randn(48, dtype=torch.float64, device="cuda", requires_grad=True)
            for actual, expected in zip(step(compiled), step(batch_norm), strict=True):
                torch.testing.assert_close(actual, expected)
    assert all(report.plan.memory.arena for report in found)


def test_buffers_of_fixed_size_in_a_graph_of_dynamic_sizes() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        total = x.sum(0)
        high = (total * 2).flip(0) + total
        return x * (high.flip(0) - total.tanh().flip(0)) + high.cos().sum()

    compiled = with_arena(f)
    with reports.collect() as found:
        for rows in (5, 33):
            x = torch.randn(rows, 16)
            torch._dynamo.mark_dynamic(x, 0)
            close(compiled(x), f(x), f(x.double()))
    (report,) = found
    assert report.plan.memory.arena and not all(isinstance(item, str) for item in report.program.inputs)

"""Kernels that differ in names only are generated once, and come out as if each had been generated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from litz.driver import code as building
from litz.pipeline import make_compiler, plan_schedule, schedule_only
from litz.targets.cpp.codegen import CppCodegen
from litz_plugins import KernelSource
from support.retarget import cuda_schedules


class Layer(torch.nn.Module):
    """Two reductions, a transposed view, masks and constants."""

    def __init__(self, zero: float = 0.0) -> None:
        super().__init__()
        self.norm, self.mix, self.zero = torch.nn.LayerNorm(24), torch.nn.Linear(24, 24), zero

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.gelu(self.mix(self.norm(x)))
        y = torch.where(y > 0.5, y, self.zero).softmax(-1)
        return x + y.transpose(0, 1).reshape(x.shape) * 3


class Alike(torch.nn.Module):
    """Loops that are the same but for one thing each."""

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        tables = [a.sum(1), a.double().sum(1), b.sum(1), a.t().contiguous().sum(1), a[:, 1:].sum(1)]
        signs = [torch.where(c > 0, a, zero).cumsum(0) for zero in (0.0, -0.0, 1.0)]
        orders = [(a - b).cumsum(1), (b - a).cumsum(1), (a - a.flip(0)).cumsum(1)]
        flags = [(c > 1).cumsum(0), (c >= True).cumsum(0)]
        return tables, signs, orders, flags


def sources(plan: Any, compiler: Any, monkeypatch: pytest.MonkeyPatch, remembered: bool) -> dict[str, KernelSource]:
    with monkeypatch.context() as patched:
        if not remembered:
            for spec in compiler.specs.values():
                patched.setattr(type(spec.codegen), "names_nothing", False, raising=False)
        return building.generate(plan, compiler)


def graphs(fn: Callable[..., Any], *args: torch.Tensor, cuda: bool = False) -> list[Any]:
    if cuda:
        return cuda_schedules(lambda backend: torch.compile(fn, backend=backend, dynamic=False)(*args), make_compiler())
    return schedule_only(fn, args, dynamic=False)


MODELS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "layers": (torch.nn.Sequential(*(Layer(zero) for zero in (0.0, -0.0, 0.0, 0.0))), (torch.randn(6, 24),)),
    "alike": (Alike(), (torch.randn(7, 9), torch.randn(7, 9), torch.randn(7, 9))),
}


@pytest.mark.each_value
@pytest.mark.parametrize("cuda", [False, True], ids=["cpu", "cuda"])
@pytest.mark.parametrize("model", MODELS)
def test_as_if_generated(model: str, cuda: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text, settings and arguments of every kernel."""
    fn, args = MODELS[model]
    compiler = make_compiler()
    with torch.no_grad():
        schedules = graphs(fn, *args, cuda=cuda)
    for schedule in schedules:
        plan = plan_schedule(schedule, compiler)
        mine = sources(plan, compiler, monkeypatch, remembered=True)
        assert mine == sources(plan, compiler, monkeypatch, remembered=False)
        assert len({source.text for source in mine.values()}) > 1


def test_layers_are_generated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight layers ask the code generator no more often than four."""
    asked: list[str] = []
    generate = CppCodegen.generate

    def counted(self: CppCodegen, kernel: Any, context: Any) -> KernelSource:
        asked.append(kernel.name)
        return generate(self, kernel, context)

    monkeypatch.setattr(CppCodegen, "generate", counted)
    compiler, counts = make_compiler(), []
    for depth in (4, 8):
        asked.clear()
        with torch.no_grad():
            (schedule,) = graphs(torch.nn.Sequential(*(Layer() for _ in range(depth))), torch.randn(6, 24))
        found = building.generate(plan_schedule(schedule, compiler), compiler)
        counts.append((len(asked), len(found)))
    (few, of_few), (many, of_many) = counts
    assert few == many < of_few < of_many


def test_a_generator_that_names_something_is_asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a code generator of a plugin nothing is assumed."""

    class Naming:
        language = "none"

        def generate(self, kernel: Any, context: Any) -> KernelSource:
            return KernelSource(kernel.name, "none", f"// {kernel.name}", "kernel")

        def load(self, source: Any, context: Any) -> Callable[..., Any]:
            raise AssertionError

    compiler = make_compiler()
    with torch.no_grad():
        (schedule,) = graphs(torch.nn.Sequential(*(Layer() for _ in range(3))), torch.randn(6, 24))
    monkeypatch.setitem(compiler.specs, "cpu", replace(compiler.specs["cpu"], codegen=Naming()))  # type: ignore[index]
    found = building.generate(plan_schedule(schedule, compiler), compiler)
    assert len({source.text for source in found.values()}) == len(found) > 2

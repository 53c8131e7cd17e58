"""A plugin that does nothing wrong, part by part: what `support.broken_plugins` breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch

from litz.capture.passes.rewrite import Call, Changes, rewrite
from litz.ir import Extern
from litz.ir.build import call
from litz.lower.elementwise import elementwise
from litz.target import describe_cpu
from litz.targets.cpp.codegen import CppCodegen
from litz_plugins import (
    Choice,
    Estimate,
    LayoutPlan,
    Pass,
    TargetSpec,
    TemplateSpec,
    hookimpl,
)

aten = torch.ops.aten


def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What every plugin takes part in: an op for each kind of hook."""
    y = (x.sinh() * 2).relu()
    return (y @ w).tanh(), y.sum(0)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, 5, generator=generator), torch.randn(5, 6, generator=generator)


def lower_relu(ctx: Any, x: Any) -> Any:
    return elementwise(ctx, lambda a: call("maximum", a, call("sub", a, a)), (x,), x.dtype, compute=x.dtype)


def decompose_sinh(x: torch.Tensor) -> torch.Tensor:
    return (x.exp() - (-x).exp()) * 0.5


def double_by_adding(graph: Any, context: Any) -> Any:
    emit = {
        node: Call(aten.add.Tensor, (node.args[0], node.args[0]))
        for node in graph.nodes
        if node.target is aten.mul.Tensor and node.args[1] == 2
    }
    return rewrite(graph, Changes(emit=emit))


def rename_nothing(noun: Any, context: Any) -> Any:
    return replace(noun)


def my_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.einsum("ij,jk->ik", a, b)


def lay_out(graph: Any) -> LayoutPlan:
    names = [node.name for node in graph.nodes if node.target is aten.relu.default]
    return LayoutPlan({name: (1, 0) for name in names}, {name: "for the test" for name in names})


def estimate(operation: Any, target: Any, program: Any) -> Estimate:
    return Estimate(5.0, 4.0, 6.0, "five, always")


@dataclass(frozen=True)
class Good:
    """A plugin as its functions. Only what is not None takes part."""

    lowering: Callable[..., Any] | None = None
    decomposition: Callable[..., Any] | None = None
    graph_pass: Callable[..., Any] | None = None
    program_pass: Callable[..., Any] | None = None
    schedule_pass: Callable[..., Any] | None = None
    library: Callable[..., Any] | None = None
    make_choices: Callable[..., Any] | None = None
    layout: Callable[..., Any] | None = None
    estimate: Callable[..., Any] | None = None
    generate: Callable[..., Any] | None = None
    load: Callable[..., Any] | None = None
    observer: Callable[..., Any] | None = None

    def plugin(self) -> object:
        """The object with hooks."""
        hooks: dict[str, Callable[..., Any]] = {}
        if self.lowering is not None:
            hooks["litz_register_lowerings"] = lambda: {aten.relu.default: self.lowering}
        if self.decomposition is not None:
            hooks["litz_register_decompositions"] = lambda: {aten.sinh.default: self.decomposition}
        stages = {"graph": self.graph_pass, "program": self.program_pass, "schedule": self.schedule_pass}
        passes = [Pass(f"own_{stage}", stage, run) for stage, run in stages.items() if run is not None]  # type: ignore[arg-type]
        if passes:
            hooks["litz_register_passes"] = lambda options: passes
        if self.library is not None or self.make_choices is not None:
            make = self.make_choices or self.choices
            hooks["litz_register_templates"] = lambda options: [TemplateSpec("mine", ("mm",), make)]
            hooks["litz_select_choice"] = lambda choices: choices[-1]
        if self.layout is not None:
            hooks["litz_select_layout"] = self.layout
        if self.estimate is not None:
            hooks["litz_estimate_runtime"] = self.estimate
        if self.generate is not None or self.load is not None:
            codegen = Generator(self.generate, self.load)
            hooks["litz_register_targets"] = lambda options: [TargetSpec("cpu", describe_cpu, codegen)]
        if self.observer is not None:
            hooks["litz_compile_started"] = self.observer
        return SimpleNamespace(**{name: hookimpl(function) for name, function in hooks.items()})

    def choices(self, operation: Any, context: Any) -> Sequence[Any]:
        fields = (operation.name, operation.device, self.library or my_mm, operation.args)
        return [Choice("my mm", "template", Extern(*fields, outputs=operation.outputs))]


class Generator(CppCodegen):
    """Core's generator for the CPU, with functions in place of its own."""

    def __init__(self, generate: Callable[..., Any] | None, load: Callable[..., Any] | None) -> None:
        self._generate, self._load = generate, load

    def generate(self, kernel: Any, context: Any) -> Any:
        made = super().generate(kernel, context)
        return made if self._generate is None else self._generate(made)

    def load(self, source: Any, context: Any) -> Any:
        found = super().load(source, context)
        return found if self._load is None else self._load(found)


def take(result: Any) -> Any:
    """A good code generator's function: what core's made."""
    return result


def nothing(graph: Any) -> None:
    """A good observer."""


GOOD: Mapping[str, Callable[..., Any]] = {
    "lowering": lower_relu,
    "decomposition": decompose_sinh,
    "graph_pass": double_by_adding,
    "program_pass": rename_nothing,
    "schedule_pass": rename_nothing,
    "library": my_mm,
    "make_choices": Good().choices,
    "layout": lay_out,
    "estimate": estimate,
    "generate": take,
    "load": take,
    "observer": nothing,
}
"""A good function for each part of a plugin; its parameters are looked at by name."""


__all__ = ["GOOD", "Good", "inputs", "program"]

"""Hooks end to end: what a plugin registers changes what is compiled, and the result stays right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from litz import pipeline
from litz import report as reports
from litz.driver.builtin import builtin_plugins
from litz.ir import Extern
from litz_plugins import Choice, ChoiceContext, Estimate, LayoutPlan, Pass, TemplateSpec, hookimpl
from litz_plugins.manager import make_plugins


def compiled(fn: Callable[..., Any], plugin: object) -> Callable[..., Any]:
    """`fn` compiled by litz with one plugin more."""
    torch._dynamo.reset()
    plugins = make_plugins(builtin_plugins(), extra=[("mine", plugin)], entry_points=())
    return torch.compile(fn, backend=lambda gm, inputs: pipeline.compile_backend(gm, inputs, plugins=plugins))


def test_a_layout_plan_sets_strides_and_keeps_values() -> None:
    class Layouts:
        @hookimpl
        def litz_select_layout(self, graph: Any) -> LayoutPlan | None:
            names = [node.name for node in graph.nodes if node.op == "call_function" and "sin" in node.name]
            return LayoutPlan({name: (0, 2, 3, 1) for name in names}, {name: "for the test" for name in names})

    x, w = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    f = lambda x, w: torch.nn.functional.conv2d(x.sin(), w).relu()
    with reports.collect() as collected:
        out = compiled(f, Layouts())(x, w)
    torch.testing.assert_close(out, f(x, w))
    assert out.stride() == f(x, w).stride()
    (report,) = collected
    assert any(d.plugin == "mine" and "strides (192, 1, 24, 3)" in d.chosen for d in report.decisions)
    assert any(tuple(map(int, b.layout.stride)) == (192, 1, 24, 3) for b in report.program.buffers.values())


def test_a_layout_plan_for_what_is_not_there_names_the_plugin() -> None:
    class Layouts:
        @hookimpl
        def litz_select_layout(self, graph: Any) -> LayoutPlan:
            return LayoutPlan({"nothing": (0, 1)})

    with pytest.raises(Exception, match="plugin mine plans the order"):
        compiled(lambda x: x.sin() + 1, Layouts())(torch.randn(3, 4))


def test_a_template_takes_a_contractions_place() -> None:
    calls: list[str] = []

    def my_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        calls.append("mm")
        return torch.einsum("ij,jk->ik", a, b)

    class Templates:
        @hookimpl
        def litz_register_templates(self, options: Any) -> Sequence[TemplateSpec]:
            def choices(operation: Any, context: ChoiceContext) -> list[Choice]:
                fields = (operation.name, operation.device, my_mm, operation.args)
                return [Choice("my mm", "template", Extern(*fields, outputs=operation.outputs))]

            return [TemplateSpec("my_mm", ("mm",), choices)]

        @hookimpl
        def litz_select_choice(self, choices: Sequence[Choice]) -> Choice | None:
            return choices[-1]

    a, b = torch.randn(4, 5), torch.randn(5, 6)
    with reports.collect() as collected:
        out = compiled(lambda a, b: (a @ b).relu(), Templates())(a, b)
    torch.testing.assert_close(out, (a @ b).relu())
    assert calls == ["mm"]
    decision = next(d for d in collected[0].decisions if d.plugin == "mine")
    assert decision.chosen == "my mm" and [name for name, _ in decision.considered] == ["aten.mm.default", "my mm"]


def test_a_lowering_a_decomposition_and_an_estimate() -> None:
    seen: list[str] = []

    class Many:
        @hookimpl
        def litz_register_decompositions(self) -> Mapping[Any, Any]:
            return {torch.ops.aten.sinh.default: lambda x: (x.exp() - (-x).exp()) * 0.5}

        @hookimpl
        def litz_estimate_runtime(self, operation: Any) -> Estimate | None:
            return Estimate(5.0, 4.0, 6.0, "five, always")

        @hookimpl
        def litz_pass_finished(self, pass_: Pass) -> None:
            seen.append(pass_.name)

    x = torch.randn(8)
    with reports.collect() as collected:
        out = compiled(lambda x: x.sinh() + 1, Many())(x)
    torch.testing.assert_close(out, x.sinh() + 1)
    assert collected[0].total_us == 5.0 * len(collected[0].steps)
    assert "eliminate_dead_code" in seen and "part_segments" in seen


def test_a_decomposition_may_return_a_named_tuple() -> None:
    """As torch's own do, whose types take one argument for each result."""

    class Own:
        @hookimpl
        def litz_register_decompositions(self) -> Mapping[Any, Any]:
            op = torch.ops.aten.nll_loss2d_forward.default
            own = torch._decomp.core_aten_decompositions()[op]
            return {op: lambda *args: own(*args)}

    def f(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.nll_loss(x, at)

    x, at = torch.randn(1, 5, 2, 3), torch.randint(0, 5, (1, 2, 3))
    torch.testing.assert_close(compiled(f, Own())(x, at), f(x, at))


def test_a_raising_pass_names_plugin_and_pass() -> None:
    class Broken:
        @hookimpl
        def litz_register_passes(self, options: Any) -> Sequence[Pass]:
            def run(noun: Any, context: Any) -> Any:
                raise ValueError("oh no")

            return [Pass("breaks", "program", run)]

    with pytest.raises(Exception, match="mine") as caught:
        compiled(lambda x: x + 1, Broken())(torch.ones(3))
    assert "breaks" in str(caught.value) and "oh no" in str(caught.value)

"""Ops that a plugin's graph pass puts in are taken apart as those that capture traces, and fuse with the others."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from core.lowering.harness import capture
from litz import pipeline
from litz.capture.passes.check_pass import check_pass
from litz.capture.passes.rewrite import Call, Changes, rewrite
from litz.driver import stages
from litz.driver.builtin import builtin_plugins
from litz.ir import Extern
from litz_plugins import Pass, hookimpl
from litz_plugins.manager import make_plugins

aten = torch.ops.aten

GELU, SOFTMAX = aten.gelu.default, aten.softmax.int
"""In the table; and what torch itself makes of another op that is."""


class TanhBecomes:
    """A plugin: every tanh is `op(x, *args)`, its first result if it has several."""

    def __init__(self, op: Any, *args: Any, rules: Mapping[Any, Any] | None = None) -> None:
        self.op, self.args, self.rules = op, args, rules or {}

    @hookimpl
    def litz_register_passes(self, options: Any) -> list[Pass]:
        return [Pass("tanh_becomes", "graph", self.run, after=("eliminate_dead_code",))]

    @hookimpl
    def litz_register_decompositions(self) -> Mapping[Any, Any]:
        return self.rules

    def run(self, graph: Any, context: Any) -> Any:
        fresh, new = torch.fx.Graph(), {}
        for node in graph.nodes:
            new[node] = made = fresh.node_copy(node, new.__getitem__)
            if node.target is aten.tanh.default:
                made.target, made.args = self.op, (*made.args, *self.args)
                with node.meta["val"].fake_mode:
                    made.meta["val"] = self.op(node.args[0].meta["val"], *self.args)
                if isinstance(made.meta["val"], tuple):
                    new[node] = fresh.call_function(operator.getitem, (made, 0))
                    new[node].meta["val"] = made.meta["val"][0]
        return replace(graph, module=torch.fx.GraphModule(graph.module, fresh))


def compiled(function: Any, plugin: TanhBecomes, *inputs: Any, **given: Any) -> tuple[Any, list[Any]]:
    """What litz computes with the plugin, and the steps of its schedules."""
    torch._dynamo.reset()
    plugins = make_plugins(builtin_plugins(), extra=[("mine", plugin)], entry_points=())
    backend = lambda gm, examples: pipeline.compile_backend(gm, examples, plugins=plugins)
    schedules = pipeline.schedule_only(function, inputs, plugins=plugins, **given)
    torch._dynamo.reset()
    result = torch.compile(function, backend=backend, **given)(*inputs)
    return result, [step for schedule in schedules for step in schedule.steps]


@pytest.mark.each_value
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "op, args, dtype",
    [
        (GELU, (), torch.float32),
        (GELU, (), torch.bfloat16),
        (aten.silu.default, (), torch.float64),
        (SOFTMAX, (-1,), torch.float32),
        (aten._softmax.default, (1, False), torch.float32),
        (aten.nan_to_num.default, (), torch.float32),
        (aten.reshape.default, ((6, 8),), torch.float32),
    ],
    ids=lambda value: str(value),
)
def test_an_op_that_a_pass_puts_in_fuses(op: Any, args: tuple[Any, ...], dtype: torch.dtype, dynamic: bool) -> None:
    if dynamic and op is aten.reshape.default:
        pytest.skip("sizes of its own")
    x = torch.randn(6, 8).to(dtype)
    result, steps = compiled(lambda x: (x + 1).tanh() * 2, TanhBecomes(op, *args), x, dynamic=dynamic)
    torch.testing.assert_close(result, op(x + 1, *args) * 2)
    assert len(steps) == 1 and not isinstance(steps[0], Extern)


def test_one_of_several_results() -> None:
    x = torch.randn(6, 8)
    plugin = TanhBecomes(aten.native_layer_norm.default, [8], None, None, 1e-5)
    result, steps = compiled(lambda x: (x + 1).tanh() * 2, plugin, x)
    torch.testing.assert_close(result, torch.nn.functional.layer_norm(x + 1, [8]) * 2)
    assert len(steps) == 1 and not isinstance(steps[0], Extern)


def test_what_gives_its_argument_gives_a_copy() -> None:
    """dropout(x, 0) is x; what the graph returns for it is not the memory of its input."""
    x = torch.randn(6, 8)
    result, _ = compiled(lambda x: x.tanh(), TanhBecomes(aten.dropout.default, 0.0, True), x)
    torch.testing.assert_close(result, x)
    assert result.data_ptr() != x.data_ptr()


@pytest.mark.parametrize(
    "op, args, rule",
    [(GELU, (), None), (SOFTMAX, (-1,), None), (GELU, (), lambda x, approximate="none": NotImplemented)],
    ids=["None", "None, of torch's own", "NotImplemented"],
)
def test_an_op_that_a_plugin_keeps_whole(op: Any, args: tuple[Any, ...], rule: Any) -> None:
    x = torch.randn(6, 8)
    result, steps = compiled(lambda x: (x + 1).tanh() * 2, TanhBecomes(op, *args, rules={op: rule}), x)
    torch.testing.assert_close(result, op(x + 1, *args) * 2)
    assert len(steps) == 3 and isinstance(steps[1], Extern)


def test_a_rule_that_is_not_used() -> None:
    x = torch.randn(6, 3)
    rule = lambda x, approximate="none": x * torch.tensor([1.0, 2.0, 3.0])  # a constant, which is written
    result, _ = compiled(lambda x: (x + 1).tanh() * 2, TanhBecomes(GELU, rules={GELU: rule}), x)
    torch.testing.assert_close(result, torch.nn.functional.gelu(x + 1) * 2)


def test_a_rule_of_another_type_is_the_plugins_failure() -> None:
    rule = lambda x, approximate="none": x.double()
    with pytest.raises(Exception, match="'mine' failed in decomposition") as caught:
        compiled(lambda x: (x + 1).tanh() * 2, TanhBecomes(GELU, rules={GELU: rule}), torch.randn(6, 3))
    assert "returned float64 [6, 3] on cpu, where float32 [6, 3] on cpu is expected" in str(caught.value)


def test_ordinary_graphs_stay_the_same_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "decompose", lambda *args: pytest.fail("nothing was put in"))
    schedules = pipeline.schedule_only(lambda x: torch.nn.functional.gelu(x).softmax(-1) @ x, (torch.randn(8, 8),))
    assert schedules


def test_the_check_of_a_pass_makes_no_tensor() -> None:
    """A tensor that has no tensor among its arguments, too: of a device that is not here, or too large for memory."""
    graph = capture(lambda x: x.expand(2**45, 2).sin(), torch.ones(2))
    (sin,) = (node for node in graph.nodes if node.target is aten.sin.default)
    filled = rewrite(graph, Changes(emit={sin: Call(aten.full.default, ([2**45, 2], 1.0), {})}))
    assert check_pass("mine", graph, filled) is filled


def test_a_call_before_its_argument_is_an_error_that_names_both() -> None:
    graph = capture(lambda x: x.sin().cos().exp(), torch.ones(4))
    sin, cos, exp = (node for node in graph.nodes if node.op == "call_function")
    wrong = (
        (Changes(emit={sin: Call(aten.neg.default, (exp,))}), sin, exp),
        (Changes(drop=frozenset({cos})), exp, cos),
        (Changes(replace={sin: cos}), sin, cos),
    )
    for changes, place, taken in wrong:
        says = f"in the place of {place.name} stands what takes {taken.name}, which comes later, or is dropped"
        with pytest.raises(ValueError, match=says):
            rewrite(graph, changes)


def test_a_fake_result_that_is_not_the_call_s_is_said_from_the_call_on() -> None:
    graph = capture(lambda x: x.sin().cos().exp(), torch.ones(4))
    sin, _, exp = (node for node in graph.nodes if node.op == "call_function")
    wide = Call(aten._to_copy.default, (sin,), {"dtype": torch.float64}, {"val": sin.meta["val"].double()})
    changed = rewrite(graph, Changes(emit={exp: Call(aten.exp.default, (graph.placeholders[0],))}))
    assert check_pass("mine", graph, changed) is changed
    (cos,) = (node for node in graph.nodes if node.target is aten.cos.default)
    changed = rewrite(graph, Changes(emit={cos: wide}))
    with pytest.raises(
        Exception, match=r"exp gives float64 \[4\] on cpu, where float32 \[4\] on cpu is expected by the"
    ):
        check_pass("mine", graph, changed)


def test_an_index_by_numbers_may_get_another_tensor() -> None:
    """aten.index finds out its size by data where a mask is its index, and in no other case."""
    graph = capture(lambda x, at: x.cos().clone()[at], torch.ones(4), torch.tensor([2, 0]))
    cos, clone = (next(node for node in graph.nodes if op in str(node.target)) for op in ("cos", "clone"))
    changed = rewrite(graph, Changes(replace={clone: cos}))
    assert check_pass("mine", graph, changed) is changed


def test_a_fake_result_that_was_wrong_before_is_no_fault_of_a_pass() -> None:
    graph = capture(lambda x: x.cos().clone().exp(), torch.ones(4))
    cos, clone, exp = (node for node in graph.nodes if node.op == "call_function")
    with exp.meta["val"].fake_mode:
        exp.meta["val"] = torch.empty(4, dtype=torch.float64)
    changed = rewrite(graph, Changes(replace={clone: cos}))
    assert check_pass("mine", graph, changed) is changed


def test_a_call_without_a_fake_result_may_get_another_argument() -> None:
    """torch 2.11's assertions have no fake result."""
    graph = capture(lambda x: x.cos().clone().exp().neg(), torch.ones(4))
    cos, clone, exp, _ = (node for node in graph.nodes if node.op == "call_function")
    del exp.meta["val"]
    changed = rewrite(graph, Changes(replace={clone: cos}))
    assert check_pass("mine", graph, changed) is changed

"""Plugins in front of a Graph: passes of the stages "traced", "joint" and "partitioned", and a partitioner."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from functorch.compile import default_partition
from torch import Tensor

from litz import report as reports
from litz.capture.graph import Graph
from litz.capture.joint import Halves, JointGraph, TracedGraph
from litz.capture.joint.check import check_modules
from litz.errors import InvalidOptionError
from litz.pipeline import compile_backend, make_compiler
from litz_plugins import Pass, PassContext, PluginHookError, PluginWarning, hookimpl
from litz_plugins.manager import Plugins
from support.own_plugins import with_passes

aten = torch.ops.aten


def function(x: Tensor, w: Tensor) -> Tensor:
    return (torch.sin(x @ w) * 3).sum()


def with_cosines(traced: TracedGraph, context: PassContext) -> TracedGraph:
    """Cosines in place of sines: what nobody could take for a computation without this pass."""
    if not any(node.target is torch.sin and context.allows(node.name) for node in traced.nodes):
        return traced
    traced = traced.copy()
    for node in traced.nodes:
        if node.target is torch.sin:
            node.target = torch.cos
            context.record(node.name, "a cosine", "for the test", about=node.name)
    return traced


def doubled(joint: JointGraph, context: PassContext) -> JointGraph:
    """Products by 6 in place of those by 3, in the forward and in the backward."""
    joint = joint.copy()
    for node in joint.nodes:
        if node.target is aten.mul.Tensor and node.args[1] == 3:
            node.update_arg(1, 6)
    return joint


def recording(seen: list[str], halves: Halves, context: PassContext) -> Halves:
    seen.append(f"{context.stage} {type(halves).__name__} {halves.forward_outputs}")
    return halves


def wrong_size(joint: JointGraph, context: PassContext) -> JointGraph:
    joint = joint.copy()
    output = joint.module.graph.output_node()
    first, *rest = joint.outputs
    with joint.module.graph.inserting_before(output):
        item = joint.module.graph.call_function(aten.unsqueeze.default, (first, 0))
    item.meta = {"val": first.meta["val"].unsqueeze(0)}
    output.args = ((item, *rest),)
    return joint


def changing(joint: JointGraph, context: PassContext) -> JointGraph:
    for node in joint.nodes:
        if node.target is aten.mul.Tensor:
            node.update_arg(1, 5)
    return joint


def failing(noun: Any, context: PassContext) -> Any:
    raise RuntimeError("no idea")


def no_graph(noun: Any, context: PassContext) -> Any:
    return None


def plugin(*passes: Pass, **hooks: Callable[..., Any]) -> SimpleNamespace:
    unique = uuid.uuid4().hex  # no graph of another test is found

    @hookimpl
    def litz_register_passes() -> list[Pass]:
        return list(passes)

    @hookimpl
    def litz_cache_fingerprint() -> str:
        return unique

    named = {name: hookimpl(hook) for name, hook in hooks.items()}
    return SimpleNamespace(
        **{"litz_register_passes": litz_register_passes, "litz_cache_fingerprint": litz_cache_fingerprint, **named}
    )


def plugins_of(given: object, **how: Any) -> Plugins:
    return with_passes(("mine", given), **how)


def step(
    plugins: Plugins, fn: Callable[..., Tensor] = function, **options: Any
) -> tuple[Tensor, Tensor, list[reports.CompileReport]]:
    """The result and the gradient of a training step, and its reports."""
    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(5, 5, generator=generator) for _ in range(2))
    x.requires_grad_()
    backend = partial(compile_backend, options=options, plugins=plugins)
    with reports.collect() as collected:
        out = torch.compile(fn, backend=backend)(x, w)
        out.backward()
    assert x.grad is not None
    return out.detach(), x.grad, list(collected)


def eager(fn: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(5, 5, generator=generator, dtype=torch.float32).double() for _ in range(2))
    x.requires_grad_()
    out = fn(x, w)
    out.backward()
    assert x.grad is not None
    return out.detach().float(), x.grad.float()


def assert_computes(found: tuple[Tensor, Tensor, Any], fn: Callable[..., Tensor]) -> None:
    for ours, exact in zip(found[:2], eager(fn), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-4)


COSINES, DOUBLED = Pass("mine_cosines", "traced", with_cosines), Pass("mine_doubled", "joint", doubled)


def test_a_traced_pass_is_seen_in_forward_and_backward() -> None:
    found = step(plugins_of(plugin(COSINES)))
    assert_computes(found, lambda x, w: (torch.cos(x @ w) * 3).sum())
    forward, backward = found[2]
    (decision,) = [each for each in forward.decisions if each.chosen == "a cosine"]
    assert (decision.plugin, decision.stage, decision.key) == ("mine", "traced", "graph0_forward:mine_cosines/sin")
    assert not any(each.chosen == "a cosine" for each in backward.decisions)
    assert {"traced passes", "joint passes", "partition"} <= forward.stage_seconds.keys()


def test_a_joint_pass_is_seen_in_forward_and_backward() -> None:
    assert_computes(step(plugins_of(plugin(DOUBLED))), lambda x, w: (torch.sin(x @ w) * 6).sum())


def test_passes_are_ordered_with_cores() -> None:
    seen: list[str] = []
    halves = Pass("mine_last", "partitioned", partial(recording, seen), after=("read_saved_tensors",))
    first = Pass("mine_first", "joint", doubled, before=("read_sizes_alone",))
    names = [item.name for item in plugins_of(plugin(halves, first)).passes({})]
    assert names.index("mine_first") < names.index("read_sizes_alone") < names.index("read_saved_tensors")
    assert names.index("read_saved_tensors") < names.index("mine_last") < names.index("fold_constants")
    step(plugins_of(plugin(halves, first)))
    assert seen == ["partitioned Halves 1"]


def test_of_inference_there_is_no_joint_graph() -> None:
    seen: list[str] = []
    plugins = plugins_of(plugin(COSINES, Pass("mine_halves", "partitioned", partial(recording, seen))))
    torch._dynamo.reset()
    x, w = torch.randn(5, 5), torch.randn(5, 5)
    out = torch.compile(function, backend=partial(compile_backend, plugins=plugins))(x, w)
    torch.testing.assert_close(out, (torch.cos(x @ w) * 3).sum(), rtol=1e-4, atol=1e-4)
    assert not seen


@pytest.mark.parametrize("key", ["mine_cosines", "graph0_forward:mine_cosines", "graph0_forward:mine_cosines/sin"])
def test_a_veto_leaves_a_traced_pass_out(key: str) -> None:
    assert_computes(step(plugins_of(plugin(COSINES)), veto=[key]), function)


def test_a_veto_leaves_a_joint_pass_out() -> None:
    found = step(plugins_of(plugin(DOUBLED)), veto=["mine_doubled"])
    assert_computes(found, function)
    assert any(each.subject == "pass mine_doubled" and each.chosen == "not run" for each in found[2][0].decisions)


def test_a_veto_of_no_pass_is_an_error() -> None:
    with pytest.raises(InvalidOptionError, match="did you mean 'mine_cosines'"):
        make_compiler(options={"veto": ["mine_cosine"]}, plugins=plugins_of(plugin(COSINES)))


WRONG: dict[str, tuple[str, Any, str]] = {
    "raises, traced": ("traced", failing, "no idea"),
    "raises, joint": ("joint", failing, "no idea"),
    "raises, partitioned": ("partitioned", failing, "no idea"),
    "gives nothing": ("joint", no_graph, "returned None"),
    "gives another size": ("joint", wrong_size, "output 0 is"),
    "changes in place": ("joint", changing, "in place|changed"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_pass_that_fails_is_blamed(name: str) -> None:
    stage, run, said = WRONG[name]
    item: Any = Pass("mine_wrong", stage, run)  # type: ignore[arg-type]
    with pytest.raises(Exception, match=said) as caught:
        step(plugins_of(plugin(item)))
    text = str(caught.value)
    assert "mine" in text and f"mine_wrong' ({stage} stage)" in text
    with pytest.warns(PluginWarning, match="mine"):
        found = step(plugins_of(plugin(item), on_plugin_error="disable"))
    assert_computes(found, function)


# ------------------------------------------------------------------------------------------------------- partitioners


def save_everything(joint: JointGraph) -> Any:
    count = joint.forward_outputs
    return default_partition(joint.module, list(joint.inputs), num_fwd_outputs=count, **joint.more)


def lean_function(x: Tensor, w: Tensor) -> Tensor:
    return torch.sin(torch.cos(torch.tanh(x * w))).sum()


def test_a_partitioner_that_saves_everything() -> None:
    outputs: list[int] = []

    def litz_compile_started(graph: Graph) -> None:
        if graph.kind == "forward":
            outputs.append(len(graph.outputs))

    step(plugins_of(plugin(litz_compile_started=litz_compile_started)), lean_function)
    given = plugin(litz_partition=save_everything, litz_compile_started=litz_compile_started)
    found = step(plugins_of(given), lean_function)
    assert_computes(found, lean_function)
    usual, everything = outputs
    assert everything > usual
    (decision,) = [each for each in found[2][0].decisions if each.stage == "partitioned"]
    assert decision.plugin == "mine" and decision.chosen == "the partitioner of mine"


def test_a_partitioner_without_an_opinion_leaves_it_to_core() -> None:
    asked: list[str] = []

    def none(joint: JointGraph) -> None:
        asked.append(joint.name)

    assert_computes(step(plugins_of(plugin(litz_partition=none))), function)
    assert asked == ["graph0_joint"]


def test_generators_that_a_partitioner_hands_over_are_inputs() -> None:
    """torch gives both halves generators where a region of a checkpoint draws on a GPU."""
    checked: list[bool] = []

    def with_generators(joint: JointGraph) -> None:
        halves = save_everything(joint)
        for half, name in zip(halves, ("fwd_rng_state_0", "bwd_rng_state_0"), strict=True):
            with half.graph.inserting_before(next(iter(half.graph.nodes))):
                half.graph.placeholder(name)
        checked.append(check_modules(joint, halves) == halves)

    assert_computes(step(plugins_of(plugin(litz_partition=with_generators))), function)
    assert checked == [True]


def loses(joint: JointGraph) -> Any:
    forward, backward = save_everything(joint)
    output = forward.graph.output_node()
    output.args = (tuple(output.args[0][: joint.forward_outputs]),)
    return forward, backward


@pytest.mark.parametrize(
    ("partition", "said"), [(loses, "does not save"), (lambda joint: 3, "a tuple of two GraphModules")]
)
def test_a_partitioner_that_is_wrong_is_blamed(partition: Any, said: str) -> None:
    def litz_partition(joint: JointGraph) -> Any:
        return partition(joint)

    with pytest.raises(Exception, match=said) as caught:
        step(plugins_of(plugin(litz_partition=litz_partition)))
    assert "plugin 'mine' failed in litz_partition" in str(caught.value)
    with pytest.warns(PluginWarning, match="mine"):
        found = step(plugins_of(plugin(litz_partition=litz_partition), on_plugin_error="disable"))
    assert_computes(found, function)


# ---------------------------------------------------------------------------------------------------------- the caches


def test_what_is_kept_asks_nobody_and_another_plugin_traces_anew() -> None:
    calls: Counter[str] = Counter()

    def counted(traced: TracedGraph, context: PassContext) -> TracedGraph:
        calls["traced"] += 1
        return with_cosines(traced, context)

    def partition(joint: JointGraph) -> None:
        calls["partition"] += 1

    given = plugin(Pass("mine_counted", "traced", counted), litz_partition=partition)
    first = step(plugins_of(given), graph_cache=True)
    assert calls == {"traced": 1, "partition": 1}
    second = step(plugins_of(given), graph_cache=True)
    assert calls == {"traced": 1, "partition": 1}
    assert [report.graph_cache.split()[0] for report in second[2]] == ["hit", "hit"]
    assert "without a trace" in second[2][0].graph_cache
    torch.testing.assert_close(first[0], second[0], rtol=0, atol=0)
    assert_computes(second, lambda x, w: (torch.cos(x @ w) * 3).sum())
    assert_computes(step(plugins_of(plugin()), graph_cache=True), function)


def test_who_cannot_say_what_a_partitioner_hangs_on_is_not_kept() -> None:
    found = step(plugins_of(SimpleNamespace(litz_partition=hookimpl(save_everything))), graph_cache=True)
    assert found[2][0].graph_cache.startswith("not cacheable because the plugin mine was passed in as an object")


def test_a_copy_has_the_names_of_the_graph_and_the_names_of_new_nodes() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    gone = graph.call_function(aten.sin.default, (x,))
    graph.output((graph.call_function(aten.sin.default, (x,)),))
    graph.erase_node(gone)
    joint = JointGraph("graph0_joint", torch.fx.GraphModule({}, graph), 1)
    twin = joint.copy()
    assert [node.name for node in twin.nodes] == [node.name for node in joint.nodes]
    for noun in (joint, twin):
        with noun.module.graph.inserting_before(noun.module.graph.output_node()):
            noun.module.graph.call_function(aten.sin.default, (noun.placeholders[0],))
    assert [node.name for node in twin.nodes] == [node.name for node in joint.nodes]
    assert replace(joint, name="other").copy().name == "other"


def test_an_error_is_of_the_plugin() -> None:
    plugins = plugins_of(plugin(Pass("mine_wrong", "joint", failing)))
    with pytest.raises(PluginHookError, match="pass 'mine_wrong'"):
        plugins.run_passes("joint", JointGraph("graph0_joint", torch.fx.GraphModule({}, torch.fx.Graph()), 1), {})

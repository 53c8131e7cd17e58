"""A Graph that a plugin changed in place: found, put back, and the next plugin is not blamed for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from litz.capture.graph import Graph, make_graph
from litz_plugins import Pass, PluginHookError, Plugins, PluginWarning, hookimpl, make_plugins


def graph() -> Graph:
    module = make_fx(lambda x: torch.relu(x) + 1, tracing_mode="fake")(torch.ones(3))
    return make_graph("test", module, "inference")


def sum_of(noun: Graph) -> torch.fx.Node:
    return next(node for node in noun.module.graph.nodes if node.target is torch.ops.aten.add.Tensor)


def other_argument(noun: Graph) -> None:
    node = sum_of(noun)
    node.args = (node.args[0], 2)


def other_target(noun: Graph) -> None:
    sum_of(noun).target = torch.ops.aten.mul.Tensor


def other_value(noun: Graph) -> None:
    sum_of(noun).meta["val"] = None


def one_node_less(noun: Graph) -> None:
    node = sum_of(noun)
    node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
    noun.module.graph.erase_node(node)


CHANGES = {
    other_argument: "the node add of Graph test",
    other_target: "the node add of Graph test",
    other_value: "the node add of Graph test",
    one_node_less: "the nodes of Graph test",
}


def plugins_of(change: Any, **known: Any) -> Plugins:
    """Three observers of passes, of which the second changes the graph after the second pass."""

    def observer(change: Any) -> SimpleNamespace:
        @hookimpl
        def litz_pass_finished(pass_: Pass, after: Graph) -> None:
            if pass_.name == "two":
                change(after)

        return SimpleNamespace(litz_pass_finished=litz_pass_finished)

    idle = observer(lambda noun: None)
    passes = [Pass(name, "graph", lambda noun, context: noun) for name in ("one", "two", "three")]
    core = SimpleNamespace(litz_register_passes=hookimpl(lambda: passes))
    extra = [("a", idle), ("b", observer(change)), ("c", observer(lambda noun: None))]
    return make_plugins([("core", core)], extra=extra, entry_points=(), **known)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_named(change: Any) -> None:
    noun = graph()
    before = str(noun.module.graph)
    with pytest.raises(PluginHookError, match="plugin 'b' failed in litz_pass_finished") as caught:
        plugins_of(change).run_passes("graph", noun, {})
    assert f"it changed {CHANGES[change]} in place" in str(caught.value)
    assert str(noun.module.graph) == before and sum_of(noun).meta["val"] is not None


@pytest.mark.parametrize("change", CHANGES)
def test_the_next_plugin_is_not_blamed_for_it(change: Any) -> None:
    noun = graph()
    plugins = plugins_of(change, on_plugin_error="disable")
    with pytest.warns(PluginWarning) as caught:
        assert plugins.run_passes("graph", noun, {}) is noun
    assert len(caught) == 1 and plugins.names() == ("core", "a", "c")


def test_between_stages_a_graph_may_be_changed_by_whom_it_belongs_to() -> None:
    noun, plugins = graph(), plugins_of(lambda noun: None)
    for _ in range(2):
        plugins.run_passes("graph", noun, {})
        other_argument(noun)

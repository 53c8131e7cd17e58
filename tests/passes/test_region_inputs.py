"""What one region of torch.utils.checkpoint gives another is saved, so that the backward computes each region when its
turn comes, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint

from litz.capture.graph import Graph
from litz.capture.joint.nouns import JointGraph
from litz_passes.joint.region_inputs import save_region_inputs
from passes.test_saved_positions import eager, graphs_of

aten = torch.ops.aten
Fn = Callable[..., Tensor]
BEGIN = aten.tanh.default
"""What each region begins with, and nothing else calls."""
REGIONS = 4


def heads(x: Tensor, weight: Tensor) -> Tensor:
    """Ends with a view of an attention's result, which is one of several."""
    parts = (x.tanh() @ weight).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2)


def one_head(x: Tensor, weight: Tensor) -> Tensor:
    """Ends with an attention's result itself."""
    q, k, v = (x.tanh() @ weight).chunk(3, -1)
    return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]


def region(fn: Fn, x: Tensor, weight: Tensor) -> Tensor:
    return checkpoint(fn, x, weight, use_reentrant=False)


BOUNDARIES: dict[str, Fn] = {
    "a view": lambda x, w: region(heads, x, w),
    "an element": lambda x, w: region(one_head, x, w),
    "a view of a sum": lambda x, w: (
        region(lambda x, w: (x.tanh() @ w)[..., :16].sin().transpose(1, 2), x, w.t()[:16]).mT
    ),
    "a sum between": lambda x, w: x + region(heads, x, w),
    "functions between": lambda x, w: (region(heads, x, w) * 2).sin(),
    "a view between": lambda x, w: region(heads, x, w).transpose(1, 2).clone().transpose(1, 2),
}


@cache
def of_layers(case: str) -> tuple[list[Graph], Tensor, Tensor]:
    """The graphs of four layers, their gradient, and eager's of the same numbers in float64."""

    def layers(x: Tensor, weight: Tensor) -> Tensor:
        for _ in range(REGIONS):
            x = BOUNDARIES[case](x, weight)
        return x

    torch.manual_seed(0)
    x, weight = torch.randn(2, 6, 16), (torch.randn(16, 48) / 4).requires_grad_()
    graphs, gradient = graphs_of(layers, x, weight)
    return graphs, gradient, eager(layers, x.double(), weight.double())


def begun(node: torch.fx.Node) -> int:
    """How many regions the backward computes to have a tensor."""
    found, queue = set[torch.fx.Node](), [node]
    while queue:
        item = queue.pop()
        if item not in found:
            found.add(item)
            queue += item.all_input_nodes
    return sum(item.target == BEGIN for item in found)


@pytest.mark.ci_cases("a view", "a sum between")
@pytest.mark.parametrize("case", BOUNDARIES)
def test_no_region_is_computed_for_another(case: str) -> None:
    (_, backward), gradient, exact = of_layers(case)
    again = backward.module.graph.find_nodes(op="call_function", target=BEGIN)
    assert len(again) == REGIONS
    assert [begun(node) for node in again] == [1] * REGIONS
    torch.testing.assert_close(gradient.double(), exact, rtol=1e-4, atol=1e-5)


def marked(*nodes: tuple[str, Any, tuple[str, ...], int | None]) -> dict[str, str]:
    """What is saved of a joint graph after the pass: by node, the call that has the mark. nodes: name, op, arguments
    and region."""
    graph, made = torch.fx.Graph(), dict[str, torch.fx.Node]()
    with FakeTensorMode():
        for name, target, given, region in nodes:
            args = tuple(made[each] for each in given)
            made[name] = (
                graph.create_node("call_function", target, args, name=name) if args else graph.placeholder(name)
            )
            values = [each.meta["val"] for each in args]
            made[name].meta = {"val": target(*values) if args else torch.empty(4, 4)}
            if region is not None:
                made[name].meta |= {"recompute": CheckpointPolicy.PREFER_RECOMPUTE, "ac_graph_id": region}
        graph.output(tuple(made.values()))
    joint = JointGraph("graph0_joint", torch.fx.GraphModule({}, graph))
    found = save_region_inputs(joint, cast("Any", None))
    marks = [node for node in found.nodes if node.meta.get("recompute") == CheckpointPolicy.MUST_SAVE]
    assert (found is joint) is not bool(marks)
    return {node.name: str(node.target) for node in marks}


def test_only_what_needs_another_region_is_saved() -> None:
    """Not what is made of inputs alone, nor what nobody but the same region or an earlier one reads."""
    sin, transposed, x = aten.sin.default, aten.t.default, ("x", None, (), None)
    own = x, ("mask", sin, ("x",), None), ("a", sin, ("mask",), 1), ("b", sin, ("a",), 1), ("end", sin, ("b",), None)
    assert marked(*own) == {}
    two = x, ("a", sin, ("x",), 1), ("b", sin, ("a",), None), ("c", sin, ("b",), None), ("d", sin, ("c",), 2)
    assert marked(*two) == {"c": "aten.sin.default"}
    views = x, ("a", sin, ("x",), 1), ("b", transposed, ("a",), 1), ("c", sin, ("b",), 2), ("d", sin, ("c",), 2)
    assert marked(*views) == {"view_of_default": "prims.view_of.default"}
    inner = x, ("a", sin, ("x",), 2), ("b", sin, ("a",), 1), ("c", sin, ("b",), 1)
    assert marked(*inner) == {}

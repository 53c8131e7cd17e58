"""Windows of `unfold` that are written in place.

In and out: dynamo's graph. AOTAutograd makes a new tensor of the written windows by the gradient of `unfold`, which
knows nothing of the elements that lie in no window: these would become 0. Windows by `as_strided`, at the same sizes,
strides and offset, are written back over the tensor that was there. AOTAutograd takes `as_strided` for the first of
several views alone, so the windows are views of the tensor whose memory they lie in.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from litz.capture import torch_api
from litz.capture.joint.nouns import TracedGraph
from litz_plugins.records import PassContext

LAYOUT = ("size", "stride", "storage_offset")
"""The methods of a tensor that say what `as_strided` asks for, in its order."""


def keep_around_windows(traced: TracedGraph, context: PassContext) -> TracedGraph:
    """Returns the graph with `as_strided` in the place of each `unfold` whose windows are written."""
    unfolds = traced.module.graph.find_nodes(op="call_method", target="unfold")
    found = {
        node.name: owner.name
        for node in unfolds
        if _is_apart(node) and _is_written(node) and (owner := _owner(node)) is not None and context.allows(node.name)
    }
    if not found:
        return traced
    traced = traced.copy()
    named = {node.name: node for node in traced.nodes}
    for node in map(named.__getitem__, found):
        readers, value = list(node.users), node.meta["example_value"]
        with node.graph.inserting_before(node.next):
            layout = [node.graph.call_method(method, (node,)) for method in LAYOUT]
            windows = node.graph.call_method("as_strided", (named[found[node.name]], *layout))
        for part, method in zip(layout, LAYOUT, strict=True):
            part.meta["example_value"] = getattr(value, method)()
        windows.meta = {**node.meta}
        for reader in readers:
            reader.replace_input_with(node, windows)
        reason = "what lies in no window would become 0"
        context.record(node.name, "write through as_strided", reason, about=node.name)
    return traced


def _is_apart(node: torch.fx.Node) -> bool:
    """Returns whether no two windows share an element. What a write gives where they do is nobody's promise, and
    AOTAutograd refuses that."""
    named: Any = {**dict(zip(("dimension", "size", "step"), node.args[1:], strict=False)), **node.kwargs}
    size, step = named["size"], named["step"]
    return isinstance(size, int) and isinstance(step, int) and step >= size


def _owner(node: torch.fx.Node) -> torch.fx.Node | None:
    """Returns the tensor that the windows are a view of, through other views or not; None where memory is read there as
    another type."""
    windows, owner = node.meta["example_value"], node
    while parents := [each for each in owner.all_input_nodes if _lies_in(windows, each.meta.get("example_value"))]:
        owner = parents[0]
    value = owner.meta["example_value"]
    alike = [(each.dtype, each.is_conj(), each.is_neg()) for each in (value, windows)]
    return owner if alike[0] == alike[1] else None


def _is_written(node: torch.fx.Node) -> bool:
    """Returns whether a call writes what a node gives, or a view of that."""
    windows, views = node.meta["example_value"], [node]
    for view in views:
        if any(_writes(user) and user.args[0] is view for user in view.users):
            return True
        values = ((user, tree_leaves(user.meta.get("example_value"))) for user in view.users if user not in views)
        views += [user for user, parts in values if any(_lies_in(windows, part) for part in parts)]
    return False


def _lies_in(whole: torch.Tensor, part: Any) -> bool:
    return isinstance(part, torch.Tensor) and torch_api.share_memory(whole, part)


def _writes(node: torch.fx.Node) -> bool:
    """Returns whether a call writes its first argument."""
    name: Any = node.target
    return node.target is operator.setitem or (node.op == "call_method" and name[-1:] == "_" and name[-2:] != "__")


__all__ = ["keep_around_windows"]

"""Sums of tensors that all lie alike, through the additions between them that nothing else reads."""

from __future__ import annotations

import torch

from litz.capture.passes.rewrite import same_geometry, tensor_of
from litz_plugins.patterns import CallPattern, Capture

aten = torch.ops.aten

_SUM = CallPattern(aten.add.Tensor, Capture("left"), Capture("right"))


def is_sum(node: torch.fx.Node) -> bool:
    """Returns whether the node is the sum of two tensors of its own size, strides and type, in floating point."""
    found, value = _SUM.match(node), tensor_of(node)
    if found is None or value is None or not value.is_floating_point():
        return False
    return all(isinstance(item, torch.fx.Node) and same_geometry(item, node) for item in found.named.values())


def is_whole_sum(node: torch.fx.Node) -> bool:
    """Returns whether the node is a sum, and not a part of one that nothing else reads."""
    return is_sum(node) and not (len(node.users) == 1 and all(is_sum(user) for user in node.users))


def terms_of(node: torch.fx.Node) -> tuple[list[torch.fx.Node], list[torch.fx.Node]]:
    """Returns what is summed from left to right, and the additions before the last one, the latest first. These
    additions have no other readers. A term that is added twice is in the list twice."""
    found: list[torch.fx.Node] = []
    partial: list[torch.fx.Node] = []
    while True:
        left, right = node.args
        assert isinstance(left, torch.fx.Node) and isinstance(right, torch.fx.Node)
        if is_sum(right):
            left, right = right, left
        found.append(right)
        if not is_sum(left) or len(left.users) != 1:
            return [left, *found[::-1]], partial
        partial.append(left)
        node = left


__all__ = ["is_sum", "is_whole_sum", "terms_of"]

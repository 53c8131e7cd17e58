"""What it costs to compute a node of a forward again, and which nodes may be.

In: a node of a joint graph. Out: microseconds by the figures of its device: arithmetic and traffic, the larger. What
counts in the end is the time of the whole plan (`litz_passes.memory.plans`): these prices only make candidates.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from litz.capture.torch_api import (
    aliased_argument,
    is_collective,
    is_random,
    is_torchs,
    without_guards,
    written_arguments,
)
from litz.target import rate_kind
from litz.target.times import longest, matrix, memory
from litz_plugins import TargetOf

from ..nodes import policy_of
from .sizes import Sizes


def may_run_again(node: torch.fx.Node) -> bool:
    """Returns whether a budget may have the backward compute a node again: a call of torch's that gives the same values
    each time and does nothing else."""
    if node.op == "get_attr":
        return True
    target = node.target
    if node.op != "call_function" or policy_of(node) is not None or is_random(target) or is_collective(target):
        return False
    if isinstance(target, torch._ops.OpOverload):
        return is_torchs(node) and not written_arguments(node) and not target._schema.is_mutable
    return not isinstance(target, torch._ops.OperatorBase)  # getitem, and arithmetic of sizes; no higher-order op


def has_the_same_bits(node: torch.fx.Node) -> bool:
    """Returns whether a second call has the bits of the first one for certain: torch's kernels repeat on a CPU. On a
    GPU some add in the order in which threads come, and a library may choose another kernel for operands elsewhere."""
    values = _parts(node.meta.get("val"))
    return all(value.device.type == "cpu" for value in values if isinstance(value, torch.Tensor))


def microseconds(nodes: Iterable[torch.fx.Node], sizes: Sizes, target_of: TargetOf) -> float:
    """Returns the time of nodes that run one after the other."""
    return sum(price(node, sizes, target_of) for node in nodes)


def price(node: torch.fx.Node, sizes: Sizes, target_of: TargetOf) -> float:
    """Returns the time of one node in µs; 0 for a view, and for what is no tensor."""
    values = [value for value in _parts(node.meta.get("val")) if isinstance(value, torch.Tensor)]
    if node.op != "call_function" or not values or aliased_argument(node) is not None:
        return 0.0
    target = target_of(values[0].device)
    with without_guards(sizes.shape_env):
        written = sum(sizes.hint(value.numel()) * value.itemsize for value in values)
        flops = _flops(node, sizes)
    read = sum(sizes.nbytes(item) for item in node.all_input_nodes)
    return longest((memory(read + written, target), matrix(flops, rate_kind(values[0].dtype), target))).us


def _parts(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _flops(node: torch.fx.Node, sizes: Sizes) -> int:
    """Returns the arithmetic of a contraction, 0 of all else."""
    count = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if count is None:
        return 0
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda item: item.meta.get("val"))
    return sizes.hint(count(*args, **kwargs, out_val=node.meta.get("val")))


__all__ = ["has_the_same_bits", "may_run_again", "microseconds", "price"]

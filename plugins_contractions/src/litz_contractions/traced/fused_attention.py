"""scaled_dot_product_attention in a form that torch has a fused kernel for.

In and out: dynamo's graph. Where torch has no fused kernel it computes scores, weights and results one after the other,
in float32. Torch has none for heads that share keys (`enable_gqa=True`) with a mask, and none for a mask whose last
dimension is not contiguous, as an expanded one's. So keys and values are repeated before the call, which is what
`enable_gqa` means by its definition, where torch has a fused kernel for that; and such a mask is copied. Attention
stays one call then; litz reads keys and masks from before the copies where it has a kernel of its own
(`litz_contractions.attention.in_place`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from litz.capture import torch_api
from litz.capture.joint import TracedGraph
from litz.capture.promised import differs
from litz_plugins import TargetOf
from litz_plugins.records import PassContext

from .torch_kernels import is_unfused

Unfused = Callable[..., bool]
"""Takes the arguments of scaled_dot_product_attention; says whether torch has no fused kernel for them."""


NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""The names of the positional arguments, in order."""


def has_fused_attention(target_of: TargetOf, query: torch.Tensor) -> bool:
    """Returns whether torch has fused kernels of attention for a tensor's device, as its target says."""
    return "fused_attention" in target_of(query.device).abilities


def fuse_attention(traced: TracedGraph, context: PassContext, unfused: Unfused = is_unfused) -> TracedGraph:
    """Returns the graph with calls of scaled_dot_product_attention in forms that torch has a fused kernel for, on
    devices that torch has such kernels for. unfused: whether torch has no fused kernel for some arguments."""
    has_fused = partial(has_fused_attention, context.target_of)
    found = {
        node.name: changes
        for node in traced.module.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)
        if (changes := _changes(node, unfused, has_fused)) and context.allows(node.name)
    }
    if not found:
        return traced
    traced = traced.copy()
    for node in traced.module.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention):
        if node.name in found:
            named = _named(node)
            for calls in found[node.name]:
                named = _apply(node, named, calls)
            with torch_api.fake_mode_around(named.values()):
                keep_strides(node, F.scaled_dot_product_attention(**named))
    return traced


def _named(node: torch.fx.Node) -> dict[str, Any]:
    """The fake arguments of a call, by name."""
    values: Any = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda each: each.meta.get("example_value"))
    args, kwargs = values
    return {**dict(zip(NAMES, args, strict=False)), **kwargs}


def _changes(
    node: torch.fx.Node, unfused: Unfused, has_fused: Callable[[torch.Tensor], bool]
) -> list[dict[str, Method]]:
    """Returns the changes to the arguments of a call, one after the other."""
    named = _named(node)
    tensors: list[Any] = [named.get(name) for name in NAMES[:3]]
    if not all(isinstance(each, torch.Tensor) and each.ndim == 4 for each in tensors) or not has_fused(tensors[0]):
        return []
    # Copying a mask costs little beside the attention, even where torch still computes that in pieces.
    mask = named.get("attn_mask")
    strided = isinstance(mask, torch.Tensor) and mask.ndim and mask.stride(-1) != 1 and mask.shape[-1] != 1
    copied: dict[str, Method] = {"attn_mask": ("contiguous", ())} if strided else {}
    if copied:
        named = _changed(named, copied)
    repeated = _heads_repeated(named)
    if not (repeated and unfused(**named) and not unfused(**_changed(named, repeated))):
        repeated = {}
    return [calls for calls in (copied, repeated) if calls]


VIEWS = frozenset(
    {"contiguous", "flatten", "permute", "reshape", "squeeze", "transpose", "unflatten", "unsqueeze", "view"}
)
"""Methods whose results have strides that follow from those of the tensor."""


def keep_strides(node: torch.fx.Node, made: torch.Tensor) -> None:
    """Copy a call's result to eager's strides where the program can see others. made: the result as it is now, fake."""
    graph: Any = node.graph
    eager: torch.Tensor = node.meta["example_value"]
    if not _is_seen(node, made):
        return
    order = sorted(range(eager.ndim), key=lambda dim: eager.stride(dim), reverse=True)
    back = [order.index(dim) for dim in range(eager.ndim)]
    readers, last = list(node.users), node
    for method, arguments in (("permute", order), ("contiguous", ()), ("permute", back)):
        with graph.inserting_after(last):
            last = graph.call_method(method, (last, *arguments))
        last.meta = {**node.meta}
    for reader in readers:
        reader.replace_input_with(node, last)


def _is_seen(node: torch.fx.Node, value: torch.Tensor) -> bool:
    """Returns whether the program can see that a node has the strides of `value`, rather than those of its example."""
    if not differs(value, node.meta["example_value"], strides=True):
        return False
    for user in node.users:
        if user.op != "call_method" or user.target not in VIEWS or node in user.args[1:]:
            return True
        arguments: Any = torch.fx.map_arg((user.args[1:], dict(user.kwargs)), lambda each: each.meta["example_value"])
        try:
            viewed = getattr(value, str(user.target))(*arguments[0], **arguments[1])
        except (RuntimeError, ValueError):  # these strides allow no such view
            return True
        if _is_seen(user, viewed):
            return True
    return False


Method = tuple[str, tuple[Any, ...]]
"""A method of a tensor, and its arguments."""


def _heads_repeated(named: dict[str, Any]) -> dict[str, Method]:
    heads = [named[name].shape[1] for name in NAMES[:3]]
    if not named.get("enable_gqa") or not all(isinstance(count, int) for count in heads) or heads[1] != heads[2]:
        return {}
    if heads[1] == 0 or heads[0] % heads[1] != 0 or heads[0] == heads[1]:
        return {}
    repeat = ("repeat_interleave", (heads[0] // heads[1], 1))
    return {"key": repeat, "value": repeat}


def _changed(named: dict[str, Any], calls: dict[str, Method]) -> dict[str, Any]:
    made = {name: getattr(named[name], method)(*given) for name, (method, given) in calls.items()}
    return {**named, **made, **({"enable_gqa": False} if "key" in calls else {})}


def _apply(node: torch.fx.Node, named: dict[str, Any], calls: dict[str, Method]) -> dict[str, Any]:
    """Change the node, and say what its arguments are then."""
    graph: Any = node.graph
    changed = _changed(named, calls)
    for name, (method, arguments) in calls.items():
        position = NAMES.index(name)
        given = node.args[position] if len(node.args) > position else node.kwargs[name]
        with graph.inserting_before(node):
            call = graph.call_method(method, (given, *arguments))
        call.meta = {**node.meta, "example_value": changed[name]}
        if len(node.args) > position:
            node.update_arg(position, call)
        else:
            node.update_kwarg(name, call)
    if "key" in calls:
        node.update_kwarg("enable_gqa", False)
    return changed

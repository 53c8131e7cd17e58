"""scaled_dot_product_attention whose heads share keys, in a form that torch has a fused kernel for.

In and out: dynamo's graph. With `enable_gqa=True` and a mask, torch has no fused kernel: it computes scores, weights
and results one after the other, in float32, after it has repeated keys and values itself. Where it has a fused kernel
for keys and values that were repeated before, they are: what `enable_gqa` means by its definition. So attention stays
one call, and what was repeated is read from before that where litz has a kernel for it
(`litz.contractions.attention.in_place`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from litz.capture import torch_api

Unfused = Callable[..., bool]
"""Of the arguments of scaled_dot_product_attention: has torch no fused kernel for them?"""


def repeat_shared_heads(gm: torch.fx.GraphModule, unfused: Unfused = torch_api.is_unfused) -> None:
    """Change the graph where that is known to help."""
    changed = False
    for node in gm.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention):
        changed |= _repeat(node, unfused)
    if changed:
        gm.recompile()


def _repeat(node: torch.fx.Node, unfused: Unfused) -> bool:
    if not node.kwargs.get("enable_gqa"):
        return False
    values: Any = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda each: each.meta.get("example_value"))
    args, kwargs = values
    named = {**dict(zip(("query", "key", "value"), args, strict=False)), **kwargs}
    tensors: list[Any] = [named.get(name) for name in ("query", "key", "value")]
    if not all(isinstance(each, torch.Tensor) and each.ndim == 4 for each in tensors):
        return False
    query, key, value = tensors
    heads = [each.shape[1] for each in tensors]
    if not all(isinstance(count, int) for count in heads) or heads[1] != heads[2]:
        return False
    if heads[1] == 0 or heads[0] % heads[1] != 0 or heads[0] == heads[1]:
        return False
    others = {name: each for name, each in named.items() if name not in ("query", "key", "value")}
    others |= dict(zip(("attn_mask", "dropout_p", "is_causal"), args[3:], strict=False))
    times = heads[0] // heads[1]
    repeated = [each.repeat_interleave(times, 1) for each in (key, value)]
    without = {**others, "enable_gqa": False}
    if not unfused(query, key, value, **others) or unfused(query, *repeated, **without):
        return False
    graph: Any = node.graph
    for position, name, made in ((1, "key", repeated[0]), (2, "value", repeated[1])):
        given = node.args[position] if len(node.args) > position else node.kwargs[name]
        with graph.inserting_before(node):
            call = graph.call_method("repeat_interleave", (given, times, 1))
        call.meta = {**node.meta, "example_value": made}
        if len(node.args) > position:
            node.update_arg(position, call)
        else:
            node.update_kwarg(name, call)
    node.update_kwarg("enable_gqa", False)
    return True

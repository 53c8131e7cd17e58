"""Lowering of flex_attention's backward: an `AttentionBackward`, where the device has kernels for it.

The backward stays a library call elsewhere: torch has no such backward on a CPU, and where a tensor that a `score_mod`
has captured needs a gradient, scores would have to be scattered into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch

from litz.ir import Node, build
from litz.ir.build import cast, const
from litz.ir.index import Expr, Ranges, loop_var
from litz.lower.context import LoweringContext
from litz.lower.view import Computed, Tensor

from ..attention.operation import GRADIENT, SCORE, AttentionBackward
from .flex_attention import Asked, as_passed, blocks_of, body_of, has_kernel, library_call, positions
from .scalar_graph import scalar_graph

RESULTS = 3
"""Gradients of query, key and value; what comes after them are those of captured tensors."""


def flex_attention_backward(
    ctx: LoweringContext,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    grad_out: Tensor | None,
    grad_logsumexp: Tensor | None,
    fw_graph: torch.fx.GraphModule,
    joint_graph: torch.fx.GraphModule | None,
    block_mask: tuple[Any, ...],
    scale: float | Expr,
    kernel_options: dict[str, Any],
    score_captured: tuple[Any, ...] = (),
    mask_captured: tuple[Any, ...] = (),
) -> tuple[Any, ...]:
    """Returns (grad_query, grad_key, grad_value, a None for each captured tensor)."""
    _want_kernel(ctx, query, key, value, grad_out, joint_graph, scale)
    tensors = (query, key, value, out, logsumexp, grad_out, grad_logsumexp)
    others = (fw_graph, joint_graph, block_mask, scale, kernel_options, score_captured, mask_captured)
    results, made = library_call(ctx, (*tensors, *others), {}, "flex_attention_backward")
    for name in made.outputs[RESULTS:]:
        if name is not None:
            del ctx.buffers[name]
    refs = made.args[: len(tensors)]
    _, _, block_refs, _, _, score_refs, mask_refs = made.args[len(tensors) :]
    asked = Asked(
        fw_graph,
        block_refs[-1],
        as_passed(ctx, score_captured, score_refs),
        as_passed(ctx, mask_captured, mask_refs),
    )
    at, size = tuple(map(loop_var, range(4))), (*query.size[:3], key.size[2])
    score, mask = asked.bodies(ctx, size, made.device)
    raw, modified = (build.load(name, at, torch.float32) for name in (SCORE, GRADIENT))
    extents = dict(zip(at, size, strict=True))
    gradient = _gradient(ctx, joint_graph, (raw, modified), asked.score_captured, extents, made.device)
    # Unlike the forward's a block's extents stay as they are: guards may be written down already.
    blocks, transposed = blocks_of(block_refs, mask), blocks_of(block_refs, mask, first=6)
    if blocks is None or transposed is None:
        blocks = transposed = None
    named = ("query", "key", "value", "out", "logsumexp", "grad_out", "grad_logsumexp")
    ctx.add(
        AttentionBackward.of(
            replace(made, outputs=(*made.outputs[:RESULTS], *(None for _ in made.outputs[RESULTS:]))),
            **dict(zip(named, refs, strict=True)),
            scale=float(scale),
            score=body_of(made, "score", size, score),
            gradient=body_of(made, "gradient", size, None if gradient is modified else gradient, GRADIENT),
            mask=body_of(made, "mask", size, mask),
            blocks=blocks,
            transposed=transposed,
        )
    )
    return (*results[:RESULTS], tuple(None for _ in score_captured))


def _want_kernel(
    ctx: LoweringContext,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    grad_out: Tensor | None,
    joint_graph: torch.fx.GraphModule | None,
    scale: float | Expr,
) -> None:
    """NotImplementedError, with the reason, unless there are kernels for it."""
    if not has_kernel(ctx, query, key, value) or (grad_out is not None and grad_out.dtype != query.dtype):
        raise NotImplementedError("no kernel of attention's backward for these tensors")
    if any(extent == 0 for extent in (*query.size, *key.size, *value.size)):
        raise NotImplementedError("attention over nothing")
    if query.size[0] != key.size[0] and key.size[0] != 1:
        raise NotImplementedError("a batch of keys that may or may not be one for all")
    if joint_graph is None or not isinstance(joint_graph, torch.fx.GraphModule):
        raise NotImplementedError("a backward without the graph of score_mod's gradient")
    if isinstance(scale, sympy.Basic) and not scale.is_number:
        raise NotImplementedError("a scale that is not known when compiling")


def _gradient(
    ctx: LoweringContext,
    graph: Any,
    given: tuple[Node, Node],
    captured: Sequence[Any],
    extents: Ranges,
    on: torch.device,
) -> Node:
    """The gradient of a raw score, of (raw score, gradient of what it became). The graph's arguments are the score,
    four positions, the gradient and the captured tensors; its results the gradients of all but the gradient."""
    score, modified = (Computed(torch.float32, on, (), node) for node in given)
    arguments = [score, *positions(tuple(extents), on), modified, *captured]
    outputs = graph.graph.output_node().args[0]
    if any(item is not None for item in outputs[1:]):
        raise NotImplementedError("a tensor captured by score_mod that needs a gradient")
    found, *_ = scalar_graph(ctx, graph, arguments, extents)
    return const(0.0, torch.float32) if found is None else cast(found, torch.float32)

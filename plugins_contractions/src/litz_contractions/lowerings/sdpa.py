"""What torch's scaled_dot_product_attention calls on CUDA: a library call that is an `Attention` of the IR.

In: the call as it was captured. Out: a Template with the same call on the same arguments, which says in data what is
computed. Calls that drop out weights, or that run elsewhere, stay plain library calls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import sympy
import torch

from litz.ir import Node, build
from litz.ir.dtypes import SUPPORTED
from litz.ir.index import Expr
from litz.lower.context import LoweringContext
from litz.lower.elementwise import operand
from litz.lower.view import View

from ..attention.operation import SCORE, Attention, body
from .flex_attention import library_call

KIND = "attention"


def attention(ctx: LoweringContext, *args: Any, **kwargs: Any) -> Any:
    """Lowers torch's fused attention kernels. All align the diagonal of a causal mask with the first query and the
    first key. Errors: NotImplementedError on a target without the ability "attention", outside of four dimensions,
    with dropout, and for dtypes that no loop supports."""
    named = {**dict(zip(_names(ctx), args, strict=False)), **kwargs}
    query, bias = named["query"], named.get("attn_bias")
    if "attention" not in ctx.target_of(query.device).abilities or query.ndim != 4:
        raise NotImplementedError("attention of four dimensions, on a device with kernels of it")
    if named.get("dropout_p", 0.0) != 0:
        raise NotImplementedError("attention that drops out weights")
    if query.dtype not in SUPPORTED or (bias is not None and bias.dtype not in SUPPORTED):
        raise NotImplementedError(f"attention of {query.dtype}")

    results, made = library_call(ctx, args, kwargs, KIND)
    ctx.add(Attention.of(made, **_meaning(ctx, named, dict(zip(_names(ctx), made.args, strict=False)))))
    return results


def _names(ctx: LoweringContext) -> tuple[str, ...]:
    return tuple(argument.name for argument in ctx.node.target._schema.arguments)  # type: ignore[union-attr]


def _meaning(ctx: LoweringContext, named: Mapping[str, Any], passed: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an `Attention`. named: the arguments as tensors; passed: as the library call takes them."""
    query, key = passed["query"], passed["key"]
    size, device = (*query.layout.size[:3], key.layout.size[2]), ctx.meta[0].device
    scale, bias = named.get("scale"), named.get("attn_bias")
    score = mask = None
    if bias is not None:
        given = ctx.buffers[passed["attn_bias"].buffer]  # perhaps one that it was copied into
        seen = bias if isinstance(bias, View) and bias.buffer.name == given.name else View.whole(given)
        score = body(SCORE, device, size, lambda *at: _biased(seen, at), ctx.origins)
    if named.get("is_causal", False):
        mask = body(SCORE, device, size, _causal, ctx.origins)
    return {
        "query": query,
        "key": key,
        "value": passed["value"],
        # As torch does: float(1 / sqrt(D)), where D may be a symbol.
        "scale": 1 / sympy.sqrt(query.layout.size[3]) if scale is None else scale,
        "score": score,
        "mask": mask,
        "hidden": _hidden(ctx),
    }


_MOVES = ("aten.expand.default", "aten.view.default", "aten.unsqueeze.default", "aten.slice.Tensor",
          "aten.constant_pad_nd.default", "aten.clone.default")  # fmt: skip
"""What may lie between the bias that torch made of a mask and the call."""


def _hidden(ctx: LoweringContext) -> float:
    """`Attention.hidden`: what torch put where a mask is False; -inf where the bias is a caller's own."""
    passed = dict(zip(_names(ctx), ctx.node.args, strict=False)) | dict(ctx.node.kwargs)
    node = passed.get("attn_bias")
    while isinstance(node, torch.fx.Node) and str(node.target) in _MOVES:
        node = node.args[0]
    if not isinstance(node, torch.fx.Node) or str(node.target) != "aten.where.self" or not _is_of_attention(node):
        return -math.inf
    other: Any = node.args[2]
    if isinstance(other, torch.fx.Node) and str(other.target) in ("aten.scalar_tensor.default", "aten.full.default"):
        other = other.args[0 if str(other.target) == "aten.scalar_tensor.default" else 1]
    return float(other) if isinstance(other, (int, float)) else -math.inf


def _is_of_attention(node: torch.fx.Node) -> bool:
    """Returns whether a node is part of what scaled_dot_product_attention was traced into."""
    stack = node.meta.get("source_fn_stack") or [("", None)]
    return "scaled_dot_product_attention" in str(getattr(stack[-1][1], "__name__", stack[-1][1]))


def _causal(b: Expr, h: Expr, q: Expr, k: Expr) -> Node:
    """Returns whether a key is no later than the query."""
    return build.call("le", build.index(k), build.index(q))


def _biased(bias: View, at: tuple[Expr, ...]) -> Node:
    """The score and an element of what is added to it, which is expanded as torch expands."""
    return build.call("add", build.load(SCORE, at, torch.float32), operand(bias, at, torch.float32))

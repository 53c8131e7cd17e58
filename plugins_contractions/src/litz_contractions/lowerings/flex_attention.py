"""Lowering of flex_attention: an `Attention`, or the ordinary operations that it is made of.

Where the device has kernels for it, attention is one operation: a library call that carries, as data, what a kernel
needs to know. Elsewhere it is two batched products and loops for what stands between them, which fuse as any others do.
The meaning of both is eager's (torch's `flex_attention` outside of torch.compile): scores are float32 (float64 of
float64), rows without a key give 0 and a logsumexp of -inf, and logsumexp and maximum count in powers of 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from litz.ir import Layout, Loop, Node, Template, TensorRef, build
from litz.ir.build import call, cast, const
from litz.ir.index import Expr, Ranges, floordiv, loop_var, mod, to_expr
from litz.ir.node import walk
from litz.lower import views
from litz.lower.access import extents_of
from litz.lower.context import Indices, LoweringContext
from litz.lower.contraction import matrix
from litz.lower.elementwise import scalar
from litz.lower.fallback import fallback
from litz.lower.view import Computed, Tensor, View

from ..attention.operation import DTYPES, SCORE, WIDEST, Attention, Blocks, body
from .scalar_graph import scalar_graph

aten = torch.ops.aten

NO_BLOCKS = 2**30
"""The block of a mask that has no blocks: torch's `create_block_mask` was not called."""


def flex_attention(
    ctx: LoweringContext,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: torch.fx.GraphModule,
    block_mask: tuple[Any, ...],
    scale: float | Expr,
    kernel_options: dict[str, Any],
    score_captured: tuple[Any, ...] = (),
    mask_captured: tuple[Any, ...] = (),
) -> tuple[Any, ...]:
    """Lowers `flex_attention`. Returns (out, logsumexp, maxima), as many of them as this version of torch has: out of
    (batch, heads, queries, width), the others of (batch, heads, queries). Errors: NotImplementedError for what stays
    the library's call."""
    if any(extent == 0 for extent in (*query.size, *key.size, *value.size)):
        raise NotImplementedError("attention over nothing, of which eager makes an error or nothing")
    asked = Asked(score_mod, block_mask[-1], score_captured, mask_captured)
    if has_kernel(ctx, query, key, value) or _has_blocks(ctx, asked, query, key, value, scale):
        given = (query, key, value, score_mod, block_mask, scale, kernel_options, score_captured, mask_captured)
        return _attention(ctx, asked, given)
    return _operations(ctx, asked, query, key, value, scale)


@dataclass(frozen=True)
class Asked:
    """The bodies that a user asked for. score_mod, mask_mod: their graphs. score_captured, mask_captured: the tensors
    and numbers that each graph reads besides its arguments."""

    score_mod: torch.fx.GraphModule
    mask_mod: torch.fx.GraphModule
    score_captured: Sequence[Any]
    mask_captured: Sequence[Any]

    def score(self, ctx: LoweringContext, score: Node, at: Indices, extents: Ranges, on: torch.device) -> Node:
        """Returns what the score at (b, h, q, k) becomes, in its own dtype."""
        arguments = [Computed(score.dtype, on, (), score), *positions(at, on), *self.score_captured]
        (found,) = scalar_graph(ctx, self.score_mod, arguments, extents)
        assert found is not None
        return cast(found, score.dtype)

    def mask(self, ctx: LoweringContext, at: Indices, extents: Ranges, on: torch.device) -> Node | None:
        """Returns whether a key is looked at; None if all are."""
        (found,) = scalar_graph(ctx, self.mask_mod, [*positions(at, on), *self.mask_captured], extents)
        assert found is not None
        found = cast(found, torch.bool)
        return None if found.op == "const" and found.attrs[0] else found

    def bodies(self, ctx: LoweringContext, size: Sequence[Expr], on: torch.device) -> tuple[Node | None, Node | None]:
        """Returns what scores of this size become, as float32, and whether a key is looked at; None for a body that
        does nothing."""
        at = tuple(map(loop_var, range(4)))
        score, extents = build.load(SCORE, at, torch.float32), dict(zip(at, size, strict=True))
        changed, mask = self.score(ctx, score, at, extents, on), self.mask(ctx, at, extents, on)
        return None if changed is score else changed, mask


def positions(at: Indices, on: torch.device) -> list[Computed]:
    """Returns b, h, q and k as tensors without dimensions, of int64, as eager hands them to the graphs. on: their
    device."""
    return [Computed(torch.int64, on, (), build.index(index)) for index in at]


def has_kernel(ctx: LoweringContext, query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Returns whether the device has a kernel for attention of these operands: one dtype of `DTYPES`, and
    constant widths up to `WIDEST`."""
    return "attention" in ctx.target_of(query.device).abilities and _has_form(query, key, value)


def _has_form(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Returns whether the operands have the type and the widths that kernels take."""
    widths = (query.size[-1], value.size[-1])
    same = query.dtype in DTYPES and key.dtype == value.dtype == query.dtype
    return same and all(width.is_Integer and int(width) <= WIDEST for width in widths)


def _has_blocks(
    ctx: LoweringContext, asked: Asked, query: Tensor, key: Tensor, value: Tensor, scale: float | Expr
) -> bool:
    """Returns whether the device has a kernel that calls BLAS on blocks, which does all that is asked."""
    if "attention_blocks" not in ctx.target_of(query.device).abilities or not _has_form(query, key, value):
        return False
    if not isinstance(scale, (int, float)) and not scale.is_number:
        return False
    bodies = asked.bodies(ctx, (*query.size[:3], key.size[2]), query.device)
    return not any(node.op == "bounded" for node in walk(*(body for body in bodies if body is not None)))


# ---------------------------------------------------------------------------------------------------- as one operation


def _attention(ctx: LoweringContext, asked: Asked, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The library call, with what kernels need to know."""
    results, made = library_call(ctx, given, {}, "flex_attention")
    query, key, value, _, block_mask, scale, _, score_refs, mask_refs = made.args
    asked = replace(
        asked,
        score_captured=as_passed(ctx, asked.score_captured, score_refs),
        mask_captured=as_passed(ctx, asked.mask_captured, mask_refs),
    )
    size = (*query.layout.size[:3], key.layout.size[2])
    score, mask = asked.bodies(ctx, size, made.device)
    ctx.add(
        Attention.of(
            made,
            query=query,
            key=key,
            value=value,
            scale=scale,
            score=body_of(made, "score", size, score),
            mask=body_of(made, "mask", size, mask),
            blocks=blocks_of(block_mask, mask, lambda extent: _constant(ctx, extent)),
        )
    )
    return tuple(results)


def library_call(ctx: LoweringContext, args: Any, kwargs: Any, kind: str) -> tuple[Any, Template]:
    """Returns the results of the library call, and the call, which is not part of the program yet. What attention would
    draw, it draws for weights that it drops; without them it may be left out or moved."""
    results = fallback(ctx, args, kwargs, operation=Template, kind=kind, effect=False)
    made = ctx.operations.pop()
    assert isinstance(made, Template)
    return results, made


def body_of(made: Template, what: str, size: Sequence[Expr], value: Node | None, buffer: str = SCORE) -> Loop | None:
    """Returns a value as a body of an operation; None for none."""
    if value is None:
        return None
    return body(f"{made.name}_{what}", made.device, size, lambda *at: value, made.origins, buffer)


def as_passed(ctx: LoweringContext, values: Sequence[Any], refs: Sequence[Any]) -> list[Any]:
    """Returns the values as the call gets them: a tensor of which the call gets a copy is read from the copy. refs: the
    call's arguments, one for each value."""

    def passed(value: Any, ref: Any) -> Any:
        if not isinstance(value, View) or value.buffer.name == ref.buffer:
            return value
        return View.whole(ctx.buffers[ref.buffer])

    return [passed(value, ref) for value, ref in zip(values, refs, strict=True)]


def blocks_of(
    block_mask: tuple[Any, ...], mask: Node | None, extent: Callable[[Expr], Expr] = to_expr, first: int = 2
) -> Blocks | None:
    """Returns a BlockMask's lists; None where there are no blocks. The parts of a BlockMask are two lengths, four
    tensors by rows of queries, from `first` on, four by columns of keys, the extents of a block, which `extent`
    changes, and the mask's graph."""
    tables = block_mask[first : first + 4]
    if not all(isinstance(ref, TensorRef) for ref in tables[:2]):
        return None
    extents = [extent(to_expr(each)) for each in block_mask[-3:-1]]
    if mask is None and all(each.is_Integer and int(each) >= NO_BLOCKS for each in extents):
        return None
    return Blocks(*extents, *tables)


def _constant(ctx: LoweringContext, extent: Expr) -> Expr:
    """The extent of a block as a number, with a guard: kernels are made for one, and masks hardly ever have others."""
    likely = to_expr(ctx.hint(extent))
    return likely if ctx.decide(sympy.Eq(extent, likely)) else extent


# ------------------------------------------------------------------------------------------------- as many operations


def _operations(
    ctx: LoweringContext, asked: Asked, query: Tensor, key: Tensor, value: Tensor, scale: float | Expr
) -> tuple[Any, ...]:
    """Two products, and what stands between them as loops over the scores, which lie in memory."""
    (batch, heads, rows), keys = query.size[:3], key.size[2]
    group = floordiv(heads, key.size[1])
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    # Heads that share a key are rows of one product: no key is repeated.
    together = (batch * key.size[1], group * rows)
    left = views.reshape(_converted(ctx, query, wide), (*together, query.size[3]), ctx.hint)
    right = views.expand(_converted(ctx, key, wide), (batch, *key.size[1:]))  # of one batch for all, perhaps
    right = views.reshape(right, (together[0], keys, key.size[3]), ctx.hint)
    products = _bmm(ctx, left, views.permute(right, (0, 2, 1)))
    size = (batch, heads, rows, keys)
    on = query.device

    product_at = _unfolded(products, key.size[1], group, rows, size)

    def masked(at: Indices) -> Node:
        extents = extents_of(at, size)
        score = call("mul", product_at(at), scalar(scale, wide))
        changed, mask = asked.score(ctx, score, at, extents, on), asked.mask(ctx, at, extents, on)
        return changed if mask is None else call("where", mask, changed, const(-math.inf, wide))

    scores = ctx.pointwise(size, wide, on, masked, stride=Layout.contiguous(size).stride)
    weights, *others = _softmax(ctx, scores, query.dtype)
    right = views.expand(_converted(ctx, value, query.dtype), (batch, *value.size[1:]))
    right = views.reshape(right, (together[0], keys, value.size[3]), ctx.hint)
    made = _bmm(ctx, views.reshape(weights, (*together, keys), ctx.hint), right)
    out_size = (batch, heads, rows, value.size[3])
    result = ctx.pointwise(out_size, query.dtype, on, _unfolded(made, key.size[1], group, rows, out_size), output=0)
    return (result, *others[: len(ctx.meta) - 1])


def _unfolded(made: View, key_heads: Expr, group: Expr, rows: Expr, size: tuple[Expr, ...]) -> Any:
    """The body that reads a product of heads that share a key at (b, h, q, e)."""

    def element(at: Indices) -> Node:
        b, h, q, e = at
        extents = extents_of(at, size)
        return made.load((b * key_heads + floordiv(h, group, extents), mod(h, group, extents) * rows + q, e))

    return element


def _softmax(ctx: LoweringContext, scores: View, result: torch.dtype) -> tuple[View, View, View]:
    """(weights, logsumexp, maxima) of the rows, the latter two in powers of 2. A row of -inf has weights of 0."""
    outer, keys = scores.size[:3], scores.size[3]
    wide = scores.dtype
    infinity, log_of_2 = const(-math.inf, wide), const(math.log(2), wide)

    def at_row(x: View, at: Indices) -> Node:
        return x.load(tuple(at[:3]))

    (maxima,) = ctx.reduction(
        outer, (keys,), [wide], scores.device, lambda at, inner: build.reduce("max", scores.load((*at, *inner)))
    )

    def shift(at: Indices) -> Node:
        """Returns what is subtracted from a row: its maximum, or 0 where that is infinite."""
        found = at_row(maxima, at)
        return call("where", call("eq", call("abs", found), const(math.inf, wide)), const(0, wide), found)

    def raised(at: Indices) -> Node:
        return call("exp", call("sub", scores.load(at), shift(at)))

    (total,) = ctx.reduction(
        outer, (keys,), [wide], scores.device, lambda at, inner: build.reduce("sum", raised((*at, *inner)))
    )

    def weight(at: Indices) -> Node:
        masked = call("eq", at_row(maxima, at), infinity)
        return call("where", masked, const(0, wide), call("div", raised(at), at_row(total, at)))

    def logsumexp(at: Indices) -> Node:
        return call("div", call("add", call("log", at_row(total, at)), shift(at)), log_of_2)

    device, metas = scores.device, ctx.meta
    weights = ctx.pointwise(scores.size, result, device, weight, stride=Layout.contiguous(scores.size).stride)
    sums = ctx.pointwise(outer, metas[1].dtype, device, logsumexp, output=1)
    most = ctx.pointwise(
        outer,
        metas[-1].dtype,
        device,
        lambda at: call("div", at_row(maxima, at), log_of_2),
        stride=Layout.contiguous(outer).stride,
    )
    return weights, sums, most


def _converted(ctx: LoweringContext, x: Tensor, dtype: torch.dtype) -> Tensor:
    if x.dtype == dtype:
        return x
    return ctx.pointwise(x.size, dtype, x.device, x.load, stride=Layout.contiguous(x.size).stride)


def _bmm(ctx: LoweringContext, left: Tensor, right: Tensor) -> View:
    """The product of (n, i, j) and (n, j, k), (n, i, k): as aten.bmm is lowered."""
    size = (*left.size[:2], right.size[2])
    operands = (matrix(ctx, left), matrix(ctx, right))
    return ctx.extern(
        aten.bmm.default,
        operands,
        size=size,
        dtype=left.dtype,
        device=left.device,
        stride=Layout.contiguous(size).stride,
        operation=Template,
        kind="bmm",
    )

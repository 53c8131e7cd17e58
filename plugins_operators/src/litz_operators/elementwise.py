"""Lowerings of elementwise ops that few models have, of bits seen as another type, and of aminmax."""

from __future__ import annotations

import torch

from litz.capture import torch_api
from litz.ir import Node, build
from litz.ir.build import bitcast, call
from litz.lower import Computed, LoweringContext, Tensor, View, elementwise, lowering, reduce_over
from litz.lower.pointwise import like, same
from litz.lower.reduction import non_empty


def shrink_backward(ctx: LoweringContext, grad: Tensor, x: Tensor, limit: float) -> View:
    """Lowers the gradients of hardshrink and softshrink: 0 where |x| <= limit, else grad."""

    def function(g: Node, v: Node) -> Node:
        inside = call("bitwise_and", call("ge", v, like(v, -limit)), call("le", v, like(v, limit)))
        return call("where", inside, like(g, 0), g)

    return same(ctx, function, grad, x)


def round_decimals(ctx: LoweringContext, x: Tensor, *, decimals: int = 0) -> View:
    """Lowers rounding to `decimals` decimal places (tens, hundreds ... if negative), as eager does: scaled, rounded,
    scaled back. Integers stay as they are."""

    def function(value: Node) -> Node:
        if not value.dtype.is_floating_point or decimals == 0:
            return call("round", value) if value.dtype.is_floating_point else value
        factor = like(value, 10.0 ** abs(decimals))
        first, then = ("mul", "div") if decimals > 0 else ("div", "mul")
        return call(then, call("round", call(first, value, factor)), factor)

    return elementwise(ctx, function, (x,), x.dtype)


def aminmax(ctx: LoweringContext, x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[View, ...]:
    """Lowers aminmax to one loop with two results."""
    non_empty(ctx, x, dim)

    def body(value: Node) -> tuple[Node, Node]:
        return build.reduce("min", value), build.reduce("max", value)

    return reduce_over(ctx, x, dim, keepdim, (x.dtype, x.dtype), body)


@lowering(moves=True)
def view_dtype(ctx: LoweringContext, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Lowers a view of the same bits as another dtype. Errors: NotImplementedError for another width, and for memory
    that several results of the graph share, as what is computed lies elsewhere."""
    if x.dtype.itemsize != dtype.itemsize or torch.bool in (x.dtype, dtype) or isinstance(x, Computed):
        raise NotImplementedError("a view of another width")
    outputs = {item for item in ctx.graph.outputs if isinstance(item, torch.fx.Node)}
    if torch_api.memory_owner(ctx.node) in torch_api.owners_of_several(outputs):
        raise NotImplementedError("a view of memory that several results share")
    return elementwise(ctx, lambda value: bitcast(value, dtype), (x,), dtype)


LOWERINGS = {
    "aten.view.dtype": view_dtype,
    "aten.hardshrink_backward.default": shrink_backward,
    "aten.softshrink_backward.default": shrink_backward,
    "aten.round.decimals": round_decimals,
    "aten.aminmax.default": aminmax,
}

"""Contractions become Templates: a library call that a kernel template may take the place of.

Operands are passed as strided references wherever they can be, so that a transposed or sliced matrix is not copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from litz.ir import Layout, Node, Template, TensorRef
from litz.ir.build import call
from litz.ir.dtypes import SUPPORTED

from .context import Indices, LoweringContext
from .fallback import fallback
from .registry import lowering
from .strides import layout_of
from .view import Tensor, View

aten = torch.ops.aten


def template(ctx: LoweringContext, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> View:
    """Adds a Template of the node's op to the program and returns its one result, a new tensor laid out as the fake
    one."""
    layout = layout_of(ctx.meta)
    return ctx.extern(
        ctx.node.target,  # type: ignore[arg-type]
        args,
        kwargs,
        size=layout.size,
        dtype=ctx.meta.dtype,
        device=ctx.meta.device,
        stride=layout.stride,
        operation=Template,
        kind=ctx.op_name,
    )


def matrix(ctx: LoweringContext, x: Tensor) -> TensorRef:
    """An operand of a matrix product as BLAS takes it: the last two dimensions dense one way or the other.

    A view that has neither stride 1 is copied, as the library would do itself.
    """
    ref = ctx.ref(x)
    rows, columns = ref.layout.stride[-2:]
    size = ref.layout.size[-2:]
    dense = rows == 1 or columns == 1 or size[0] == 1 or size[1] == 1
    return ref if dense else ctx.ref(x, Layout.contiguous(x.size).stride)


@lowering(aten.mm.default, aten.bmm.default)
def product(ctx: LoweringContext, a: Tensor, b: Tensor) -> View:
    """Lowers mm (M, K) x (K, N) and bmm (B, M, K) x (B, K, N) to a Template."""
    return template(ctx, (matrix(ctx, a), matrix(ctx, b)))


@lowering(aten.addmm.default, aten.baddbmm.default)
def product_and_bias(ctx: LoweringContext, bias: Tensor, a: Tensor, b: Tensor, **factors: Any) -> View:
    """Lowers addmm and baddbmm, beta * bias + alpha * (a @ b), to a Template; factors of 1 are left out."""
    given = {name: factor for name, factor in factors.items() if factor != 1}
    return template(ctx, (ctx.ref(bias), matrix(ctx, a), matrix(ctx, b)), given)


@lowering(
    "aten.mm.dtype",
    "aten.bmm.dtype",
    aten.addmv.default,
    "aten._int_mm.default",
    "aten._scaled_mm.default",
    "aten._scaled_mm_v2.default",
    "aten._grouped_mm.default",
    "aten._scaled_grouped_mm.default",
    aten.convolution_backward.default,
    "aten._cslt_sparse_mm.default",
    any_dtype=True,
)
def strided_contraction(ctx: LoweringContext, *args: Any, **kwargs: Any) -> Any:
    """Lowers contractions whose kernels depend on the operands' strides, to a Template that takes the strides of the
    trace."""
    return fallback(ctx, args, kwargs, operation=Template, kind=ctx.op_name.removeprefix("_"))


@lowering(aten.convolution.default, aten._convolution.default, any_dtype=True)
def convolution(ctx: LoweringContext, x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Any:
    """A convolution; the bias is a Loop's where the library would add it by a kernel of its own, so that it fuses with
    what follows. Both round the convolution's result to its dtype before they add."""
    if bias is None or not _adds_bias_apart(ctx, x, weight, *rest):
        return strided_contraction(ctx, x, weight, bias, *rest)
    bare = strided_contraction(ctx, x, weight, None, *rest)

    def biased(indices: Indices) -> Node:
        return call("add", bare.load(indices), bias.load((indices[1],)))

    return ctx.pointwise(bare.size, bare.dtype, bare.device, biased, stride=bare.buffer.layout.stride)


def _adds_bias_apart(
    ctx: LoweringContext,
    x: Tensor,
    weight: Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    *settings: Any,
) -> bool:
    """Returns whether the library adds a convolution's bias by a kernel of its own: see the ability `separate_bias`."""
    if "separate_bias" not in ctx.target_of(x.device).abilities:
        return False
    if x.dtype not in SUPPORTED or x.ndim != weight.ndim:  # complex numbers, and images without a batch
        return False
    depthwise = not transposed and groups > 1 and x.size[1] == groups
    return not depthwise or _channels_last(layout_of(ctx.meta))


def _channels_last(layout: Layout) -> bool:
    """Returns whether an element's channels lie side by side, where they could lie otherwise."""
    channels, pixels = layout.stride[1], layout.stride[-1]
    return channels == 1 and pixels != 1

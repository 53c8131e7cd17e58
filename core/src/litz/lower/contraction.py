"""Contractions become Templates: a library call that a kernel template may take the place of.

Operands are passed as strided references wherever they can be, so that a transposed or sliced matrix is not copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from litz.ir import Layout, Template, TensorRef

from .context import LoweringContext
from .fallback import fallback
from .registry import lowering
from .strides import layout_of
from .view import Tensor, View

aten = torch.ops.aten


def template(ctx: LoweringContext, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> View:
    """A Template of the node's op with one result, a fresh tensor laid out as the fake one."""
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
    return template(ctx, (matrix(ctx, a), matrix(ctx, b)))


@lowering(aten.addmm.default, aten.baddbmm.default)
def product_and_bias(ctx: LoweringContext, bias: Tensor, a: Tensor, b: Tensor, **factors: Any) -> View:
    given = {name: factor for name, factor in factors.items() if factor != 1}
    return template(ctx, (ctx.ref(bias), matrix(ctx, a), matrix(ctx, b)), given)


@lowering(
    "aten.mm.dtype",
    "aten.bmm.dtype",
    aten.addmv.default,
    "aten._int_mm.default",
    "aten._scaled_mm.default",
    "aten._grouped_mm.default",
    "aten._scaled_grouped_mm.default",
    aten.convolution.default,
    aten._convolution.default,
    aten.convolution_backward.default,
    "aten._cslt_sparse_mm.default",
    any_dtype=True,
)
def strided_contraction(ctx: LoweringContext, *args: Any, **kwargs: Any) -> Any:
    """Those whose kernels look at the operands' strides: they get the strides of the trace."""
    return fallback(ctx, args, kwargs, operation=Template, kind=ctx.op_name.removeprefix("_"))

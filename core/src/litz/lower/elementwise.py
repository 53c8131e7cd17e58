"""Elementwise ops: operands are broadcast, brought to a common dtype, and given to a function of nodes.

    elementwise(ctx, lambda a, b: call("mul", a, b), (x, 2.0), torch.float32, compute=torch.float32)

Operands are Tensors, Python scalars, or size expressions (int- or float-valued).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from litz.ir import Node, build
from litz.ir.index import ONE, ZERO, Expr

from .context import Indices, LoweringContext
from .promotion import is_whole
from .view import Tensor, View, combined

NodeFunction = Callable[..., Node]


def broadcast_size(*args: Any) -> tuple[Expr, ...]:
    """Returns the size that the tensors among `args` broadcast to. An extent of 1 gives way; other extents are equal,
    as the trace has guarded."""
    sizes = [arg.size for arg in args if isinstance(arg, Tensor)]
    result: list[Expr] = [ONE] * max((len(size) for size in sizes), default=0)
    for size in sizes:
        first = len(result) - len(size)
        for dim, extent in enumerate(size):
            # A number says more than a symbol that guards made equal to it.
            if result[first + dim] == 1 or (extent.is_Integer and extent != 1):
                result[first + dim] = extent
    return tuple(result)


def device_of(*args: Any) -> torch.device:
    """Returns the device that an op on `args` runs on: that of its tensors, where zero-dimensional CPU tensors count
    only if there are no others."""
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    for tensor in tensors:
        if tensor.ndim or tensor.device.type != "cpu":
            return tensor.device
    return tensors[0].device if tensors else torch.device("cpu")


def load_broadcast(x: Tensor, indices: Indices) -> Node:
    """Returns the element of x at `indices` of a size that x broadcasts to."""
    own = indices[len(indices) - x.ndim :]
    return x.load(tuple(ZERO if extent == 1 else index for index, extent in zip(own, x.size, strict=True)))


def operand(arg: Any, indices: Indices, dtype: torch.dtype) -> Node:
    """Returns an operand as a node of `dtype`. A half type rounds no operand."""
    if isinstance(arg, Tensor):
        return build.promoted(load_broadcast(arg, indices), dtype)
    return scalar(arg, dtype)


def scalar(value: Any, dtype: torch.dtype) -> Node:
    """Returns a Python number or size expression as a node of `dtype`. Half types keep the number's float32 value, as
    eager does."""
    if isinstance(value, (bool, int, float)):
        return build.const(value, dtype)
    if isinstance(value, sympy.Expr):
        if value.is_Integer:
            return build.const(int(value), dtype)
        if is_whole(value):
            return build.promoted(build.index(value), dtype)
        return build.promoted(_float_expression(value), dtype)
    raise NotImplementedError(f"a scalar {value!r}")


_FUNCTIONS = {"IntTrueDiv": "div", "FloatTrueDiv": "div", "FloatPow": "pow", "Pow": "pow", "OpaqueUnaryFn_sqrt": "sqrt"}


def _float_expression(expr: Expr) -> Node:
    """Returns a float-valued expression over sizes (x.shape[0] ** 0.5) as a float64 node."""
    if expr.is_number:
        return build.const(float(expr), torch.float64)
    if is_whole(expr) and not expr.is_Symbol:
        return build.cast(build.index(expr), torch.float64)
    name = type(expr).__name__
    if expr.is_Symbol:
        raise NotImplementedError(f"the float input {expr}")
    args = [_float_expression(arg) if not is_whole(arg) else scalar(arg, torch.float64) for arg in expr.args]
    if name == "ToFloat":
        return args[0]
    if name in _FUNCTIONS:
        return build.call(_FUNCTIONS[name], *args)
    if expr.is_Add or expr.is_Mul:
        return combined("add" if expr.is_Add else "mul", args)
    raise NotImplementedError(f"the size expression {expr}")


def elementwise(
    ctx: LoweringContext,
    function: NodeFunction,
    args: Sequence[Any],
    result: torch.dtype,
    *,
    compute: torch.dtype | tuple[torch.dtype, ...] | None = None,
) -> View:
    """Returns `function` of the operands at each point of the size that they broadcast to.

    result: the dtype of the result. compute: the dtype that operands are cast to; one for each if a tuple; None leaves
    tensors as they are.
    """
    each = compute if isinstance(compute, tuple) else (compute,) * len(args)

    def node(indices: Indices) -> Node:
        return function(*(operand(arg, indices, dtype or arg.dtype) for arg, dtype in zip(args, each, strict=True)))

    return ctx.pointwise(broadcast_size(*args), result, device_of(*args), node)

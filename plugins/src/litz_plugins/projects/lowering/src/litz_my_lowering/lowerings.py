"""How the operators become IR. In: the lowering context, and an operator's arguments. Out: the IR of its result."""

from __future__ import annotations

from litz.ir.build import call, cast, const, reduce
from litz.ir.dtypes import compute_dtype
from litz.lower import elementwise, reduce_over, scalar


def squareplus(ctx, x, b=4.0):
    """Lowers squareplus to one function of nodes, at each element."""

    def value(x):
        root = call("sqrt", call("add", call("mul", x, x), const(b, x.dtype)))
        return call("mul", call("add", x, root), const(0.5, x.dtype))

    return elementwise(ctx, value, (x,), x.dtype, compute=compute_dtype(x.dtype))


def rms_norm(ctx, x, weight, eps=1e-6):
    """Lowers rms_norm to a reduction over each row, and a function of its result, broadcast along the row."""
    wide = compute_dtype(x.dtype)  # half types compute in float32

    def square(x):
        x = cast(x, wide)
        return reduce("sum", call("mul", x, x))

    (total,) = reduce_over(ctx, x, -1, True, (wide,), square)  # [..., 1]

    def value(x, total, weight):
        mean = call("div", total, columns)
        scale = call("rsqrt", call("add", mean, const(eps, wide)))
        return call("mul", call("mul", x, scale), weight)

    columns = scalar(x.size[-1], wide)  # a number, or a symbol where sizes are dynamic
    return elementwise(ctx, value, (x, total, weight), x.dtype, compute=wide)

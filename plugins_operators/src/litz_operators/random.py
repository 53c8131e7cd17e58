"""Lowerings of random numbers: drawn in the kernels that use them.

A number is a pure function of a key and of its row-major position in the tensor (`ir/philox.py`), so loops that draw
fuse, split and reorder like others. The key changes from run to run: once per run and device, torch's default generator
draws a 64-bit seed; the n-th random op of the graph mixes n into it. So `torch.manual_seed` repeats a compiled run,
though the numbers are not those that eager draws. Ops with a generator of their own, and distributions that are not
here (randperm, multinomial, poisson), stay with the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch

from litz.ir import Extern, Node, build
from litz.ir.index import ZERO, Expr, to_expr
from litz.lower import Indices, Lowering, LoweringContext, Tensor, View, as_node, meta_size, operand

Draw = Callable[[Node, Node], Node]
"""Makes a random value of a key and a position."""

_SEED = torch.ops.aten.randint.low
_SEED_ARGS = (-(2**63), 2**63 - 1, (1,))
_MIX = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: its multiples differ in many bits."""


def key_of(ctx: LoweringContext, device: torch.device) -> Node:
    """Returns the key of the next random op on `device`, made of this run's seed, which an Extern before the device's
    first random op draws, and the op's number."""
    seed = next((name for op in ctx.operations if _is_seed(op, device) for name in op.writes), None)
    if seed is None:
        seed = ctx.new_buffer((1,), torch.int64, device, (1,)).name
        # effect: a run always draws once, so that what later runs draw does not depend on which results are used.
        kwargs = {"dtype": torch.int64, "device": device}
        ctx.add_extern(_SEED, _SEED_ARGS, kwargs, device, outputs=(seed,), effect=True)
    number = sum(seed in op.reads for op in ctx.operations)
    value = build.load(seed, (ZERO,), torch.int64)
    if number == 0:
        return value
    mixed = number * _MIX % 2**64
    signed = mixed - 2**64 if mixed >= 2**63 else mixed
    return build.call("bitwise_xor", value, build.const(signed, torch.int64))


def _is_seed(operation: Any, device: torch.device) -> bool:
    return (
        isinstance(operation, Extern)
        and operation.target is _SEED
        and operation.args == _SEED_ARGS
        and operation.device == device
    )


def row_major(indices: Indices, size: Sequence[Expr]) -> Node:
    """Returns the row-major number of the element at `indices` in a tensor of `size`, whatever its place in memory."""
    total: Expr = ZERO
    for index, extent in zip(indices, size, strict=True):
        total = total * extent + index
    return build.index(total.expand())


def draw(ctx: LoweringContext, value: Draw) -> View:
    """Returns a tensor like the node's fake result with `value(key, position)` at each element, cast to its dtype.
    Errors: NotImplementedError for pinned memory and layouts that are not strided."""
    meta = ctx.meta
    if meta.layout != torch.strided or meta.is_pinned():
        raise NotImplementedError("pinned memory and other layouts")
    size = meta_size(ctx)
    key = key_of(ctx, meta.device)
    return ctx.pointwise(size, meta.dtype, meta.device, lambda indices: value(key, row_major(indices, size)))


def _drawing(function: Lowering) -> Lowering:
    """The lowering of an op that may draw from a generator of the user's: with such a generator it raises
    NotImplementedError."""

    @wraps(function)
    def lower(*args: Any, generator: Any = None, **kwargs: Any) -> Any:
        if generator is not None:
            raise NotImplementedError("a generator of the user's own")
        return function(*args, **kwargs)

    return lower


# ------------------------------------------------------------------------------------------------------ distributions


def _bits(key: Node, position: Node, count: int) -> list[Node]:
    """`count` words of 32 bits for one position, as int64."""
    if count == 1:
        return [build.call("random_bits", key, position)]
    first = build.call("mul", position, build.const(count, torch.int64))
    words = [build.call("add", first, build.const(n, torch.int64)) for n in range(count)]
    return [build.call("random_bits", key, word) for word in words]


def _double(high: Node, low: Node) -> Node:
    """A float64 in [0, 1) with 53 random bits."""
    five, six = build.const(5, torch.int64), build.const(6, torch.int64)
    upper = build.call("mul", build.call("shift_right", high, five), build.const(2**26, torch.int64))
    mantissa = build.call("add", upper, build.call("shift_right", low, six))
    return build.call("mul", build.cast(mantissa, torch.float64), build.const(2.0**-53, torch.float64))


def uniform(dtype: torch.dtype) -> Draw:
    """Uniform in [0, 1), in the compute type of `dtype`.

    For half types the low bits are cut off instead of rounded, as rounding would reach 1.
    """
    if dtype == torch.float64:
        return lambda key, position: _double(*_bits(key, position, 2))
    kept = {torch.float16: -(2**13), torch.bfloat16: -(2**16)}.get(dtype)

    def value(key: Node, position: Node) -> Node:
        drawn = build.call("random_uniform", key, position)
        if kept is None:
            return drawn
        bits = build.call("bitwise_and", build.bitcast(drawn, torch.int32), build.const(kept, torch.int32))
        return build.bitcast(bits, torch.float32)

    return value


def normal(dtype: torch.dtype) -> Draw:
    """Returns a function of key and position that draws standard normal numbers, in the type that `dtype` is computed
    in."""
    if dtype != torch.float64:
        return lambda key, position: build.call("random_normal", key, position)

    def value(key: Node, position: Node) -> Node:
        # Box and Muller. One minus the first draw is in (0, 1], so that its logarithm is finite.
        words = _bits(key, position, 4)
        one = build.const(1.0, torch.float64)
        log = build.call("log", build.call("sub", one, _double(words[0], words[1])))
        radius = build.call("sqrt", build.call("mul", build.const(-2.0, torch.float64), log))
        angle = build.call("mul", build.const(2 * math.pi, torch.float64), _double(words[2], words[3]))
        return build.call("mul", radius, build.call("cos", angle))

    return value


def integers(low: int | Expr, high: int | Expr) -> Draw:
    """Returns a Draw of int64 numbers that are uniform among low, low + 1, ..., high - 1."""
    span: Expr = to_expr(high) - to_expr(low)

    def value(key: Node, position: Node) -> Node:
        if span.is_Integer and int(span) <= 2**31:
            # The upper part of bits * span: even to one in 2**32 / span, without a division.
            product = build.call("mul", build.call("random_bits", key, position), build.index(span))
            offset = build.call("shift_right", product, build.const(32, torch.int64))
        else:
            upper, lower = _bits(key, position, 2)
            wide = build.call("shift_left", upper, build.const(32, torch.int64))
            offset = build.call("remainder", build.call("bitwise_or", wide, lower), as_node(span))
        return offset if to_expr(low) == 0 else build.call("add", offset, as_node(to_expr(low)))

    return value


# --------------------------------------------------------------------------------------------------------------- ops


def rand(ctx: LoweringContext, *args: Any, **options: Any) -> Tensor:
    """Lowers rand and rand_like: uniform numbers in [0, 1)."""
    return draw(ctx, uniform(ctx.meta.dtype))


def randn(ctx: LoweringContext, *args: Any, **options: Any) -> Tensor:
    """Lowers randn and randn_like: normal numbers of mean 0 and variance 1."""
    return draw(ctx, normal(ctx.meta.dtype))


def randint(ctx: LoweringContext, *bounds_and_size: Any, **options: Any) -> Tensor:
    """Lowers randint: integers in [low, high), or [0, high) if one bound is given. The last argument is the size."""
    return _randint(ctx, *bounds_and_size[:-1])


def randint_like(ctx: LoweringContext, x: Tensor, *bounds: Any, **options: Any) -> Tensor:
    """Lowers randint_like and random: integers in the given bounds, in the shape of x."""
    return _randint(ctx, *bounds)


def _randint(ctx: LoweringContext, *bounds: Any) -> Tensor:
    """bounds: high, or low and high."""
    low, high = bounds if len(bounds) == 2 else (0, *bounds)
    if high is None:
        raise NotImplementedError("all integers that the dtype holds")
    span = to_expr(high) - to_expr(low)
    if span.is_Integer and not 0 < int(span) < 2**63:
        raise NotImplementedError(f"{span} integers to choose from")
    return draw(ctx, integers(low, high))


def bernoulli(ctx: LoweringContext, x: Tensor, p: float | Tensor) -> Tensor:
    """Lowers bernoulli: 1 with probability p, else 0. The draw is in float32 whatever the dtype, so that p is kept.
    Errors: NotImplementedError for a p that is no probability."""
    _check_probability(p)
    size, meta = meta_size(ctx), ctx.meta
    key = key_of(ctx, meta.device)

    def body(indices: Indices) -> Node:
        drawn = build.call("random_uniform", key, row_major(indices, size))
        return build.call("lt", drawn, operand(p, indices, torch.float32))

    return ctx.pointwise(size, meta.dtype, meta.device, body)


def _check_probability(p: Any) -> None:
    """Errors: NotImplementedError for a number that is no probability."""
    if isinstance(p, (int, float)) and not 0 <= p <= 1:
        raise NotImplementedError("a number that is no probability, which eager refuses")


def prims_uniform(
    ctx: LoweringContext, shape: Sequence[int | Expr], *, low: float, high: float, dtype: torch.dtype, **options: Any
) -> Tensor:
    """Lowers prims.uniform: uniform numbers in [low, high)."""
    return draw(ctx, _scaled(uniform(dtype), high - low, low))


def _normal(ctx: LoweringContext, mean: float, std: float) -> Tensor:
    return draw(ctx, _scaled(normal(ctx.meta.dtype), std, mean))


def _scaled(unit: Draw, factor: float, shift: float) -> Draw:
    """Returns a draw of `unit`, times `factor`, plus `shift`."""

    def value(key: Node, position: Node) -> Node:
        drawn = unit(key, position)
        scaled = drawn if factor == 1 else build.call("mul", drawn, build.const(factor, drawn.dtype))
        return scaled if shift == 0 else build.call("add", scaled, build.const(shift, drawn.dtype))

    return value


def prims_normal(
    ctx: LoweringContext, shape: Sequence[int | Expr], *, mean: float, std: float, dtype: torch.dtype, **options: Any
) -> Tensor:
    """Lowers prims.normal: normal numbers of a mean and standard deviation. Errors: NotImplementedError for complex
    dtypes."""
    if dtype.is_complex:
        raise NotImplementedError("complex numbers")
    return _normal(ctx, mean, std)


def normal_functional(ctx: LoweringContext, x: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Lowers normal_functional: normal numbers in the shape of x."""
    return _normal(ctx, mean, std)


def native_dropout(ctx: LoweringContext, x: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:
    """Lowers native_dropout to (result, mask): x with the kept elements scaled by 1 / (1 - p) and the others 0, and
    which elements are kept; outside of training all are kept, unscaled. The draw is in float32 whatever the dtype, so
    that p is kept. Errors: NotImplementedError for a p that is no probability, in training."""
    size, device = x.size, x.device
    result = View.whole(ctx.new_buffer(size, x.dtype, device, output=0))
    mask = View.whole(ctx.new_buffer(size, torch.bool, device, output=1))
    indices = ctx.indices(size)
    # What eager does outside of training too: it keeps everything, unscaled.
    training = train is None or train
    if training:
        _check_probability(p)
    kept, value = build.const(True, torch.bool), x.load(indices)
    if training and p > 0:
        drawn = build.call("random_uniform", key_of(ctx, device), row_major(indices, size))
        kept = build.call("ge", drawn, build.const(p, torch.float32)) if p < 1 else build.const(False, torch.bool)
        wide = build.compute(value)
        factor = build.cast(kept, wide)
        scale = build.const(1.0 / (1.0 - p) if p < 1 else 0.0, wide)
        value = build.call("mul", build.call("mul", build.cast(value, wide), factor), scale)
    ctx.add_loop(device, size, (), [ctx.store(result, indices, value), ctx.store(mask, indices, kept)])
    return result, mask


LOWERINGS: Mapping[str, Lowering] = {
    **dict.fromkeys(
        ("aten.rand.default", "aten.rand.generator", "aten.rand_like.default", "aten.rand_like.generator"),
        _drawing(rand),
    ),
    **dict.fromkeys(
        ("aten.randn.default", "aten.randn.generator", "aten.randn_like.default", "aten.randn_like.generator"),
        _drawing(randn),
    ),
    **dict.fromkeys(
        ("aten.randint.default", "aten.randint.generator", "aten.randint.low", "aten.randint.low_generator"),
        _drawing(randint),
    ),
    **dict.fromkeys(
        (
            "aten.randint_like.default",
            "aten.randint_like.generator",
            "aten.random.to",
            "aten.randint_like.low_dtype",
            "aten.randint_like.low_generator_dtype",
            "aten.random.from",
        ),
        _drawing(randint_like),
    ),
    **dict.fromkeys(("aten.bernoulli.p", "aten.bernoulli.Tensor"), _drawing(bernoulli)),
    "prims.uniform.default": _drawing(prims_uniform),
    "prims.normal.default": _drawing(prims_normal),
    "aten.normal_functional.default": _drawing(normal_functional),
    "aten.native_dropout.default": native_dropout,
}

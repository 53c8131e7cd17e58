"""Convolutions as matrix products. In: a convolution of the IR, of 1, 2 or 3 dimensions. Out: a `Gemm`.

    out[image, channel, pixel] = bias[channel] + sum over tap and c of
        weight[channel, c, tap] * input[image, c, pixel * stride + tap * dilation - padding]

Rows are the pixels of all images, columns the output channels, and the depth is (taps, input channels), the channels
walked fastest. Nothing is copied: positions are computed, and what lies in the padding is 0. Groups are a batch, and so
are the places between the steps of a transposed convolution.

There is nothing for tensor cores in a depthwise convolution, whose groups have one input channel each: it reads its
input from memory once, and nine or so times from the caches. With its taps written out it is a pointwise Loop, which
core's code generator writes, and which core fuses with its users (`offer_depthwise`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product as all_of
from math import prod
from typing import Any

import sympy
import torch

from litz.cost.contractions import argument_names
from litz.ir import Buffer, Loop, Node, Program, Range, Template, TensorRef
from litz.ir.build import call, cast, index, load, logical_and
from litz.ir.dtypes import SUPPORTED
from litz.ir.index import ONE, ZERO, Expr, Ranges, bounds, floordiv, known_less, known_nonnegative, loop_var, mod
from litz_plugins import Choice

from ..epilogue import ACCUMULATOR, accumulator, plain
from ..module import Unsuitable
from .gemm import ACCUMULATE, Gemm, Product, depth_var, operand, written_out

LEAST_CHANNELS = 8
"""Output channels of a group from which its product is worth a tile of its own: tensor cores take 8 columns or more."""


@dataclass(frozen=True)
class Convolution:
    """A convolution's arguments, checked. stride, padding, dilation: for each spatial dimension."""

    image: TensorRef
    weight: TensorRef
    bias: TensorRef | None
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int
    transposed: bool
    dtype: torch.dtype
    out: Buffer


def read_convolution(template: Template, program: Program) -> Convolution:
    """Returns a convolution with a batch, of a dtype that tensor cores take. Raises Unsuitable for any other."""
    arguments = argument_names(template)
    image, weight, bias = (arguments.get(name) for name in ("input", "weight", "bias"))
    if not isinstance(image, TensorRef) or not isinstance(weight, TensorRef):
        raise Unsuitable("operands that are no tensors")
    dims = len(weight.layout.size) - 2
    stride, padding, dilation = (_each(arguments[name], dims) for name in ("stride", "padding", "dilation"))
    dtype = program.buffers[image.buffer].dtype
    if dtype not in ACCUMULATE or not dtype.is_floating_point or program.buffers[weight.buffer].dtype != dtype:
        raise Unsuitable(f"no template for {dtype}")
    out = program.buffers[str(template.outputs[0])]
    if out.dtype not in SUPPORTED or len(out.layout.size) != dims + 2:
        raise Unsuitable("a result without a batch")
    if any(program.hint(size) == 0 for size in out.layout.size):
        raise Unsuitable("the result is empty")
    bias = bias if isinstance(bias, TensorRef) else None
    if bias is not None:
        buffer = program.buffers[bias.buffer]
        if buffer.layout != bias.layout or buffer.dtype not in SUPPORTED:
            raise Unsuitable("a bias that is a view")
    groups, transposed = int(arguments.get("groups", 1)), bool(arguments.get("transposed"))
    return Convolution(image, weight, bias, stride, padding, dilation, groups, transposed, dtype, out)


def make_convolution(template: Template, program: Program, tf32: bool = False) -> Gemm:
    """Returns the product that a convolution is; its groups are a batch, and so are the places between a transposed
    one's steps. Errors: Unsuitable."""
    given = read_convolution(template, program)
    image, weight, groups = given.image, given.weight, given.groups
    value, buffer, ranges = accumulator(program, template, ACCUMULATE[given.dtype])
    number, channel = ranges[0], ranges[1]
    walks = _walks(given, ranges[2:], len(ranges) + 1)
    batch = tuple(walk.between for walk in walks if walk.between is not None)
    place: Expr = channel.var  # of a channel among all
    first: Expr = sympy.Integer(0)  # of the group's input channels
    outer, inner = weight.layout.size[:2]
    channels = floordiv(outer, sympy.Integer(groups)) if given.transposed else inner  # of a group's input
    if groups > 1:
        if not channel.size.is_Integer or int(channel.size) // groups < LEAST_CHANNELS:
            raise Unsuitable(f"no product for groups of fewer than {LEAST_CHANNELS} channels")
        group = Range(loop_var(len(ranges)), sympy.Integer(groups))
        batch = (group, *batch)
        channel = Range(channel.var, sympy.Integer(int(channel.size) // groups))
        place, first = group.var * channel.size + channel.var, group.var * channels
    pixels = tuple(walk.pixel for walk in walks)
    index = tuple(
        ZERO if size == ONE else at
        for size, at in zip(given.out.layout.size, (number.var, place, *(walk.out for walk in walks)), strict=True)
    )
    value = load(ACCUMULATOR, index, value.dtype)
    depth = (*(walk.tap for walk in walks), Range(depth_var(len(walks)), channels))
    at = first + depth[-1].var
    inside = tuple((walk.place, walk.size) for walk in walks if walk.leaves)
    left = operand(image, program, [number.var, at, *(walk.place for walk in walks)], inside)
    front = [at, channel.var] if given.transposed else [place, depth[-1].var]
    taps = tuple((walk.weight, walk.taps) for walk in walks if walk.skips)
    right = operand(weight, program, [*front, *(walk.weight for walk in walks)], taps)
    if given.bias is not None:
        bias = load(given.bias.buffer, (place,), program.buffers[given.bias.buffer].dtype)
        value = call("add", value, cast(bias, value.dtype))
    single = {walk.tap.var: ZERO for walk in walks if walk.tap.size == ONE}
    kept = tuple(r for r in depth if r.var not in single) or depth[-1:]
    walked = tuple(Range(depth_var(number), r.size) for number, r in enumerate(kept))
    places = {**{old.var: new.var for old, new in zip(kept, walked, strict=True)}, **single}
    term = Product(left.at(places), right.at(places), walked)
    order = (number, *batch, channel, *pixels)
    epilogue = plain(program, template, cast(value, given.out.dtype), order, buffer, index)
    tf32 = tf32 and given.dtype.itemsize == 4
    return Gemm(batch, (number, *pixels), (channel,), (term,), ACCUMULATE[given.dtype], epilogue, tf32)


@dataclass(frozen=True)
class _Walk:
    """One spatial dimension. pixel, between: ranges that `out`, the place in the result, is made of. tap: range along
    the weight, at `weight` of its `taps`, which `skips` says it may overstep. place: in the input of `size`, which
    `leaves` says it may leave."""

    pixel: Range
    out: Expr
    tap: Range
    weight: Expr
    taps: Expr
    place: Expr
    size: Expr
    leaves: bool
    between: Range | None = None
    skips: bool = False


def _walks(given: Convolution, pixels: Sequence[Range], free: int) -> tuple[_Walk, ...]:
    """A walk for each spatial dimension. free: the first number that no variable of the result has."""
    taps = [Range(depth_var(n), size) for n, size in enumerate(given.weight.layout.size[2:])]
    found = []
    for n, (pixel, tap, step, pad, spread, size) in enumerate(
        zip(pixels, taps, given.stride, given.padding, given.dilation, given.image.layout.size[2:], strict=True)
    ):
        if not given.transposed:
            place = step * pixel.var + spread * tap.var - pad
            beyond = size - 1 - (step * (pixel.size - 1) + spread * (tap.size - 1))  # the last tap of the last pixel
            leaves = pad != 0 or not (beyond.is_Integer and beyond >= 0)
            found.append(_Walk(pixel, pixel.var, tap, tap.var, tap.size, place, size, leaves))
        elif step == 1:
            # Walked backwards, it is one whose taps reach the other way.
            place = pixel.var - spread * tap.var + pad
            found.append(_Walk(pixel, pixel.var, tap, tap.var, tap.size, place, size, True))
        else:
            found.append(_between_steps(pixel, tap, step, pad, spread, size, free + n))
    return tuple(found)


def _between_steps(pixel: Range, tap: Range, step: int, pad: int, spread: int, size: Expr, free: int) -> _Walk:
    """A dimension of a transposed convolution with a stride. Every `step`-th place of the result takes the same taps,
    every `step`-th of the weight: for each of these classes it is a convolution of stride 1.

        out = step * pixel + between, weight = step * tap + (between + pad) % step,
        place = (out + pad - weight) / step = pixel + (between + pad) // step - tap
    """
    every = sympy.Integer(step)
    count, taps = floordiv(pixel.size, every), floordiv(tap.size + step - 1, every)
    if spread != 1 or sympy.expand(count * step - pixel.size) != 0:
        raise Unsuitable(
            "no template for transposed convolutions whose result is no multiple of the stride, or dilated"
        )
    between = Range(loop_var(free), every)
    extents = {between.var: every}
    place = pixel.var + floordiv(between.var + pad, every, extents) - tap.var
    weight = step * tap.var + mod(between.var + pad, every, extents)
    leaves = pad != 0 or taps != 1 or sympy.expand(count - size) != 0
    skips = sympy.expand(taps * step - tap.size) != 0
    out = step * pixel.var + between.var
    return _Walk(
        Range(pixel.var, count), out, Range(tap.var, taps), weight, tap.size, place, size, leaves, between, skips
    )


def _each(value: Any, dims: int) -> Sequence[int]:
    """A number for each dimension: torch repeats a single one."""
    values = list(value)
    if not all(isinstance(item, int) for item in values):
        raise Unsuitable("strides or padding that are no numbers")
    return values * dims if len(values) == 1 else values


MOST_TAPS = 49
"""Beyond 7 x 7 the loads no longer fit the registers."""


def offer_depthwise(template: Template, program: Program) -> list[Choice]:
    """Returns a depthwise convolution with its taps written out, as a choice; nothing for any other contraction."""
    if template.kind != "convolution":
        return []
    try:
        given = read_convolution(template, program)
    except Unsuitable:
        return []
    _, channels, *taps = given.weight.layout.size
    if given.groups == 1 or channels != 1 or given.transposed or not all(size.is_Integer for size in taps):
        return []
    views = [ref for ref in (given.image, given.weight) if program.buffers[ref.buffer].layout != ref.layout]
    if views or prod(int(size) for size in taps) > MOST_TAPS:
        return []
    return [Choice("depthwise, taps written out", "template", _loop(given, template, program))]


def _loop(given: Convolution, template: Template, program: Program) -> Loop:
    size = given.out.layout.size
    ranges = tuple(Range(loop_var(n), extent) for n, extent in enumerate(size))
    number, channel, *pixels = (r.var for r in ranges)
    extents = {r.var: r.size for r in ranges}
    group = floordiv(channel, floordiv(size[1], sympy.Integer(given.groups)), extents)

    def factors(tap: tuple[int, ...]) -> tuple[Node, Node]:
        steps = zip(pixels, tap, given.stride, given.padding, given.dilation, strict=True)
        places = [step * pixel + spread * t - pad for pixel, t, step, pad, spread in steps]
        pairs = zip(places, given.image.layout.size[2:], strict=True)
        mask = reduce(logical_and, (each for pair in pairs for each in _limits(*pair, extents)), None)
        element = load(given.image.buffer, (number, group, *places), given.dtype, (), mask)
        weight = load(given.weight.buffer, (channel, sympy.Integer(0), *map(sympy.Integer, tap)), given.dtype)
        return element, weight

    taps = all_of(*(range(int(extent)) for extent in given.weight.layout.size[2:]))
    total = written_out(map(factors, taps))
    if given.bias is not None:
        bias = load(given.bias.buffer, (channel,), program.buffers[given.bias.buffer].dtype)
        total = call("add", total, cast(bias, torch.float32))
    return plain(program, template, cast(total, given.out.dtype), ranges, None, tuple(r.var for r in ranges)).loop


def _limits(at: Expr, size: Expr, extents: Ranges) -> Iterator[Node]:
    """Yields what has to hold for a position to lie inside of the input, and does not hold in any case."""
    least, most = bounds(at, extents)
    if least is None or not known_nonnegative(least):
        yield call("ge", index(at), index(0))
    if most is None or not known_less(most, size):
        yield call("lt", index(at), index(size))

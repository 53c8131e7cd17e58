"""Convolutions as matrix products. In: a convolution of the IR, of 1, 2 or 3 dimensions. Out: a `Gemm`.

    out[image, channel, pixel] = bias[channel] + sum over tap and c of
        weight[channel, c, tap] * input[image, c, pixel * stride + tap * dilation - padding]

Rows are the pixels of all images, columns the output channels, and the depth is (taps, input channels), the channels
walked fastest. Nothing is copied: positions are computed, and what lies in the padding is 0. Groups are a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from litz.cost.contractions import argument_names
from litz.ir import Buffer, Program, Range, Template, TensorRef
from litz.ir.build import call, cast, load
from litz.ir.dtypes import SUPPORTED
from litz.ir.index import ONE, Expr, floordiv, loop_var

from ..epilogue import ACCUMULATOR, accumulator, plain
from .gemm import ACCUMULATE, Gemm, Operand, Product, Unsuitable, depth_var

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
    """A convolution with a batch, of a dtype that tensor cores take. Errors: Unsuitable."""
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
    if any(size == 0 for size in out.layout.size):
        raise Unsuitable("the result is empty")
    bias = bias if isinstance(bias, TensorRef) else None
    if bias is not None:
        buffer = program.buffers[bias.buffer]
        if buffer.layout != bias.layout or buffer.dtype not in SUPPORTED:
            raise Unsuitable("a bias that is a view")
    groups, transposed = int(arguments.get("groups", 1)), bool(arguments.get("transposed"))
    return Convolution(image, weight, bias, stride, padding, dilation, groups, transposed, dtype, out)


def make_convolution(template: Template, program: Program, tf32: bool = False) -> Gemm:
    """The product that a convolution is; its groups are a batch. Errors: Unsuitable."""
    given = read_convolution(template, program)
    image, weight, groups = given.image, given.weight, given.groups
    if given.transposed and set(given.stride) != {1}:
        raise Unsuitable("no template for transposed convolutions with strides")
    value, buffer, ranges = accumulator(program, template, ACCUMULATE[given.dtype])
    number, channel, pixels = ranges[0], ranges[1], ranges[2:]
    batch: tuple[Range, ...] = ()
    place: Expr = channel.var  # of a channel among all
    if groups > 1:
        if not channel.size.is_Integer or int(channel.size) // groups < LEAST_CHANNELS:
            raise Unsuitable(f"no product for groups of fewer than {LEAST_CHANNELS} channels")
        batch = (Range(loop_var(len(ranges)), sympy.Integer(groups)),)
        channel = Range(channel.var, sympy.Integer(int(channel.size) // groups))
        place = batch[0].var * channel.size + channel.var
        ranges = (number, *batch, channel, *pixels)
    index = (number.var, place, *(pixel.var for pixel in pixels))
    value = load(ACCUMULATOR, index, value.dtype)
    depth = _depth(weight, given.transposed, groups)
    taps, inner = depth[:-1], depth[-1]
    first = sum((r.var * inner.size for r in batch), start=sympy.Integer(0))  # of the group's input channels
    # Walked backwards, a transposed convolution of stride 1 is one whose taps reach the other way.
    sign = -1 if given.transposed else 1
    places = [
        step * pixel.var + sign * (spread * tap.var - pad)
        for pixel, tap, step, pad, spread in zip(pixels, taps, given.stride, given.padding, given.dilation, strict=True)
    ]
    position = _flat(image, [number.var, first + inner.var, *places])
    inside = tuple(
        (at, size)
        for at, pad, size, pixel, tap, step, spread in zip(
            places, given.padding, image.layout.size[2:], pixels, taps, given.stride, given.dilation, strict=True
        )
        if given.transposed or pad != 0 or not _reaches_no_further(pixel, tap, step, spread, size)
    )
    left = Operand(image.buffer, given.dtype, position, inside)
    channels = [first + inner.var, channel.var] if given.transposed else [place, inner.var]
    right = Operand(weight.buffer, given.dtype, _flat(weight, [*channels, *(tap.var for tap in taps)]))
    if given.bias is not None:
        bias = load(given.bias.buffer, (place,), program.buffers[given.bias.buffer].dtype)
        value = call("add", value, cast(bias, value.dtype))
    single = {tap.var: sympy.Integer(0) for tap in taps if tap.size == ONE}
    kept = tuple(r for r in depth if r.var not in single) or depth[-1:]
    term = Product(_without(left, single), _without(right, single), _renumbered(kept))
    term = _rename(term, {old.var: new.var for old, new in zip(kept, term.depth)})
    epilogue = plain(program, template, cast(value, given.out.dtype), ranges, {ACCUMULATOR: buffer}, index)
    tf32 = tf32 and given.dtype.itemsize == 4
    return Gemm(batch, (number, *pixels), (channel,), (term,), ACCUMULATE[given.dtype], epilogue, tf32)


def _each(value: Any, dims: int) -> Sequence[int]:
    """A number for each dimension: torch repeats a single one."""
    values = list(value)
    if not all(isinstance(item, int) for item in values):
        raise Unsuitable("strides or padding that are no numbers")
    return values * dims if len(values) == 1 else values


def _depth(weight: TensorRef, transposed: bool, groups: int) -> tuple[Range, ...]:
    """The taps' ranges, then that of a group's input channels."""
    outer, channels, *taps = weight.layout.size
    if transposed:
        channels = floordiv(outer, sympy.Integer(groups))
    return tuple(Range(depth_var(n), size) for n, size in enumerate([*taps, channels]))


def _flat(ref: TensorRef, position: Sequence[Expr]) -> Expr:
    terms = (step * place for step, place in zip(ref.layout.stride, position, strict=True))
    return sympy.expand(sum(terms, start=ref.layout.offset))


def _reaches_no_further(pixel: Range, tap: Range, step: int, spread: int, size: Expr) -> bool:
    """Is the last tap of the last pixel within the image? Known of constant sizes only."""
    last = step * (pixel.size - 1) + spread * (tap.size - 1)
    return bool((size - 1 - last).is_Integer and size - 1 - last >= 0)


def _without(operand: Operand, values: Mapping[Any, Expr]) -> Operand:
    inside = tuple((expr.xreplace(values), size) for expr, size in operand.inside)
    return replace(operand, position=operand.position.xreplace(values), inside=inside)


def _renumbered(ranges: Sequence[Range]) -> tuple[Range, ...]:
    return tuple(Range(depth_var(number), r.size) for number, r in enumerate(ranges))


def _rename(term: Product, names: Mapping[Any, Expr]) -> Product:
    left, right = (_simultaneously(operand, names) for operand in (term.left, term.right))
    return Product(left, right, term.depth)


def _simultaneously(operand: Operand, names: Mapping[Any, Expr]) -> Operand:
    inside = tuple((expr.subs(names, simultaneous=True), size) for expr, size in operand.inside)
    return replace(operand, position=operand.position.subs(names, simultaneous=True), inside=inside)

"""Convolutions as matrix products. In: a convolution of the IR, of 1, 2 or 3 dimensions. Out: a `Gemm`.

    out[image, channel, pixel] = bias[channel] + sum over tap and c of
        weight[channel, c, tap] * input[image, c, pixel * stride + tap * dilation - padding]

Rows are the pixels of all images, columns the output channels, and the depth is (taps, input channels), the channels
walked fastest. Nothing is copied: positions are computed, and what lies in the padding is 0. Groups are a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy

from litz.cost.contractions import argument_names
from litz.ir import Program, Range, Template, TensorRef
from litz.ir.build import call, cast, load
from litz.ir.dtypes import SUPPORTED
from litz.ir.index import ONE, Expr

from ..epilogue import ACCUMULATOR, accumulator, plain
from .gemm import ACCUMULATE, Gemm, Operand, Product, Unsuitable, depth_var


def make_convolution(template: Template, program: Program, tf32: bool = False) -> Gemm:
    """The product that a convolution is. Errors: Unsuitable."""
    arguments = argument_names(template)
    image, weight, bias = (arguments.get(name) for name in ("input", "weight", "bias"))
    if not isinstance(image, TensorRef) or not isinstance(weight, TensorRef):
        raise Unsuitable("operands that are no tensors")
    if arguments.get("transposed"):
        raise Unsuitable("no template for transposed convolutions")
    if arguments.get("groups", 1) != 1:
        raise Unsuitable("no template for grouped convolutions")
    dims = len(weight.layout.size) - 2
    stride, padding, dilation = (_each(arguments[name], dims) for name in ("stride", "padding", "dilation"))
    dtype = program.buffers[image.buffer].dtype
    if dtype not in ACCUMULATE or not dtype.is_floating_point or program.buffers[weight.buffer].dtype != dtype:
        raise Unsuitable(f"no template for {dtype}")
    out = program.buffers[str(template.outputs[0])]
    if out.dtype not in SUPPORTED or len(out.layout.size) != dims + 2:
        raise Unsuitable("a result without a batch")
    value, buffer, ranges = accumulator(program, template, ACCUMULATE[dtype])
    if any(r.size == 0 for r in ranges):
        raise Unsuitable("the result is empty")
    number, channel, pixels = ranges[0], ranges[1], ranges[2:]
    depth = _depth(weight)
    taps, inner = depth[:-1], depth[-1]
    places = [
        step * pixel.var + spread * tap.var - pad
        for pixel, tap, step, pad, spread in zip(pixels, taps, stride, padding, dilation, strict=True)
    ]
    position = _flat(image, [number.var, inner.var, *places])
    inside = tuple(
        (place, size)
        for place, pad, size, pixel, tap, step, spread in zip(
            places, padding, image.layout.size[2:], pixels, taps, stride, dilation, strict=True
        )
        if pad != 0 or not _reaches_no_further(pixel, tap, step, spread, size)
    )
    left = Operand(image.buffer, dtype, position, inside)
    right = Operand(weight.buffer, dtype, _flat(weight, [channel.var, inner.var, *(tap.var for tap in taps)]))
    if isinstance(bias, TensorRef):
        value = call("add", value, cast(_bias(bias, program, channel), value.dtype))
    single = {tap.var: sympy.Integer(0) for tap in taps if tap.size == ONE}
    kept = tuple(r for r in depth if r.var not in single) or depth[-1:]
    term = Product(_without(left, single), _without(right, single), _renumbered(kept))
    term = _rename(term, {old.var: new.var for old, new in zip(kept, term.depth)})
    epilogue = plain(program, template, cast(value, out.dtype), ranges, {ACCUMULATOR: buffer})
    return Gemm((), (number, *pixels), (channel,), (term,), ACCUMULATE[dtype], epilogue, tf32 and dtype.itemsize == 4)


def _each(value: Any, dims: int) -> Sequence[int]:
    """A number for each dimension: torch repeats a single one."""
    values = list(value)
    if not all(isinstance(item, int) for item in values):
        raise Unsuitable("strides or padding that are no numbers")
    return values * dims if len(values) == 1 else values


def _depth(weight: TensorRef) -> tuple[Range, ...]:
    """The taps' ranges, then that of the input channels."""
    _, channels, *taps = weight.layout.size
    return tuple(Range(depth_var(n), size) for n, size in enumerate([*taps, channels]))


def _flat(ref: TensorRef, position: Sequence[Expr]) -> Expr:
    terms = (step * place for step, place in zip(ref.layout.stride, position, strict=True))
    return sympy.expand(sum(terms, start=ref.layout.offset))


def _reaches_no_further(pixel: Range, tap: Range, step: int, spread: int, size: Expr) -> bool:
    """Is the last tap of the last pixel within the image? Known of constant sizes only."""
    last = step * (pixel.size - 1) + spread * (tap.size - 1)
    return bool((size - 1 - last).is_Integer and size - 1 - last >= 0)


def _bias(ref: TensorRef, program: Program, channel: Range) -> Any:
    buffer = program.buffers[ref.buffer]
    if buffer.layout != ref.layout or buffer.dtype not in SUPPORTED:
        raise Unsuitable("a bias that is a view")
    return load(ref.buffer, (channel.var,), buffer.dtype)


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

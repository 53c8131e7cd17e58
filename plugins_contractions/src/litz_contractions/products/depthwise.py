"""Depthwise convolutions as pointwise loops. In: a convolution whose groups have one input channel each. Out: a choice.

    out[image, channel, pixel] = bias[channel] + sum over taps of weight[channel, 0, tap] * input[image, group, place]

There is nothing for tensor cores in it: it reads its input from memory once, and nine or so times from the caches. With
its taps written out it is a pointwise Loop, which core's code generator writes, and which core fuses with its users.
"""

from __future__ import annotations

from itertools import product as all_of
from math import prod

import sympy
import torch

from litz.ir import Loop, Node, Program, Range, Store, Template
from litz.ir.build import call, cast, const, index, load, logical_and
from litz.ir.index import Expr, floordiv, loop_var
from litz_plugins import Choice

from .convolution import Convolution, read_convolution
from .gemm import Unsuitable

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
    total: Node | None = None
    for tap in all_of(*(range(int(extent)) for extent in given.weight.layout.size[2:])):
        places = [
            step * pixel + spread * t - pad
            for pixel, t, step, pad, spread in zip(
                pixels, tap, given.stride, given.padding, given.dilation, strict=True
            )
        ]
        weight = load(given.weight.buffer, (channel, sympy.Integer(0), *map(sympy.Integer, tap)), given.dtype)
        image = _element(given, [number, group], places, size[2:], tap)
        term = call("mul", cast(image, torch.float32), cast(weight, torch.float32))
        total = term if total is None else call("add", total, term)
    assert total is not None
    if given.bias is not None:
        bias = load(given.bias.buffer, (channel,), program.buffers[given.bias.buffer].dtype)
        total = call("add", total, cast(bias, torch.float32))
    store = Store(given.out.name, tuple(r.var for r in ranges), cast(total, given.out.dtype))
    return Loop(template.name, template.device, ranges, (), (store,), template.origins)


def _element(
    given: Convolution, front: list[Expr], places: list[Expr], pixels: tuple[Expr, ...], tap: tuple[int, ...]
) -> Node:
    """The input's element, 0 in the padding."""
    mask: Node | None = None
    zero, sizes = const(0, torch.int64), given.image.layout.size[2:]
    for at, extent, count, t, step, pad, spread in zip(
        places, sizes, pixels, tap, given.stride, given.padding, given.dilation, strict=True
    ):
        if spread * t < pad:
            mask = logical_and(mask, call("ge", index(at), zero))
        room = extent - 1 - (step * (count - 1) + spread * t - pad)
        if not (room.is_Integer and room >= 0):
            mask = logical_and(mask, call("lt", index(at), index(extent)))
    return load(given.image.buffer, (*front, *places), given.dtype, (), mask)


__all__ = ["offer_depthwise"]

"""Convolutions with one order of additions for each result. In: a call's arguments. Out: a product of the weights and
the windows of each sample, so that no sample knows of another.

The gradient of the input is a convolution, too. That of the weights is a sum over the batch, by its meaning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from litz.capture import torch_api

from .orders import computed_in, laid_as, product

aten = torch.ops.aten


def _padded(x: Tensor, sides: Sequence[tuple[int, int]]) -> Tensor:
    """Returns x with zeros at both sides of each of its last dimensions, or without what a negative side takes away."""
    flat = [each for side in reversed(sides) for each in side]
    return aten.constant_pad_nd(x, flat) if any(flat) else x


def _windows(x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """Returns (samples, channels, kernel ..., positions ...) of (samples, channels, sizes ...)."""
    count, places = len(kernel), list[Tensor]()
    for dim, (width, step, apart) in enumerate(zip(kernel, stride, dilation, strict=True)):
        found = (x.shape[2 + dim] - apart * (width - 1) - 1) // step + 1
        at = torch.arange(width).unsqueeze(-1) * apart + torch.arange(found) * step
        shape = [1] * (2 * count)
        shape[dim], shape[count + dim] = width, found
        places.append(at.view(shape))
    return aten.index(x, [None, None, *places])


def _convolved(
    x: Tensor, weight: Tensor, stride: Sequence[int], sides: Any, dilation: Sequence[int], groups: int
) -> Tensor:
    """Returns the convolution in the type that values are computed in."""
    wide, kernel = computed_in(x.dtype), weight.shape[2:]
    windows = _windows(_padded(x, sides), kernel, stride, dilation)
    found = windows.shape[2 + len(kernel) :]
    terms = weight.shape[1] * math.prod(kernel)
    right = windows.reshape(x.shape[0], groups, terms, math.prod(found)).to(wide)
    left = weight.reshape(1, groups, weight.shape[0] // groups, terms).to(wide)
    return product(left, right).reshape(x.shape[0], weight.shape[0], *found)


def _spread(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    more: Sequence[int],
    groups: int,
) -> Tensor:
    """Returns the transposed convolution: one of x with zeros between its elements, by the weights turned around."""
    kernel = weight.shape[2:]
    for dim, step in enumerate(stride, 2):
        if step > 1:
            apart = _padded(x.unsqueeze(dim + 1), [(0, step - 1), *[(0, 0)] * (x.dim() - dim - 1)])
            x = apart.flatten(dim, dim + 1).narrow(dim, 0, (x.shape[dim] - 1) * step + 1)
    turned = weight.flip(list(range(2, weight.dim())))
    turned = turned.view(groups, weight.shape[0] // groups, weight.shape[1], *kernel).transpose(1, 2)
    turned = turned.reshape(groups * weight.shape[1], weight.shape[0] // groups, *kernel)
    reach = [apart * (width - 1) - side for width, apart, side in zip(kernel, dilation, padding, strict=True)]
    sides = [(each, each + extra) for each, extra in zip(reach, more, strict=True)]
    return _convolved(x, turned, [1] * len(kernel), sides, dilation, groups)


def _is_taken(x: Tensor, weight: Tensor) -> bool:
    sizes = (*x.shape[1:], *weight.shape)
    return x.is_floating_point() and all(isinstance(size, int) and size for size in sizes) and x.shape[0] != 0


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    if not _is_taken(x, weight):
        return NotImplemented
    given = (x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    expected = torch_api.fake_result(aten.convolution.default, given, {})
    if transposed:
        made = _spread(x, weight, stride, padding, dilation, output_padding, groups)
    else:
        made = _convolved(x, weight, stride, [(side, side) for side in padding], dilation, groups)
    made = made if bias is None else made + bias.to(made.dtype).view(-1, *[1] * (x.dim() - 2))
    return laid_as(made.to(x.dtype), expected)


def _convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    if not _is_taken(x, weight):
        return NotImplemented
    given = (grad, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask)
    expected = torch_api.fake_result(aten.convolution_backward.default, given, {})
    sides, kernel, made = [(side, side) for side in padding], weight.shape[2:], list[Tensor | None]([None] * 3)
    if output_mask[0] and transposed:
        made[0] = _convolved(grad, weight, stride, sides, dilation, groups)
    elif output_mask[0]:
        left = [
            size + 2 * side - apart * (width - 1) - 1 - (found - 1) * step
            for size, found, step, side, apart, width in zip(
                x.shape[2:], grad.shape[2:], stride, padding, dilation, kernel, strict=True
            )
        ]
        made[0] = _spread(grad, weight, stride, padding, dilation, left, groups)
    if output_mask[1]:
        walked, small = (grad, x) if transposed else (x, grad)
        made[1] = _of_weights(_windows(_padded(walked, sides), kernel, stride, dilation), small, weight, groups)
    if output_mask[2]:
        made[2] = grad.sum([0, *range(2, grad.dim())])
    return tuple(
        own if own is None else laid_as(own.to(x.dtype), like) for own, like in zip(made, expected, strict=True)
    )


def _of_weights(windows: Tensor, small: Tensor, weight: Tensor, groups: int) -> Tensor:
    """Returns the gradient of the weights: a sum over samples and positions. small: has an element for each."""
    samples, positions = small.shape[0], math.prod(small.shape[2:])
    wide = computed_in(small.dtype)
    left = small.reshape(samples, groups, small.shape[1] // groups, positions).permute(1, 2, 0, 3)
    right = windows.reshape(samples, groups, math.prod(weight.shape[1:]), positions).permute(1, 0, 3, 2)
    terms = samples * positions
    found = product(left.reshape(groups, -1, terms).to(wide), right.reshape(groups, terms, -1).to(wide))
    return found.reshape(weight.shape)


RULES: Mapping[Any, Callable[..., Any]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
}
"""Ops and how each is written with a fixed order."""

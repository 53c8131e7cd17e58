"""Calls that read the sizes of a tensor alone, and never its values.

In: a node of a captured graph. Out: which of its arguments that is. What the gradient of a pool reads of the pool's
input is how large the input was, and so does the gradient of a convolution by a fixed weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten


@dataclass(frozen=True)
class SizesAlone:
    """The argument of which an op reads the sizes, dtype and strides alone. unless: which of a convolution's gradients
    is computed from the values."""

    argument: int
    unless: int | None = None


_POOL = SizesAlone(1)

READERS: Mapping[Any, SizesAlone] = {
    aten.avg_pool2d_backward.default: _POOL,
    aten.avg_pool3d_backward.default: _POOL,
    aten._adaptive_avg_pool2d_backward.default: _POOL,
    aten._adaptive_avg_pool3d_backward.default: _POOL,
    aten.max_pool2d_with_indices_backward.default: _POOL,
    aten.max_pool3d_with_indices_backward.default: _POOL,
    aten.adaptive_max_pool2d_backward.default: _POOL,
    aten.adaptive_max_pool3d_backward.default: _POOL,
    aten.fractional_max_pool2d_backward.default: _POOL,
    aten.fractional_max_pool3d_backward.default: _POOL,
    # The input, where the weight needs no gradient (a fixed blur). A weight itself is in memory anyway.
    aten.convolution_backward.default: SizesAlone(1, unless=1),
}

CONVOLUTION_RESULTS = 10
"""The argument of `convolution_backward` that names the wanted gradients: the input's, the weight's, the bias's."""


def is_read_for_sizes(node: torch.fx.Node) -> bool:
    """Returns whether all who read a tensor read its sizes alone."""
    return bool(node.users) and all(
        (place := size_argument(user)) is not None
        and [at for at, arg in enumerate(user.args) if arg is node] == [place]
        for user in node.users
    )


def lay_out(node: torch.fx.Node, value: Any) -> None:
    """Gives memory without values the strides of the fake tensor `value`: the call that makes the memory names them. A
    node of another kind stays, and memory whose sizes are symbols."""
    if node.target is aten.empty_strided.default and not value._has_symbolic_sizes_strides:
        node.update_arg(1, list(value.stride()))


def size_argument(node: torch.fx.Node) -> int | None:
    """Returns which argument of a call is a tensor whose sizes are all that the call reads; None: no argument is."""
    reader, arguments = READERS.get(node.target), tuple[Any, ...](node.args)
    if reader is None or (reader.unless is not None and arguments[CONVOLUTION_RESULTS][reader.unless]):
        return None
    return reader.argument


__all__ = ["CONVOLUTION_RESULTS", "READERS", "is_read_for_sizes", "lay_out", "size_argument"]

"""What each op is to a layout plan. In: an FX node. Out: its role, and which of its arguments a layout is asked of.

Whatever litz lowers becomes loops, which read and write any strides; library calls with two good layouts are the
convolutions; views lie as what they view; everything else takes the strides of the trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from litz.capture import torch_api

aten = torch.ops.aten

Kind = Literal["source", "convolution", "loop", "view", "reshape", "item", "output", "call"]
"""source: an input or constant. view: of the same memory, its dimensions permuted or cut. reshape: a view whose
dimensions are others. item: one result of an op with several. call: a library call that is none of these."""


@dataclass(frozen=True)
class Convolution:
    """The places of a convolution's tensors among its arguments; `results` of its outputs are of rank 4 or 5."""

    image: int
    weight: int
    tensors: tuple[int, ...]
    results: tuple[int, ...]
    parameters: int
    """The position of the first of stride, padding, dilation, transposed, output_padding and groups."""
    backward: bool


CONVOLUTIONS: dict[Any, Convolution] = {
    aten.convolution.default: Convolution(0, 1, (0, 1), (), 3, False),
    aten.convolution_backward.default: Convolution(1, 2, (0, 1, 2), (0, 1), 4, True),
}

_SAME_FRAME_VIEWS = frozenset({aten.slice.Tensor, aten.alias.default})
_PERMUTATIONS = frozenset({aten.permute.default})


def kind_of(node: torch.fx.Node, lowered: frozenset[Any]) -> Kind:
    """Returns the node's kind. lowered: the ops that litz lowers."""
    if node.op in ("placeholder", "get_attr"):
        return "source"
    if node.op == "output":
        return "output"
    if node.target in CONVOLUTIONS:
        return "convolution"
    if getattr(node.target, "__name__", "") == "getitem":
        return "item"
    if node.target in _SAME_FRAME_VIEWS or node.target in _PERMUTATIONS:
        return "view"
    if torch_api.aliased_argument(node) is not None:
        return "reshape"
    return "loop" if node.target in lowered else "call"


def permutation(node: torch.fx.Node) -> tuple[int, ...]:
    """Returns, for each dimension of a view, which dimension of its base it is."""
    rank = node.meta["val"].dim()
    if node.target in _PERMUTATIONS:
        return tuple(int(dim) % rank for dim in node.args[1])  # type: ignore[union-attr, arg-type]
    return tuple(range(rank))


def takes_statistics_of_parts(node: torch.fx.Node) -> bool:
    """Returns whether the node joins tensors along the second dimension, and a reduction over all others reads it."""
    if node.target is not aten.cat.default or (len(node.args) > 1 and node.args[1] != 1):
        return False
    return any(_reduces_to_channels(user, node.meta["val"].dim()) for user in node.users)


def takes_part_in_statistics(node: torch.fx.Node) -> bool:
    """Returns whether a reduction to channels reads the node, or what is computed of it element by element."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return False
    found, to_see = {node}, [node]
    while to_see:
        for user in to_see.pop().users:
            if _reduces_to_channels(user, value.dim()):
                return True
            after = user.meta.get("val")
            same = isinstance(after, torch.Tensor) and after.shape == value.shape and user.target not in CONVOLUTIONS
            if same and user not in found:
                found.add(user)
                to_see.append(user)
    return False


def _reduces_to_channels(node: torch.fx.Node, rank: int) -> bool:
    """Returns whether the node is a reduction over all of so many dimensions but the second."""
    if node.target not in _STATISTICS or len(node.args) < 2:
        return False
    dims = node.args[1]
    return isinstance(dims, (list, tuple)) and {*dims} == {0, *range(2, rank)}


_STATISTICS = frozenset({aten.var_mean.correction, aten.std_mean.correction, aten.sum.dim_IntList, aten.mean.dim})

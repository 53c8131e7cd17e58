"""Fold what follows a convolution of frozen weights into it: batch norm in inference, any scale or shift by channel.

In: a Graph with constants for its parameters. Out: the Graph with other weights and biases, and without the pointwise
ops behind the convolution. The new weights are computed in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.capture.passes.freezing import constants
from litz.capture.passes.rewrite import Call, Changes, Constant, rewrite
from litz_plugins.records import PassContext

from .fold_constants import CONVERSIONS

aten = torch.ops.aten

Affine = tuple[torch.Tensor, torch.Tensor]
"""(scale, shift) of `scale * convolution + shift`, each a float64 tensor with an element per channel or one."""


@dataclass(frozen=True)
class _Fold:
    """A convolution with the nodes behind it that it takes over, the last of them last, and what it has to compute."""

    chain: tuple[torch.fx.Node, ...]
    affine: Affine


def fold_affine(graph: Graph, context: PassContext | None = None) -> Graph:
    """Returns the graph with scales and shifts by channel folded into the frozen weights of convolutions; the same
    graph if there is nothing to fold."""
    known = constants(graph)
    found = [fold for node in graph.nodes if (fold := _find(node, known)) is not None]
    if not found:
        return graph
    if context is not None:
        for fold in found:
            subject = f"{fold.chain[-1].name} into {fold.chain[0].name}"
            context.record(subject, "folded", "a scale and a shift by channel are part of frozen weights")
    taken_over = frozenset(node for fold in found for node in fold.chain[:-1])
    return rewrite(graph, Changes(emit={fold.chain[-1]: _call(fold, known) for fold in found}, drop=taken_over))


def _find(node: torch.fx.Node, known: Mapping[torch.fx.Node, torch.Tensor]) -> _Fold | None:
    """The longest chain behind a convolution that ends in the convolution's own type."""
    if node.target is not aten.convolution.default or node.args[1] not in known or node.args[6] is not False:
        return None
    if node.args[2] is not None and node.args[2] not in known:
        return None
    value = node.meta["val"]
    affine: Affine = (torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64))
    chain, best = [node], None
    while len(chain[-1].users) == 1:
        (user,) = chain[-1].users
        then = _step(user, chain[-1], affine, known, value)
        if then is None:
            break
        affine = then
        chain.append(user)
        if user.meta["val"].dtype == value.dtype:
            best = _Fold(tuple(chain), affine)
    computes = best is not None and any(user.target not in CONVERSIONS for user in best.chain[1:])
    return best if computes else None


def _step(
    user: torch.fx.Node,
    current: torch.fx.Node,
    affine: Affine,
    known: Mapping[torch.fx.Node, torch.Tensor],
    value: torch.Tensor,
) -> Affine | None:
    """Returns the affine map after `user`; None if it is no longer one by channel."""
    result = user.meta.get("val")
    if not isinstance(result, torch.Tensor) or not result.dtype.is_floating_point or result.dim() != value.dim():
        return None
    if not all(torch_api.same_statically(a, b) for a, b in zip(result.shape, value.shape, strict=True)):
        return None
    if user.target in CONVERSIONS:
        return affine if result.device == value.device else None
    if user.target not in _OPERATIONS or user.kwargs or len(user.args) != 2:
        return None
    left, right = user.args
    if (left is current) == (right is current):
        return None
    other = _by_channel(right if left is current else left, known, value.dim())
    return None if other is None else _OPERATIONS[user.target](*affine, other, left is current)


def _by_channel(operand: Any, known: Mapping[torch.fx.Node, torch.Tensor], rank: int) -> torch.Tensor | None:
    """The operand as float64, one element or one per channel; None if it is neither."""
    if isinstance(operand, (int, float)) and not isinstance(operand, bool):
        return torch.tensor(float(operand), dtype=torch.float64)
    tensor = known.get(operand) if isinstance(operand, torch.fx.Node) else None
    if tensor is None or tensor.dim() > rank or not tensor.dtype.is_floating_point:
        return None
    shape = (1,) * (rank - tensor.dim()) + tuple(tensor.shape)
    if any(extent != 1 for dim, extent in enumerate(shape) if dim != 1):
        return None
    with torch_api.real_mode():
        return tensor.detach().to("cpu", torch.float64).reshape(-1)


_OPERATIONS: Mapping[Any, Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], Affine | None]] = {
    aten.add.Tensor: lambda scale, shift, other, first: (scale, shift + other),
    aten.sub.Tensor: lambda scale, shift, other, first: (scale, shift - other) if first else (-scale, other - shift),
    aten.mul.Tensor: lambda scale, shift, other, first: (scale * other, shift * other),
    aten.div.Tensor: lambda scale, shift, other, first: (scale / other, shift / other) if first else None,
}
"""The affine map (scale, shift) after one operation. Functions take scale, shift, the operation's other operand, and
whether that is the second operand; None where the result is no affine map."""


def _call(fold: _Fold, known: Mapping[torch.fx.Node, torch.Tensor]) -> Call:
    """The convolution with the affine map in its weight and bias."""
    old = fold.chain[0]
    mode = torch_api.fake_mode_of([old.meta["val"]])
    weight, bias = (Constant(made, {"val": torch_api.make_fake(mode, made)}) for made in _weights(fold, known))
    return Call(old.target, (old.args[0], weight, bias, *old.args[3:]), meta=old.meta)  # type: ignore[arg-type]


def _weights(fold: _Fold, known: Mapping[torch.fx.Node, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of the convolution that computes the affine map of the old one."""
    old: Any = fold.chain[0].args
    with torch_api.real_mode():
        weight = known[old[1]]
        channels = weight.shape[0]
        scale, shift = fold.affine
        scale = scale.expand(channels) if scale.dim() == 0 else scale
        wide = weight.detach().to("cpu", torch.float64) * scale.reshape(-1, *(1,) * (weight.dim() - 1))
        bias = shift.expand(channels)
        if old[2] is not None:
            bias = bias + known[old[2]].detach().to("cpu", torch.float64) * scale
        made = torch.empty_like(weight).copy_(wide)
        return made, bias.to(device=weight.device, dtype=weight.dtype)

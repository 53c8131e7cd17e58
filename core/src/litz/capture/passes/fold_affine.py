"""Fold what follows a convolution of frozen weights into it: batch norm in inference, any scale or shift by channel.

In: a Graph with constants for its parameters. Out: the Graph with other weights and biases, and without the pointwise
ops behind the convolution. The new weights are computed in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.capture.passes.constants import CONVERSIONS
from litz.capture.passes.freezing import constants
from litz.capture.passes.rewrite import Call, Constant, Plan, rewrite
from litz_plugins.records import PassContext

aten = torch.ops.aten


@dataclass(frozen=True)
class _Affine:
    """`scale * convolution + shift`, each a float64 tensor with an element per channel or one."""

    scale: torch.Tensor
    shift: torch.Tensor


@dataclass(frozen=True)
class _Fold:
    """A convolution, the last node that it takes over, and what it has to compute."""

    convolution: torch.fx.Node
    last: torch.fx.Node
    affine: _Affine


def fold_affine(graph: Graph, context: PassContext | None = None) -> Graph:
    """The graph with scales and shifts folded into convolutions; the same graph if there are none."""
    known = constants(graph)
    found = [fold for node in graph.nodes if (fold := _find(node, known)) is not None]
    if not found:
        return graph
    if context is not None:
        for fold in found:
            subject = f"{fold.last.name} into {fold.convolution.name}"
            context.record(subject, "folded", "a scale and a shift by channel are part of frozen weights")
    return rewrite(graph, Plan(emit={fold.last: _call(fold, known) for fold in found}, drop=_taken_over(found)))


def _find(node: torch.fx.Node, known: Mapping[torch.fx.Node, torch.Tensor]) -> _Fold | None:
    """The longest chain behind a convolution that ends in the convolution's own type."""
    if node.target is not aten.convolution.default or node.args[1] not in known or node.args[6] is not False:
        return None
    if node.args[2] is not None and node.args[2] not in known:
        return None
    value = node.meta["val"]
    one, zero = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    last, current, affine = node, node, _Affine(one, zero)
    best = affine
    while len(current.users) == 1:
        (user,) = current.users
        then = _step(user, current, affine, known, value)
        if then is None:
            break
        current, affine = user, then
        if user.meta["val"].dtype == value.dtype:
            last, best = user, affine
    return None if last is node or _is_cast_only(node, last) else _Fold(node, last, best)


def _is_cast_only(node: torch.fx.Node, last: torch.fx.Node) -> bool:
    current = node
    while current is not last:
        (current,) = current.users
        if current.target not in CONVERSIONS:
            return False
    return True


def _step(
    user: torch.fx.Node,
    current: torch.fx.Node,
    affine: _Affine,
    known: Mapping[torch.fx.Node, torch.Tensor],
    value: torch.Tensor,
) -> _Affine | None:
    """What the affine map is after `user`; None if it is no longer one by channel."""
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
    return None if other is None else _OPERATIONS[user.target](affine, other, left is current)


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


def _add(affine: _Affine, other: torch.Tensor, first: bool) -> _Affine:
    return _Affine(affine.scale, affine.shift + other)


def _sub(affine: _Affine, other: torch.Tensor, first: bool) -> _Affine:
    return _Affine(affine.scale, affine.shift - other) if first else _Affine(-affine.scale, other - affine.shift)


def _mul(affine: _Affine, other: torch.Tensor, first: bool) -> _Affine:
    return _Affine(affine.scale * other, affine.shift * other)


def _div(affine: _Affine, other: torch.Tensor, first: bool) -> _Affine | None:
    return _Affine(affine.scale / other, affine.shift / other) if first else None


_OPERATIONS: Mapping[Any, Any] = {
    aten.add.Tensor: _add,
    aten.sub.Tensor: _sub,
    aten.mul.Tensor: _mul,
    aten.div.Tensor: _div,
}


def _call(fold: _Fold, known: Mapping[torch.fx.Node, torch.Tensor]) -> Call:
    """The convolution with the affine map in its weight and bias."""
    old = fold.convolution
    mode = torch_api.fake_mode_of([old.meta["val"]])
    weight, bias = (Constant(made, {"val": torch_api.make_fake(mode, made)}) for made in _weights(fold, known))
    return Call(old.target, (old.args[0], weight, bias, *old.args[3:]), meta=old.meta)  # type: ignore[arg-type]


def _taken_over(found: list[_Fold]) -> frozenset[torch.fx.Node]:
    """The convolutions and the nodes between them and the last that they take over."""
    gone: set[torch.fx.Node] = set()
    for fold in found:
        current = fold.convolution
        while current is not fold.last:
            gone.add(current)
            (current,) = current.users
    return frozenset(gone)


def _weights(fold: _Fold, known: Mapping[torch.fx.Node, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of the convolution that computes the affine map of the old one."""
    old: Any = fold.convolution.args
    with torch_api.real_mode():
        weight = known[old[1]]
        channels = weight.shape[0]
        scale = fold.affine.scale.expand(channels) if fold.affine.scale.dim() == 0 else fold.affine.scale
        wide = weight.detach().to("cpu", torch.float64) * scale.reshape(-1, *(1,) * (weight.dim() - 1))
        bias = fold.affine.shift.expand(channels)
        if old[2] is not None:
            bias = bias + known[old[2]].detach().to("cpu", torch.float64) * scale
        made = torch.empty_like(weight).copy_(wide)
        return made, bias.to(device=weight.device, dtype=weight.dtype)

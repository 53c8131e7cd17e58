"""Positions that a forward saves for its backward, in as few bytes as they need.

In: the halves of a joint graph. Out: halves whose forward saves positions within
a row or a plane (max pooling, sorting, `max` along a dimension) as integers of 8, 16 or 32 bits and the backward widen
them where it reads them: torch's are of 64 bits, and often as large as what was pooled. What a pool found in a large
plane is saved as its distance from the first element of the pool's window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from litz.capture.joint.nouns import Halves
from litz.capture.torch_api import fake_mode_around
from litz_passes.joint.window_starts import POOLS, Starts, start_of_each, windows
from litz_passes.nodes import add_call
from litz_plugins import Target, TargetOf
from litz_plugins.records import PassContext

aten = torch.ops.aten

LEAST_BYTES = 1 << 20
"""The fewest bytes of a saved tensor that make narrowing it worth a thought."""

TYPES: tuple[tuple[int, torch.dtype], ...] = ((1 << 8, torch.uint8), (1 << 15, torch.int16), (1 << 31, torch.int32))
"""(what all values are below, the type that holds them), the narrowest first."""


def _of_plane(dims: int) -> Callable[..., int | None]:
    """Positions in the last dimensions of the first argument, row-major."""
    return lambda x, *_: _static(x.shape[-dims:])


def _along(x: torch.Tensor, dim: Any = -1, *_: Any) -> int | None:
    """Positions along one dimension of the first argument, or in all of it."""
    return _static((x.shape[dim],) if isinstance(dim, int) and x.dim() else x.shape)


def _sorted(x: torch.Tensor, *_: Any) -> int | None:
    """Positions along some dimension."""
    return None if _static(x.shape) is None else max((int(size) for size in x.shape), default=1)


BELOW: Mapping[Any, tuple[int | None, Callable[..., int | None]]] = {
    aten.max_pool2d_with_indices.default: (1, _of_plane(2)),
    aten.max_pool3d_with_indices.default: (1, _of_plane(3)),
    aten.adaptive_max_pool2d.default: (1, _of_plane(2)),
    aten.adaptive_max_pool3d.default: (1, _of_plane(3)),
    aten.max.dim: (1, _along),
    aten.min.dim: (1, _along),
    aten.argmax.default: (None, _along),
    aten.argmin.default: (None, _along),
    aten.sort.default: (1, _sorted),
    aten.sort.stable: (1, _sorted),
    aten.topk.default: (1, _sorted),
}
"""Op: which of its results are positions (None: its only one), and what they are below, by its arguments; None if that
is no constant."""

SAME = frozenset(
    {aten.unsqueeze.default, aten.squeeze.dim, aten.view.default, aten.permute.default, aten.clone.default}
)
"""Ops whose result has the values of their first argument."""


def narrow_positions(halves: Halves, context: PassContext) -> Halves:
    """Returns halves whose forward saves positions in the narrowest type that holds them."""
    if not _found(halves, context.target_of):
        return halves
    halves = halves.copy()
    placeholders = {node.name: node for node in halves.backward.graph.find_nodes(op="placeholder")}
    made = {}
    for node, narrow in _found(halves, context.target_of).items():
        made[node] = _narrowed(halves.forward.graph, node, narrow)
        _widened(halves.backward.graph, placeholders[node.name], made[node], narrow.starts)
    outputs, visible = halves.results, halves.forward_outputs
    saved = (made.get(item, item) for item in outputs[visible:])
    halves.forward.graph.output_node().args = ((*outputs[:visible], *saved),)
    return halves


def _found(halves: Halves, target_of: TargetOf) -> dict[torch.fx.Node, Narrow]:
    """Returns the nodes of the forward that are saved alone and can be narrower, and how."""
    outputs, visible = halves.results, halves.forward_outputs
    names = {node.name for node in halves.backward.graph.find_nodes(op="placeholder")}
    found = {}
    for node in dict.fromkeys(outputs[visible:]):
        if isinstance(node, torch.fx.Node) and node not in outputs[:visible] and node.name in names:
            narrow = narrowest(node, target_of)
            if narrow is not None:
                found[node] = narrow
    return found


@dataclass(frozen=True)
class Narrow:
    """The form in which positions are saved: the type, and what they count from (None: the first element)."""

    dtype: torch.dtype
    starts: Starts | None = None


def narrowest(node: torch.fx.Node, target_of: TargetOf) -> Narrow | None:
    """Returns the narrowest form that holds all positions that a node gives; None where the node gives no int64
    positions, has fewer than `LEAST_BYTES` bytes, or its positions have no constant bound."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype != torch.int64 or _static(value.shape) is None:
        return None
    if value.numel() * value.itemsize < LEAST_BYTES:
        return None
    whole = node
    while node.target in SAME and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    made, place = node, None
    if getattr(node.target, "__name__", "") == "getitem":
        made, place = node.args[0], node.args[1]  # type: ignore[assignment]
    which, below = BELOW.get(made.target, (None, None))
    if below is None or which != place or (made.target in POOLS and stay_wide(target_of(value.device))):
        return None
    arguments: list[Any] = [arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg for arg in made.args]
    dtype = _holding(below(*arguments))
    if whole is node and made.target in POOLS and dtype is not None and _static(arguments[0].shape) is not None:
        starts, most = windows(POOLS[made.target], tuple(value.shape), *arguments)
        relative = _holding(most)
        if relative is not None and relative.itemsize < dtype.itemsize:
            return Narrow(relative, starts)
    return None if dtype is None else Narrow(dtype)


def stay_wide(target: Target) -> bool:
    """Returns whether the positions that a pool finds are saved as they are. On a CPU the gradient is mostly torch's
    own kernel, which reads 64 bits, and vectors do not gather less than 32."""
    return "library_windows" in target.abilities


def _holding(most: int | None) -> torch.dtype | None:
    """The narrowest type that holds all numbers below `most`."""
    return None if most is None else next((dtype for limit, dtype in TYPES if most <= limit), None)


def _static(shape: Any) -> int | None:
    """Returns the number of elements of a shape; None where a size varies."""
    return prod(shape) if all(isinstance(size, int) for size in shape) else None


def _narrowed(graph: torch.fx.Graph, node: torch.fx.Node, narrow: Narrow) -> torch.fx.Node:
    """Returns the node that the forward saves in place of a node's positions."""
    value = node.meta["val"]
    with graph.inserting_before(node.next):
        source = node
        if narrow.starts is not None:
            source = add_call(graph, value, aten._to_copy.default, source, dtype=torch.int32)
            source = add_call(graph, value, aten.sub.Tensor, source, start_of_each(graph, narrow.starts, node))
        made = add_call(graph, value, aten._to_copy.default, source, dtype=narrow.dtype)
    made._rename(f"{node.name}_narrow")
    made.meta = _meta(node, narrow.dtype)
    return made


def _widened(graph: torch.fx.Graph, placeholder: torch.fx.Node, saved: torch.fx.Node, starts: Starts | None) -> None:
    """The saved tensor instead of the placeholder's, and what it was for all that read it."""
    readers, positions, value = list(placeholder.users), dict(placeholder.meta), placeholder.meta["val"]
    placeholder.meta = _meta(placeholder, saved.meta["val"].dtype)
    with graph.inserting_before(next(node for node in graph.nodes if node.op != "placeholder")):
        source = placeholder
        if starts is not None:
            source = add_call(graph, value, aten._to_copy.default, source, dtype=torch.int32)
            source = add_call(graph, value, aten.add.Tensor, source, start_of_each(graph, starts, placeholder))
        wide = add_call(graph, value, aten._to_copy.default, source, dtype=torch.int64)
    wide.meta = positions
    for reader in readers:
        reader.replace_input_with(placeholder, wide)
    placeholder._rename(saved.name)  # another tensor than what the forward made
    placeholder.target = placeholder.name


def _meta(node: torch.fx.Node, dtype: torch.dtype) -> dict[str, Any]:
    value = node.meta["val"]
    with fake_mode_around([value]):
        made = torch.empty_strided(value.shape, value.stride(), dtype=dtype, device=value.device)
    return {**{key: item for key, item in node.meta.items() if key != "tensor_meta"}, "val": made}

"""Frames: which dimension of a tensor is the batch, which the channels, which the pixels. In: a Graph. Out: per tensor
of rank 4 or 5 the two orders that a plan chooses from.

A frame spreads from the convolutions: their operands are (batch, channels, pixels...), what loops compute of each other
shares a frame, and a permuted view has a permuted one, so that a channels-first and a channels-last half of a model
(ConvNeXt's) are seen to lie in the same memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from litz.capture.graph import Graph
from litz.capture.layout import traced_order
from litz_layout.roles import CONVOLUTIONS, kind_of, permutation

Frame = tuple[int, ...]
"""Positions of (batch, channels, pixels...) among a tensor's dimensions."""

FIRST, LAST = 0, 1
"""The labels: channels first (row-major in the frame's order), channels last."""

NAMES = ("channels first", "channels last")


@dataclass(frozen=True)
class Orders:
    """The two orders of a tensor, outermost dimension first, and the label it had when traced (None: neither)."""

    first: tuple[int, ...]
    last: tuple[int, ...]
    traced: int | None

    def __getitem__(self, label: int) -> tuple[int, ...]:
        return self.last if label == LAST else self.first


def tensor_of(node: torch.fx.Node) -> torch.Tensor | None:
    """Returns the node's fake tensor if it is a strided one of rank 4 or 5, else None."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and value.dim() in (4, 5):
        return value
    return None


def convolves_images(node: torch.fx.Node) -> bool:
    """Returns whether the node is a convolution of two or three dimensions. A convolution along one dimension has no
    layout to choose, and tensors of rank 4 beside it (a group norm's view of its result) have other dimensions."""
    return node.target in CONVOLUTIONS and any(tensor_of(item) is not None for item in node.all_input_nodes)


def find_orders(graph: Graph, lowered: frozenset[Any]) -> dict[torch.fx.Node, Orders]:
    """Returns the orders of each tensor that has a frame and for which they differ, in the graph's order.

    The orders do not differ where only one of channels and pixels has more than one element.
    """
    frames = _spread(graph, lowered)
    found: dict[torch.fx.Node, Orders] = {}
    for node in graph.nodes:
        if node not in frames:
            continue
        frame, value = frames[node], node.meta["val"]
        first, last = frame, (frame[0], *frame[2:], frame[1])
        sizes = [graph.hint(extent) for extent in value.shape]
        if _real(first, sizes) == _real(last, sizes) or 0 in sizes:
            continue
        traced = _real(traced_order(graph, value), sizes)
        label = {_real(first, sizes): FIRST, _real(last, sizes): LAST}.get(traced) if _dense(graph, value) else None
        found[node] = Orders(first, last, label)
    return found


def _real(order: tuple[int, ...], sizes: list[int]) -> tuple[int, ...]:
    """Returns the order without dimensions of one element, which may lie anywhere."""
    return tuple(dim for dim in order if sizes[dim] != 1)


def _dense(graph: Graph, value: torch.Tensor) -> bool:
    """No gaps, no overlaps: an expanded or sliced tensor lies in neither order."""
    pairs = sorted((graph.hint(step), graph.hint(n)) for step, n in zip(value.stride(), value.shape))
    expected = 1
    for step, extent in pairs:
        if extent != 1:
            if step != expected:
                return False
            expected *= extent
    return True


def _spread(graph: Graph, lowered: frozenset[Any]) -> Mapping[torch.fx.Node, Frame]:
    frames: dict[torch.fx.Node, Frame] = {}
    queue: deque[torch.fx.Node] = deque()

    def give(node: torch.fx.Node, frame: Frame) -> None:
        value = tensor_of(node)
        if node not in frames and value is not None and value.dim() == len(frame):
            frames[node] = frame
            queue.append(node)

    for node in graph.nodes:
        if convolves_images(node):
            for tensor in (*node.all_input_nodes, node, *node.users):
                value = tensor_of(tensor)
                if value is not None:
                    give(tensor, tuple(range(value.dim())))
    while queue:
        node = queue.popleft()
        for neighbour, frame in _neighbours(node, frames[node], lowered):
            give(neighbour, frame)
    return frames


def _neighbours(node: torch.fx.Node, frame: Frame, lowered: frozenset[Any]) -> Iterator[tuple[torch.fx.Node, Frame]]:
    """Tensors that share the node's frame, or a permutation of it."""
    for reader in (node, *node.users):
        kind = kind_of(reader, lowered)
        if kind == "loop":
            for tensor in (*reader.all_input_nodes, reader, *_items(reader)):
                yield tensor, frame
        elif kind == "item":
            maker = reader.args[0]
            if isinstance(maker, torch.fx.Node) and kind_of(maker, lowered) == "loop":
                for tensor in (*maker.all_input_nodes, *maker.users):
                    yield tensor, frame
        elif kind == "view":
            base = reader.args[0]
            assert isinstance(base, torch.fx.Node)
            dims = permutation(reader)
            if reader is node:
                yield base, tuple(dims[at] for at in frame)
            else:
                yield reader, tuple(dims.index(at) for at in frame)


def _items(node: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
    return tuple(node.users) if isinstance(node.meta.get("val"), (tuple, list)) else ()

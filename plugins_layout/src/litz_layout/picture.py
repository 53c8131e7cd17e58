"""A plan as a picture: the graph's tensors from top to bottom, coloured by layout, copies in between. Out: an SVG.

Loops that follow each other in one layout are one box, so that a box is about what one kernel writes. A tensor goes
straight down in its lane; a branch takes the next free one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

import torch

from litz_layout.frames import FIRST, LAST, NAMES
from litz_layout.problem import Problem
from litz_plugins import Conversion

ROW, LANE, WIDTH, HEIGHT = 40, 230, 210, 26
"""Distances and sizes of boxes, in pixels."""
COLOURS: Mapping[int | None, str] = {FIRST: "#7da7e8", LAST: "#f0a35e", None: "#c9ced6"}
NAMES_AT_MOST = 28
"""Letters of a box's text."""


@dataclass
class Box:
    """A box of a picture: nodes of one layout. sources: positions of the boxes that it reads."""

    names: list[str]
    label: int | None
    convolution: bool = False
    copy: bool = False
    sources: list[int] = field(default_factory=list)
    lane: int = 0


def draw(problem: Problem, labels: tuple[int, ...], conversions: Sequence[Conversion]) -> str:
    """Returns the picture as SVG text."""
    boxes = _boxes(problem, labels, conversions)
    _choose_lanes(boxes)
    width = LANE * (1 + max((box.lane for box in boxes), default=0)) + 20
    height = ROW * (len(boxes) + 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, sans-serif" font-size="11">',
        *_key(),
    ]
    for at, box in enumerate(boxes):
        parts += [_line(boxes, source, at) for source in box.sources]
    parts += [_rectangle(at, box) for at, box in enumerate(boxes)]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _boxes(problem: Problem, labels: tuple[int, ...], conversions: Sequence[Conversion]) -> list[Box]:
    boxes: list[Box] = []
    box_of: dict[torch.fx.Node, int] = {}
    copies: dict[tuple[str, str], tuple[str, Conversion]] = {
        (item.tensor, user): (item.tensor, item) for item in conversions for user in item.users
    }
    copied: dict[tuple[str, tuple[int, ...]], int] = {}

    def sources_of(node: torch.fx.Node) -> list[int]:
        found: list[int] = []
        for source in node.all_input_nodes:
            if source.op != "call_function" and source in problem.variable_of and source not in box_of:
                boxes.append(Box([source.name], labels[problem.variable_of[source]]))  # an input, where it is read
                box_of[source] = len(boxes) - 1
            if source not in box_of:
                continue
            item = copies.get((source.name, node.name))
            found.append(box_of[source] if item is None else copy_box(source, item[1]))
        return list(dict.fromkeys(found))

    def copy_box(source: torch.fx.Node, item: Conversion) -> int:
        key = (item.tensor, item.order)
        if key not in copied:
            orders = problem.orders[source]
            label = LAST if item.order == orders.last else FIRST
            boxes.append(Box([f"copy of {item.tensor}"], label, copy=True, sources=[box_of[source]]))
            copied[key] = len(boxes) - 1
        return copied[key]

    nodes = list(problem.variables[0].node.graph.nodes) if problem.variables else []
    for node in nodes:
        at = problem.variable_of.get(node)
        convolution = node in problem.convolutions
        if node.op in ("placeholder", "get_attr") or (at is None and not convolution and node.op != "output"):
            continue
        label = None if at is None else labels[at]
        if convolution and at is None:
            label = next(labels[i] for i, v in enumerate(problem.variables) if v.node is node)
        sources = sources_of(node)
        if node.op == "output":
            if sources:
                boxes.append(Box(["output"], None, sources=sources))
            continue
        if _continues(node, sources, boxes, label, convolution):
            boxes[sources[0]].names.append(node.name)
            box_of[node] = sources[0]
            continue
        boxes.append(Box([node.name], label, convolution, sources=sources))
        box_of[node] = len(boxes) - 1
    return boxes


def _continues(node: torch.fx.Node, sources: list[int], boxes: list[Box], label: int | None, convolution: bool) -> bool:
    """Returns whether a node belongs to the box that it reads: a call's result, or a loop whose only source it is."""
    if convolution or len(sources) != 1 or node.op != "call_function":
        return False
    box = boxes[sources[0]]
    item = getattr(node.target, "__name__", "") == "getitem"
    return not box.copy and box.label == label and (item or not box.convolution) and len(box.names) < 12


def _choose_lanes(boxes: list[Box]) -> None:
    """The lane of the first source that nobody reads any more, else the first that is free."""
    last_use = list(range(len(boxes)))
    for at, box in enumerate(boxes):
        for source in box.sources:
            last_use[source] = at
    busy: dict[int, int] = {}  # lane -> until which row
    for at, box in enumerate(boxes):
        lanes = [boxes[source].lane for source in box.sources if last_use[source] <= at]
        free = (lane for lane in range(len(boxes) + 1) if busy.get(lane, -1) <= at)
        box.lane = lanes[0] if lanes else next(free)
        busy[box.lane] = max(last_use[at], at)


def _place(at: int, box: Box) -> tuple[int, int]:
    return 10 + LANE * box.lane, ROW * (at + 1)


def _line(boxes: list[Box], source: int, target: int) -> str:
    x1, y1 = _place(source, boxes[source])
    x2, y2 = _place(target, boxes[target])
    middle = WIDTH // 2
    return (
        f'<path d="M{x1 + middle} {y1 + HEIGHT} C{x1 + middle} {y1 + ROW} {x2 + middle} {y2 - ROW + HEIGHT} '
        f'{x2 + middle} {y2}" fill="none" stroke="#8b94a0"/>'
    )


def _rectangle(at: int, box: Box) -> str:
    x, y = _place(at, box)
    text = " + ".join(box.names)
    short = text if len(text) <= NAMES_AT_MOST else text[: NAMES_AT_MOST - 1] + "…"
    edge = '#b3261e" stroke-width="2" stroke-dasharray="4 2' if box.copy else "#3c4450"
    weight = ' font-weight="bold"' if box.convolution else ""
    return (
        f'<g><title>{escape(text)}</title><rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="4" '
        f'fill="{COLOURS[box.label]}" stroke="{edge}"/>'
        f'<text x="{x + 8}" y="{y + 17}" fill="#14171a"{weight}>{escape(short)}</text></g>'
    )


def _key() -> list[str]:
    parts: list[str] = []
    for at, label in enumerate((FIRST, LAST)):
        x = 10 + 120 * at
        parts.append(f'<rect x="{x}" y="8" width="14" height="14" rx="3" fill="{COLOURS[label]}"/>')
        parts.append(f'<text x="{x + 20}" y="19" fill="#5b6570">{NAMES[label]}</text>')
    return parts

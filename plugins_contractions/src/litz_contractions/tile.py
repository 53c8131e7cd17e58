"""A tile whose lines are text from the start: what kernels of products and attention are written with.

Core's code generator makes the lines of a loop's values (`litz.tiles.make`) and its printer writes them
(`litz.targets.triton.print`); what surrounds them is text of this plugin, until these kernels are TilePrograms too
(docs/tiles.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from litz.ir import Buffer, Loop, Node
from litz.targets.triton.print import POSITIONS, Printer
from litz.targets.triton.text import IndexText
from litz.tiles.make import Maker
from litz.tiles.names import Names
from litz.tiles.program import Axes, Line, Operand, Value
from litz.tiles.shape import Axis, Tiling


class Tile(Maker):
    """The kernel while its body is written: lines, names, the tile's axes and the values so far."""

    def __init__(
        self,
        loop: Loop,
        buffers: Mapping[str, Buffer],
        tiling: Tiling,
        names: Names,
        index_type: str,
        prefix: str = "",
    ) -> None:
        """index_type: as Triton's text. prefix: of the names of values, where a kernel has several tiles."""
        positions = next(name for name, text in POSITIONS.items() if text == index_type)
        self.printer = Printer(tiling, buffers, names, loop.extents, positions)
        super().__init__(loop, buffers, tiling, positions, prefix)
        self.names, self.index_type = names, index_type

    @property
    def tiling(self) -> Tiling:
        """Returns the tiling."""
        return self.printer.tiling

    @tiling.setter
    def tiling(self, tiling: Tiling) -> None:
        self.printer.tiling = tiling

    @property
    def lines(self) -> list[str]:
        """Returns the text so far."""
        return self.printer.lines

    @lines.setter
    def lines(self, lines: list[str]) -> None:
        self.printer.lines = lines

    @property
    def depth(self) -> int:
        """Returns how far in lines are."""
        return self.printer.depth

    @depth.setter
    def depth(self, depth: int) -> None:
        self.printer.depth = depth

    @property
    def index_text(self) -> IndexText:
        """Returns what prints index expressions."""
        return self.printer.index_text

    def put(self, line: Line) -> None:
        """Prints a line at once."""
        self.printer.print([line])

    def emit(self, *lines: str) -> None:
        """Appends lines, indented by the present depth."""
        self.printer.emit(*lines)

    def shape(self, axes: Iterable[str]) -> str:
        """Returns the shape of a tensor that varies along `axes`, as text."""
        return self.printer.shape(axes)

    def tile_mask(self, axes: Iterable[str]) -> list[str]:
        """Returns the names of the masks that keep a tensor along `axes` within the ranges."""
        return [self.printer.mask(mask) for mask in self.masks(axes)]

    def give(self, node: Node, text: str, axes: Iterable[str] = ()) -> None:
        """Makes a text the value of a node. axes: that the text varies along."""
        self.values[node] = Value(text, node.dtype, frozenset(axes))

    def get(self, node: Node) -> Value:
        """Returns the value of a node, with its text."""
        return self._shown(self.operand(node))

    def full(self, node: Node, axes: Axes, stored: bool = False) -> str:
        """Returns the text of a node's value, spread over all of `axes`. stored: the value as memory holds it."""
        value = self._shown(self.held(node)) if stored else self.get(node)
        return self.printer.spread(value, axes)

    def bits(self, node: Node) -> str:
        """Returns the text of what memory holds for a node's value."""
        return self.printer.text(self.held(node))

    def _shown(self, operand: Operand) -> Value:
        return Value(self.printer.text(operand), operand.dtype, operand.axes)


def write_axis(tile: Tile, axis: Axis, index: str) -> None:
    """Emits `xindex` (for the axis x), its mask if the axis has one, and the loop variables that the index is made of.
    index: the index's text."""
    tile.printer.write_axis(axis, index)


__all__ = ["Tile", "Value", "write_axis"]

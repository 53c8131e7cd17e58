"""The ends of rows that are not aligned: what lies in no whole group of lanes, computed once more by a small tile.

In: a tile of whole rows with a frame, whose rows' results are known. Out: a call, and the function that it calls. At
each end of a row there are less than `lanes` such elements, in the registers of one thread, which would store them one
by one while the others wait: 16 stores of which each has an address and a mask, about 150 of the 900 instructions of a
softmax of 197 columns. The small tile has a lane for each of them: it loads them again, from the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from litz.ir import Store
from litz.ir.index import Expr
from litz.ir.node import Node

from .indices import write_indices, write_variables
from .stores import store_lines
from .tiling import Axis
from .values import Tile, Value


def are_apart(tile: Tile) -> bool:
    """Returns whether the ends of a tile's rows are left to a small tile: rows have room for both."""
    frame, r = tile.tiling.frame, tile.tiling.axis("r")
    return tile.tiling.ends_apart and frame is not None and r is not None and int(r.size) >= 2 * frame.lanes


class Ends(Tile):
    """A tile of the first elements of rows and the last, each row with a mask of its own."""

    def framed(self, site: Node | Store, buffer: str, offset: Expr, masked: bool = False) -> None:
        """Returns None: no access is made in whole groups of lanes."""

    def is_masked(self, axis: Axis) -> bool:
        """Returns whether an axis has a mask; that of the row always has."""
        return axis.name == "r" or super().is_masked(axis)

    def axes_of(self, expr: Expr, indirect: Iterable[Value] = ()) -> frozenset[str]:
        """Returns the axes that an index varies along; the row's mask varies from row to row."""
        found = super().axes_of(expr, indirect)
        return found | {"x"} if "r" in found else found


def write_ends(tile: Tile, stores: Sequence[Store], program: str) -> None:
    """Emits a call that stores the ends of the rows. program: the text of the number of the program."""
    frame, r = tile.tiling.frame, tile.tiling.axis("r")
    assert frame is not None and r is not None
    lanes, length, block = frame.lanes, int(r.size), 2 * frame.lanes
    axes = tuple(replace(axis, block=block) if axis.name == "r" else axis for axis in tile.tiling.axes)
    ends = Ends(tile.loop, tile.buffers, replace(tile.tiling, axes=axes), tile.names, tile.index_type, "end_")
    ends.texts = tile.texts
    kept = {node: value for node, value in tile.values.items() if not tile.loop.levels[node] and "r" not in value.axes}
    ends.values = {node: value for node, value in kept.items() if value.text.isidentifier()}
    passed = dict.fromkeys(value.text for value in ends.values.values())
    write_indices(ends, "number")
    # Every third, as a permutation: to neighbours of one thread Triton would give all the elements.
    ends.emit("rlane = (tl.arange(0, RBLOCK) * 3 % RBLOCK)[None, :]")
    ends.emit(f"rlead = ({ends.index_text(frame.start)}) & {lanes - 1}")
    ends.emit(f"rindex = tl.where(rlane < {lanes}, rlane, rlane + {length - block})")
    ahead = f"rlane < (({lanes} - rlead) & {lanes - 1})"
    behind = f"rlane >= {block} - ((rlead + {length}) & {lanes - 1})"
    ends.emit(f"rmask = tl.where(rlane < {lanes}, {ahead}, {behind})")
    write_variables(ends, "rindex", r.ranges)
    ends.compute([root for store in stores for root in store.roots])
    for store in stores:
        store_lines(ends, store, inner=True)
    tile.limits += ends.limits
    tile.functions |= ends.functions
    buffers = dict.fromkeys(tile.names.buffers[name] for name in (*tile.loop.reads, *tile.loop.writes))
    index = ["INDEX"] if tile.index_type == "INDEX" else []
    given = [*buffers, *tile.names.sizes.values(), "number", *passed, *index]
    parameters = ", ".join(f"{name}: tl.constexpr" if name == "INDEX" else name for name in given)
    body = "\n".join(ends.lines)
    tile.functions["litz_ends"] = f"@triton.jit\ndef litz_ends({parameters}):\n{body}\n\n"
    tile.emit(f"litz_ends({', '.join(program if name == 'number' else name for name in given)})")

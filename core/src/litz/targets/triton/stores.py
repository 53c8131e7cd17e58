"""Stores of a tile, plain and combining.

A combining store is an atomic operation. The maximum and the minimum of floats are those of their bits as integers;
what else the hardware has no atomic for (products, types of 8 and 16 bits) goes through a helper that compares and
swaps until it has won.
"""

from __future__ import annotations

import torch

from litz.codegen.dialect import combining
from litz.ir import Store

from .dialect import ELEMENTS
from .values import Tile


def store_lines(tile: Tile, store: Store, inner: bool = False) -> None:
    """Emits a store whose values are computed already. `inner`: the store runs once per point of the reduction ranges
    too."""
    level = tile.level_axes(inner)
    indirect = [tile.get(node) for node in store.indirect]
    # Spread over the level: each point stores, wherever to.
    framed = tile.framed(store, store.buffer, store.index[0], store.mask is not None) if inner else None
    pointer, _ = framed or tile.pointer(store.buffer, store.index[0], indirect, level)
    masks = tile.tile_mask(level)
    if store.mask is not None:
        masks.append(tile.get(store.mask).text)
    masks += tile.not_empty(store.indirect)
    value = tile.bits(store.value)
    if framed is not None:
        _store_row(tile, pointer, value)
        return
    if store.mode == "set":
        given = f", {' & '.join(masks)}" if masks else ""
        tile.emit(f"tl.store({pointer}, {value}{given})")
        return
    dtype = tile.buffers[store.buffer].dtype
    value = f"tl.broadcast_to({value}, {tile.shape(level)}).to({ELEMENTS[dtype]})"
    # Of the full shape: Triton's interpreter reads a broadcast mask as if it were not broadcast.
    mask = " & ".join([f"tl.full({tile.shape(level)}, True, tl.int1)", *masks])
    native = _native(store.mode, dtype)
    if native is not None:
        given = f", {mask}" if masks else ""
        tile.emit(f'{native}({pointer}, {value}{given}, sem="relaxed")')
        return
    mode = combining(store.mode, dtype)
    if dtype in (torch.float32, torch.float64) and mode in ("max", "min"):
        tile.emit(f'_atomic_extreme({pointer}, {value}, {mask}, "{mode}")')
        return
    base, _, offset = pointer.partition(" + ")
    width = "_narrow" if dtype.itemsize == 1 else ""
    tile.emit(f'_atomic{width}({base}, {offset}, {value}, {mask}, "{mode}")')


def _store_row(tile: Tile, pointer: str, value: str) -> None:
    """Emit the store of rows that are not aligned: whole groups of lanes, then what is left of the row at both ends, an
    element at a time. With the same pointers, so that each thread stores what it has."""
    masks, (tiling, frame) = tile.tile_mask({"x"}), (tile.tiling, tile.tiling.frame)
    axis = tiling.axis("r")
    assert frame is not None and axis is not None
    tile.emit("rwhole = (rlane >= rhead) & (rlane < rtail)")
    tile.emit(f"tl.store({pointer}, {value}, {' & '.join([*masks, 'rwhole'])})")
    ends = f"tl.store({pointer}, {value}, {' & '.join([*masks, 'rmask', '(rwhole == 0)'])})"
    if tiling.persistent:
        tile.emit(ends)
        return
    # Most blocks of a long row have no end in them.
    last = int(axis.size) - frame.lanes
    tile.emit(f"if (roffset == 0) | (roffset + RBLOCK > {last}):", f"    {ends}")


def _native(mode: str, dtype: torch.dtype) -> str | None:
    """The atomic that the hardware has, or None."""
    if mode == "add" and dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        return "tl.atomic_add"
    if dtype in (torch.int32, torch.int64, torch.uint32, torch.uint64) and mode in ("add", "max", "min"):
        return f"tl.atomic_{mode}"
    return None

"""Loops without reductions: one nest, or tiles where memory is contiguous along different ranges."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from litz.ir.dtypes import ROUNDED
from litz.ir.index import ONE, Expr, stride_of
from litz.ir.operation import Range

from .dialect import ELEMENTS
from .halves import BLOCK, Halves
from .loops import Writer
from .tiling import is_tiny

CHUNK = 4096
"""Elements of the vector loop that a thread takes at a time where the loops outside of it are few."""


def write_pointwise(w: Writer) -> None:
    """Writes all nodes and stores of a tiling without reductions."""
    nodes, vector = w.body.missing(w.roots), w.tiling.vector

    def inside() -> None:
        w.body.store(*w.final)

    if vector is None:
        w.body.write(nodes)
        inside()
        return
    if w.tiling.swap is not None and not w.atomic:
        _Tiles(w, w.tiling.swap, vector).write()
        return
    owned = _owned_range(w) if w.atomic else None
    if owned is not None:
        _write_owned(w, owned)
        return
    outer = [r for r in w.loop.ranges if r != vector]
    simd = () if w.atomic else w.simd()
    halves = Halves(w, vector, nodes, w.final)
    if halves and not w.atomic and not is_tiny(vector):
        _write_halves(w, outer, vector, halves)
        return
    apart = w.one_by_one(nodes, [vector]) if is_tiny(vector) else ()
    half = any(access.dtype in ROUNDED for access in (*w.loop.loads, *(store.value for store in w.final)))
    if outer and is_tiny(vector) and not is_tiny(outer[-1]) and not w.atomic and (half or not apart):
        # Too short for a vector: its few steps are unrolled within the loop around it, whose iterations are the lanes.
        # Steps that must stay apart are vectors all the same, of few lanes: twice as fast as one by one, save for half
        # types, whose conversions take longer so.
        short = w.level(vector, ("#pragma GCC unroll 8",), apart)
        if len(outer) == 1:
            w.nest([w.level(outer[0], w.parallel(1, simd=True)), short], nodes, inside)
            return
        levels = [*(w.level(r) for r in outer[:-1]), w.level(outer[-1], simd), short]
        w.nest(levels, nodes, inside, shared=len(outer) - 1)
        return
    if not outer:
        # Atomic updates are calls in a plain loop; everything else vectorizes.
        w.nest([w.level(vector, w.parallel(1, simd=not w.atomic))], nodes, inside)
        return
    levels = [w.level(r) for r in outer]
    if w.threaded and (not vector.size.is_Integer or int(vector.size) >= 2 * CHUNK):
        levels += [w.chunks(vector, CHUNK, "c"), w.level(vector, simd, chunk="c")]
    else:
        levels.append(w.level(vector, simd, () if simd else apart))
    w.nest(levels, nodes, inside, shared=len(levels) - 1)


def _write_halves(w: Writer, outer: Sequence[Range], vector: Range, halves: Halves) -> None:
    """The nest in blocks of the vector loop, with conversions before and after each."""
    levels = [*(w.level(r) for r in outer), w.chunks(vector, BLOCK, "c")]

    def element() -> None:
        for store in w.final:
            halves.store(store, "c")

    def block() -> None:
        halves.before("c", "c_end")
        w.nest([w.level(vector, w.simd(), chunk="c")], w.body.missing(w.roots), element)
        halves.after("c", "c_end")

    outside = [node for node in w.body.missing(w.roots) if vector.var not in w.body.variables[node]]
    w.nest(levels, outside, block, shared=len(levels))


OWNED = 16
"""Elements that a thread owns at least: a cache line of floats, which no other thread then writes."""


def _owned_range(w: Writer) -> Range | None:
    """A range that keeps combining stores apart: iterations that differ in it never meet at an element.

    That holds where each store's index is `var` plus multiples of the range's extent (a row of a table, say).
    """
    combining = [store for store in w.final if store.mode != "set"]
    for r in w.loop.ranges:
        if not r.size.is_Integer or int(r.size) < 4 * OWNED:
            continue
        if all(stride_of(s.index[0], r.var) == ONE and _rest_divides(s.index[0], r) for s in combining):
            return r
    return None


def _rest_divides(index: Expr, r: Range) -> bool:
    rest = (index - r.var).expand()
    return all((term.as_coeff_Mul()[0] % r.size) == 0 for term in rest.as_ordered_terms())


def _write_owned(w: Writer, owned: Range) -> None:
    """Threads share the owned range, and each walks all other ranges in order: no atomics, and always the same sums."""
    others = [r for r in w.loop.ranges if r != owned]
    step = max(OWNED, min(64, int(owned.size) // 16 // OWNED * OWNED))
    w.body.threads = False
    levels = [w.chunks(owned, step, "c"), *(w.level(r) for r in others), w.level(owned, w.simd(), chunk="c")]
    w.nest(levels, w.body.missing(w.roots), lambda: w.body.store(*w.final), shared=1)


TILE_BYTES = 16 * 1024
"""What the tiles of one kernel may take together: half of the nearest cache."""


class _Tiles:
    """Tiles over two ranges, for memory that is contiguous along one and memory that is contiguous along the other.

    What is contiguous along `swap` passes through a tile in the nearest cache, transposed on its way in or out. Every
    cache line is then used whole while it is there, and the loop that computes is contiguous throughout.
    """

    def __init__(self, w: Writer, swap: Range, vector: Range) -> None:
        self.w, self.swap, self.vector = w, swap, vector
        self.loads = [n for n in w.loop.loads if not n.args and self._across(n.index[0])]
        self.stores = [s for s in w.final if not s.indirect and s.mask is None and self._across(s.index[0])]
        staged = [n.dtype.itemsize for n in self.loads] + [s.value.dtype.itemsize for s in self.stores]
        self.side = next((n for n in (64, 32) if n * n * sum(staged) <= TILE_BYTES), 16)

    def _across(self, index: Expr) -> bool:
        step = stride_of(index, self.vector.var)
        return stride_of(index, self.swap.var) == 1 and step is not None and step != 0

    def write(self) -> None:
        w = self.w
        outer = [r for r in w.loop.ranges if r not in (self.swap, self.vector)]
        chunks = [w.chunks(self.swap, self.side, "a"), w.chunks(self.vector, self.side, "b")]
        levels = [*(w.level(r) for r in outer), *chunks]
        inner = {self.swap.var, self.vector.var}
        outside = [node for node in w.body.missing(w.roots) if not w.body.variables[node] & inner]
        w.nest(levels, outside, self._tile, shared=len(levels))

    def _tile(self) -> None:
        w, body, lines = self.w, self.w.body, self.w.lines
        row, lane = w.index.names[self.swap.var], w.index.names[self.vector.var]
        here = f"[({row} - a) * {self.side} + ({lane} - b)]"
        for load in self.loads:
            name = self._array(load.dtype)
            place, step = self._corner(load.buffer, load.index)
            lines.add(f"transpose(&{place}, {step}, {name}, {self.side}, b_end - b, a_end - a);")
            body.staged[load] = name + here
        names = {id(store): self._array(store.value.dtype) for store in self.stores}

        def element() -> None:
            for store in w.final:
                if id(store) in names:
                    lines.add(f"{names[id(store)]}{here} = {body.element(store.value)};")
                else:
                    body.store(store)

        levels = [w.level(self.swap, chunk="a"), w.level(self.vector, w.simd(), chunk="b")]
        w.nest(levels, body.missing(w.roots), element)
        for store in self.stores:
            place, step = self._corner(store.buffer, store.index)
            lines.add(f"transpose({names[id(store)]}, {self.side}, &{place}, {step}, a_end - a, b_end - b);")

    def _array(self, dtype: torch.dtype) -> str:
        name = self.w.body.name("tile")
        self.w.lines.add(f"alignas(64) {ELEMENTS[dtype]} {name}[{self.side * self.side}];")
        return name

    def _corner(self, buffer: str, index: tuple[Expr, ...]) -> tuple[str, str]:
        """Returns the address of the tile's first element, and the stride along `vector`."""
        step = stride_of(index[0], self.vector.var)
        assert step is not None
        place = self.w.body.place(buffer, index, at={self.swap.var: "a", self.vector.var: "b"})
        return place, self.w.index.text(step)

"""Loops without reductions: one nest, or tiles where memory is contiguous along different ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch

from litz.ir.dtypes import ROUNDED
from litz.ir.index import ONE, Expr, stride_of
from litz.ir.node import Node, walk
from litz.ir.operation import Range
from litz.tiles.program import Each, Element, Put, Room

from .halves import BLOCK, Halves
from .jam import cost_of
from .loops import Writer
from .tiling import EXPENSIVE, TABLED_ROWS, USUAL, is_tiny, known, reads_conditionally
from .turned import Turned


def write_pointwise(w: Writer) -> None:
    """Makes all nodes and stores of a tiling without reductions."""
    vector = w.tiling.vector
    if vector is None:
        w.body.write(w.body.missing(w.roots))
        w.body.store(*w.final)
        return
    if w.tiling.swap is not None and not w.combines:
        return _write_turned(w, w.tiling.swap, vector)
    if w.combines and (owned := _owned_range(w)) is not None:
        return _write_owned(w, owned)
    outer = [r for r in w.loop.ranges if r != vector]
    for lane in (vector, *outer[-1:]):
        others = [r for r in outer if r != lane]
        for place in reversed(range(len(others))):
            if tables := _tables(w, others[:place], others[place:], lane):
                return _write_tabled(w, others[:place], others[place:], lane, tables)
    _write_plain(w, outer, vector)


def _write_plain(w: Writer, outer: Sequence[Range], vector: Range, block: str = "") -> None:
    """Makes one nest. block: of the first range, where a loop over blocks is around it."""
    nodes, halves = w.body.missing(w.roots), Halves(w, vector, w.body.missing(w.roots), w.final)
    levels = [w.level(r, block if r == outer[0] else "") for r in outer]
    shared = 0 if block else len(outer)
    if halves and not w.combines and not is_tiny(vector):
        shared += not block and not w.tiling.beside
        return _write_halves(w, [*levels, w.chunks(vector, BLOCK, "c")], vector, halves, "c", shared)
    apart = is_tiny(vector) and reads_conditionally(nodes, [vector])
    half = any(access.dtype in ROUNDED for access in (*w.loop.loads, *(store.value for store in w.final)))
    unrolled = is_tiny(vector) and not w.tiling.beside and not w.combines and (half or not apart)
    if unrolled and outer and not is_tiny(outer[-1]):
        # Too short for a vector: its few steps are unrolled within the loop around it, whose iterations are the lanes.
        # Steps that must stay apart are vectors all the same, of few lanes: twice as fast as one by one, save for half
        # types, whose conversions take longer so.
        levels = [*levels[:-1], w.vector(outer[-1]), replace(w.level(vector), unroll=8, apart=apart)]
        shared = max(1, shared - 1)
    elif not outer:
        # Atomic updates are calls in a plain loop; everything else vectorizes.
        levels, shared = [w.vector(vector, vector=not w.combines)], 1
    elif not block and w.threaded and (not vector.size.is_Integer or int(vector.size) >= 2 * w.limits.chunk_elements):
        levels += [w.chunks(vector, w.limits.chunk_elements, "c"), w.vector(vector, "c", not w.combines)]
        shared += 1
    else:
        levels.append(replace(w.vector(vector, vector=not w.combines), apart=apart and w.combines))
    w.nest(levels, nodes, lambda: w.body.store(*w.final), shared=shared)


def _tables(w: Writer, outer: Sequence[Range], rows: Sequence[Range], lane: Range) -> list[Node]:
    """Returns what varies along a range, and neither along the rows nor what is inside, if it costs more than to read
    it from arrays: which rows a resampling reads, and its weights; the scales of channels."""
    body, around = w.body, {lane.var, *(r.var for r in outer)}
    most = w.limits.row_bytes // 8 // known(lane.size, w.limits.row_bytes)
    short = is_tiny(w.loop.ranges[-1]) or prod(known(r.size, USUAL) for r in rows) < TABLED_ROWS
    if short or w.checks or w.combines or w.tiling.beside:
        return []
    alone = {n for n in body.missing(w.roots) if lane.var in body.variables[n] and body.variables[n] <= around}
    used = {*w.roots, *(arg for node in w.loop.nodes if node not in alone for arg in node.args)}
    apart = {n for n in alone if n.op == "load" and stride_of(n.index[0], lane.var) != ONE}
    plain = {n for n in alone if n.op == "index" or (n.op == "load" and n not in apart)}
    tables = [n for n in body.missing(w.roots) if n in alone & used - plain]
    costly = bool(apart) or cost_of(walk(*tables, into=alone.__contains__)) >= EXPENSIVE
    return tables if costly and len(tables) <= most else []


def _write_tabled(w: Writer, outer: list[Range], rows: list[Range], lane: Range, tables: Sequence[Node]) -> None:
    """Makes blocks of rows, each with arrays of what its rows share."""
    body, vector = w.body, w.loop.ranges[-1]
    others = prod(known(r.size, USUAL) for r in (*rows[1:], *dict.fromkeys((lane, vector))))
    levels = [*map(w.level, outer), w.chunks(rows[0], max(TABLED_ROWS, 4 * w.limits.chunk_elements // others), "b")]

    def inside() -> None:
        places = {}
        for node in tables:
            dtype = torch.int32 if node.dtype == torch.int64 and body.small(node) else node.dtype
            places[node] = Element(body.name("row"), ((lane.var, "", 1),), dtype, frozenset({w.index.names[lane.var]}))
            w.put(Room(places[node].room, dtype, lane.size))
        with body.each(w.vector(lane)):
            body.write(body.missing(tables))
            w.put(*(Put(place, body.operand(node)) for node, place in places.items()))
        body.visible.update(places)
        _write_plain(w, [*rows, *[lane] * (lane != vector)], vector, "b")

    before = [n for n in body.missing(w.roots) if body.variables[n].issubset(r.var for r in outer)]
    w.nest(levels, before, inside, shared=len(levels))


def _write_halves(
    w: Writer, levels: Sequence[Each], vector: Range, halves: Halves, block: str, shared: int = 0
) -> None:
    """Makes the nest in blocks of the vector loop, with conversions before and after each."""

    def inside() -> None:
        halves.before(block)
        w.nest([w.vector(vector, block)], w.body.missing(w.roots), lambda: w.body.store(*w.final))
        halves.after(block)

    outside = [node for node in w.body.missing(w.roots) if vector.var not in w.body.variables[node]]
    w.nest(levels, outside, inside, shared=shared)


OWNED = 16
"""Elements that a thread owns at least: a cache line of floats, which no other thread then writes."""


def _owned_range(w: Writer) -> Range | None:
    """A range that keeps combining stores apart: iterations that differ in it never meet at an element.

    The iterations keep apart where each store's index is `var` plus multiples of the extent (a row of a table, say).
    """
    long = (r for r in w.loop.ranges if r.size.is_Integer and int(r.size) >= 4 * OWNED)
    return next((r for r in long if all(_keeps_apart(s.index[0], r) for s in w.final if s.mode != "set")), None)


def _keeps_apart(index: Expr, r: Range) -> bool:
    terms = (index - r.var).expand().as_ordered_terms()
    return stride_of(index, r.var) == ONE and all(term.as_coeff_Mul()[0] % r.size == 0 for term in terms)


def _write_owned(w: Writer, owned: Range) -> None:
    """Threads share the owned range, and each walks all other ranges in order: no atomics, and always the same sums."""
    others = [r for r in w.loop.ranges if r != owned]
    step = max(OWNED, min(64, int(owned.size) // w.threads // OWNED * OWNED))
    w.body.atomic = False
    levels = [w.chunks(owned, step, "c"), *(w.level(r) for r in others), w.vector(owned, "c")]
    w.nest(levels, w.body.missing(w.roots), lambda: w.body.store(*w.final), shared=1)


def _write_turned(w: Writer, swap: Range, vector: Range) -> None:
    """Makes tiles over two ranges, for memory that is contiguous along one and memory that is so along the other."""
    turned = Turned(w, swap, vector, "a")

    def inside() -> None:
        turned.before("b")
        halves = Halves(w, vector, w.body.missing(w.roots), w.final, turned.side)
        _write_halves(w, [w.level(swap, "a")], vector, halves, "b")
        turned.after("b")

    outer = [w.level(r) for r in w.loop.ranges if r not in (swap, vector)]
    outside = [node for node in w.body.missing(w.roots) if not w.body.variables[node] & {swap.var, vector.var}]
    levels = [*outer, w.chunks(swap, turned.side, "a"), w.chunks(vector, turned.side, "b")]
    w.nest(levels, outside, inside, shared=len(levels))

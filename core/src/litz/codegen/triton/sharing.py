"""Rows that several programs share: each walks over a part of a row, and they tell each other what they have found.

In: a tile whose tiling says how many programs share a row. Out: its lines. A row that is reduced and then written is
read twice. A program with a long row of its own finds little of it in the cache at the second time, as the rows of all
multiprocessors together are too much; shared rows are fewer at a time.

A program waits here for others, those of its row. It takes a number when it begins, and numbers tell which row and
which part: so whoever waits knows that all programs before it have begun, and no more of them wait than share a row.
While the device has room for that many, some program that all wait for is at work or finds room. (The numbers of CUDA's
grid promise no order.)

In memory, from `counters` on: the next number; then for each exchange a count for each row, and for each row the state
of each of its programs, as words of 32 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from litz.ir import Loop
from litz.ir.dtypes import compute_dtype
from litz.ir.node import walk

from ..kernel_plan import KernelPlan
from .dialect import VALUES

if TYPE_CHECKING:
    from .values import Tile

REDUCTIONS = frozenset({"sum", "prod", "max", "min", "welford_mean", "welford_m2"})
"""Reductions whose states are words of 32 bits, for values of float32."""


SHARED = False
"""Candidate, to be measured: are long rows that do not fit into the cache shared?"""

NEAR = 1 << 17
"""Bytes of the rows at work on a multiprocessor that the cache keeps for the second walk: a third of its part of the
cache of an H100."""

THREADS, MOST = 2048, 16
"""Threads of a multiprocessor, and programs that share a row at most."""


def programs_of_a_row(loop: Loop, plan: KernelPlan, bytes_of_row: int, block: int, warps: int, units: int) -> int:
    """Returns how many programs share each row of a loop whose programs walk over it in blocks; 1 for none. As many as
    the cache asks for, or the multiprocessors; each with two blocks at least."""
    if not SHARED or not may_share(loop, plan):
        return 1
    beside = max(1, THREADS // (32 * warps))
    wanted = max(beside * bytes_of_row // NEAR, beside * units // max(1, plan.hint(loop.numel)))
    most = min(MOST, plan.hint(loop.reduction_numel) // (2 * block))
    count = 1
    while count < wanted and 2 * count <= most:
        count *= 2
    return count


def may_share(loop: Loop, plan: KernelPlan) -> bool:
    """Returns whether programs may share the rows of a loop: it reduces a row in one walk and writes it in another."""
    if len(plan.loops) > 1 or loop.has_scan or not all(r.size.is_Integer and int(r.size) > 0 for r in loop.ranges):
        return False
    walks = plan.stages(loop, one_walk=True).walks
    if len(walks) != 2 or walks[0].stores or walks[1].reduces:
        return False
    reduces = [node for node in loop.nodes if node.op == "reduce"]
    if any(node.attrs[0] not in REDUCTIONS or compute_dtype(node.args[0].dtype) != torch.float32 for node in reduces):
        return False
    # Another program of the row may have stored already what this one loads for its part.
    written = {plan.inplace.get(store.buffer, store.buffer) for store in loop.stores}
    needed = walk(*(root for each in walks for root in each.roots))
    return not any(
        node.op == "load" and not loop.levels[node] and plan.inplace.get(node.buffer, node.buffer) in written
        for node in needed
    )


def write_number(tile: Tile) -> str:
    """Emits which row a program works on and which part of it. Returns the text of the row's number."""
    count = tile.tiling.sharing
    tile.counters = 1
    tile.emit("number = _number(counters)", f"row = number // {count}", f"part = number % {count}")
    return "row"


def exchange(tile: Tile, state: Sequence[str], types: Sequence[torch.dtype]) -> list[list[str]]:
    """Emits the exchange of states among the programs of a row. state: names of the program's own. Returns the names of
    the states of all. Each state is a load of its own: lanes of one tensor would have a layout of their own, into which
    Triton would convert tiles."""
    count, rows, parts = tile.tiling.sharing, tile.tiling.rows, len(state)
    counts, words = tile.counters, tile.counters + rows
    tile.counters = words + rows * parts * count
    own = [f"counters + ((xindex * {parts} + {n}) * {count} + {words} + part)" for n in range(parts)]
    for place, name, dtype in zip(own, state, types, strict=True):
        tile.emit(f"tl.store({place}, {name}{'' if dtype == torch.int32 else '.to(tl.int32, bitcast=True)'})")
    tile.emit("tl.debug_barrier()", f"_await(counters + {counts} + row, {count})")
    found: list[list[str]] = []
    for number in range(count):
        found.append([])
        for n, dtype in enumerate(types):
            place = f"counters + ((xindex * {parts} + {n}) * {count} + {words + number})"
            text = f'tl.load({place}, cache_modifier=".cg")'
            found[-1].append(tile.fresh())
            tile.emit(
                f"{found[-1][-1]} = {text}{'' if dtype == torch.int32 else f'.to({VALUES[dtype]}, bitcast=True)'}"
            )
    return found

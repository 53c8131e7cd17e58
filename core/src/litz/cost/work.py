"""Work: the FLOPs and bytes of an operation. In: an operation and its Program. Out: a `Work`.

Symbolic sizes count with their hints (`Program.hint`). Bytes are those that must cross the memory bus if caches are
perfect: each element of a buffer that an operation touches counts once, however many iterations load it. A broadcast
load therefore costs the buffer's size and not the iteration space's, and two overlapping slices of a buffer cost at
most the buffer. A load that strides over memory costs the target's sectors that it touches (CUDA C++ Best Practices
Guide, "Coalesced access to global memory"; a processor's lines are 64 bytes, and neighbours are often used).

FLOPs come from the `flops` columns of the tables of ops and reductions (`litz.ir`), times the points at which the node
is evaluated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, Literal

import torch

from litz.ir import Buffer, Check, Collective, Extern, Layout, Loop, Node, Program, TensorRef, Wait
from litz.ir.accesses import Access
from litz.ir.dtypes import compute_dtype
from litz.ir.index import Expr, Symbol, is_placeholder, stride_of
from litz.ir.ops import flops_of
from litz.ir.reductions import REDUCTIONS
from litz.target import target_of
from litz_plugins import Target

from .contractions import argument_names, count_contraction

Kind = Literal["none", "loop", "matmul", "convolution", "attention", "other"]

_GATHERS = {
    "aten::embedding": "weight",
    "aten::index_select": "self",
    "aten::gather": "self",
    "aten::index": "self",
    "aten::take": "self",
}
"""Library calls that read no more of this argument than what they return."""

_ALLOCATIONS, _COPIES = ("aten::empty", "aten::new_empty"), ("aten::copy_", "aten::clone")


@dataclass(frozen=True)
class Work:
    """The work of an operation. `flops` by the dtype that they are done in; `pieces` is how many parts of a contraction
    can run at a time (0: as many as there are units); `launches` is how many kernels it is; `alone`: bytes that one
    unit reads by itself, at least. All zero and kind "none" for a view or a no-op."""

    kind: Kind  # "none" for a view or a no-op
    flops: Mapping[torch.dtype, float] = field(default_factory=dict)  # by the dtype that they are done in
    bytes_read: float = 0.0  # from memory
    bytes_written: float = 0.0  # to memory
    pieces: float = 0.0  # that can run at a time; 0: as many as there are units
    launches: int = 1  # how many kernels
    alone: float = 0.0

    @property
    def total_flops(self) -> float:
        """Returns the FLOPs of all dtypes."""
        return float(sum(self.flops.values()))

    @property
    def total_bytes(self) -> float:
        """Returns the bytes read and written."""
        return self.bytes_read + self.bytes_written


NOTHING = Work("none")


def count_work(operation: Any, program: Program, on: Target | None = None) -> Work:
    """Returns the FLOPs and bytes of a Loop, Extern, Template, or of a schedule's kernel. on: the target whose sectors
    count; by default that of the operation's device. A Collective counts its bytes only: what it costs depends on the
    network. Waits and Checks do nothing."""
    loops = (operation,) if isinstance(operation, Loop) else getattr(operation, "loops", ())
    if loops:
        sector = (on or target_of(operation.device)).sector_bytes
        return _together([_loop_work(loop, program, sector) for loop in loops])
    if isinstance(operation, (Wait, Check)) or not isinstance(operation, Extern):
        return NOTHING
    return _extern_work(operation, program)


# ---------------------------------------------------------------------------------------------------------- loops


def _loop_work(loop: Loop, program: Program, sector: int) -> Work:
    extents = {r.var: program.hint(r.size) for r in loop.all_ranges}
    outer = prod(extents[r.var] for r in loop.ranges)
    inner = outer * prod(extents[r.var] for r in loop.reduction_ranges)
    if inner == 0 and outer == 0:
        return NOTHING
    flops: dict[torch.dtype, float] = defaultdict(float)
    for node in loop.nodes:
        each = _node_flops(node)
        if each:
            held = compute_dtype(node.args[0].dtype if node.args else node.dtype)
            whole = node.op == "reduce" or loop.levels[node]
            flops[held] += each * (inner if whole else outer)

    read: dict[str, float] = {}
    written: dict[str, float] = {}
    seen: set[tuple[Any, ...]] = set()
    for access in loop.accesses:
        points = inner if access.inner else outer
        if not access.is_store:
            key = (access.buffer, access.index, access.site.indirect)
            if key in seen:
                continue
            seen.add(key)
        size = _touched(access, extents, points, program, sector)
        if access.is_store:
            _add(written, program, access.buffer, size)
        if access.mode != "set":
            _add(read, program, access.buffer, size)
        if access.mode not in ("set", None):  # an atomic operation
            flops[compute_dtype(program.buffers[access.buffer].dtype)] += points
    return Work("loop", flops, sum(read.values()), sum(written.values()))


def _together(parts: Sequence[Work]) -> Work:
    """Returns the work of loops that run one after the other."""
    if len(parts) == 1:
        return parts[0]
    flops: dict[torch.dtype, float] = defaultdict(float)
    for part in parts:
        for dtype, count in part.flops.items():
            flops[dtype] += count
    return Work("loop", flops, sum(part.bytes_read for part in parts), sum(part.bytes_written for part in parts))


def _node_flops(node: Node) -> int:
    if node.op == "reduce":
        return REDUCTIONS[node.attrs[0]].results[node.attrs[0]].flops
    # A scan does its combination twice, up and down the tree (Blelloch, 1990).
    return flops_of(node, otherwise={"scan": 2, "cast": 1}.get(node.op, 0))


def _add(sizes: dict[str, float], program: Program, name: str, size: float) -> None:
    sizes[name] = min(sizes.get(name, 0.0) + size, bytes_of(program.buffers[name], program, gaps=True))


def _touched(access: Access, extents: Mapping[Symbol, int], points: int, program: Program, sector: int) -> float:
    """Bytes of a buffer that an access touches over the whole loop, sectors included."""
    buffer = program.buffers[access.buffer]
    size, stride = _sizes(buffer.layout, program)
    reach, gathered = 1, False
    step = 0  # the smallest distance, in elements, between neighbours along a loop variable
    variables: set[Symbol] = set()
    for expr, extent, distance in zip(access.index, size, stride):
        if expr.is_Integer:
            continue
        if expr.is_Symbol and expr in extents:
            own, slopes = {expr}, [distance]
        else:
            own = {symbol for symbol in expr.free_symbols if symbol in extents}
            if any(is_placeholder(symbol) for symbol in expr.free_symbols):
                gathered, reach = True, reach * extent
                continue
            slopes = [distance * _slope(expr, var) for var in own]
        variables |= own
        reach *= min(extent, prod(extents[var] for var in own))
        for slope in slopes:
            step = min(step, slope) if step and slope else step or slope
    elements = min(reach, points if gathered else prod(extents[var] for var in variables))
    itemsize = access.itemsize
    # Elements apart from each other bring their neighbours along; a gather along no variable hits anywhere.
    apart = step * itemsize if step else (sector if gathered else itemsize)
    return float(elements * max(itemsize, min(sector, apart)))


def _slope(expr: Expr, var: Symbol) -> int:
    """Returns how much the index grows along a variable; 1 where that varies (a division, a modulus)."""
    found = stride_of(expr, var)
    return abs(int(found)) if found is not None and found.is_Integer else 1


# ---------------------------------------------------------------------------------------------------- library calls


def _extern_work(extern: Extern, program: Program) -> Work:
    target = getattr(extern.target, "_schema", None)
    name = target.name if target is not None else extern.target_name
    made = [output for output in extern.outputs if output is not None and output not in extern.aliases]
    if (not made and not extern.mutates and not extern.effect) or name.startswith(_ALLOCATIONS):
        return NOTHING
    written = sum(bytes_of(program.buffers[output], program) for output in made)
    read: dict[str, float] = {}
    gathered = argument_names(extern).get(_GATHERS.get(name, ""))
    for ref in extern.refs[name == "aten::copy_" :]:  # which reads nothing of what it writes
        size = bytes_of(ref, program)
        _add(read, program, ref.buffer, min(size, written) if ref is gathered else size)
    for mutated in extern.mutates:
        sizes = [bytes_of(ref, program) for ref in extern.refs if ref.buffer == mutated]
        written += max(sizes, default=bytes_of(program.buffers[mutated], program, gaps=True))
    total = sum(read.values())
    if total + written == 0:
        return NOTHING
    contraction = None if isinstance(extern, Collective) else count_contraction(extern, program)
    if contraction is None:
        return Work("loop" if name in _COPIES else "other", {}, total, written)
    flops, between = {contraction.dtype: contraction.flops}, contraction.between / 2
    moved = (total + between, written + between)
    return Work(contraction.use, flops, *moved, contraction.pieces, contraction.launches, contraction.alone)


# ------------------------------------------------------------------------------------------------------------ sizes


def bytes_of(item: Buffer | TensorRef, program: Program, gaps: bool = False) -> float:
    """Returns the bytes of the distinct elements of a buffer or of a view: expanded dimensions count once. gaps: with
    those that strides leave."""
    size, stride = _sizes(item.layout, program)
    elements = prod(extent if step else min(extent, 1) for extent, step in zip(size, stride))
    if gaps and elements:
        elements = max(elements, 1 + sum((extent - 1) * step for extent, step in zip(size, stride)))
    buffer = program.buffers[item.buffer] if isinstance(item, TensorRef) else item
    return float(elements * buffer.dtype.itemsize)


def _sizes(layout: Layout, program: Program) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides as numbers."""
    static = _static_sizes(layout)
    if static is not None:
        return static
    return tuple(map(program.hint, layout.size)), tuple(abs(program.hint(step)) for step in layout.stride)


@lru_cache(maxsize=16384)
def _static_sizes(layout: Layout) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    if not all(expr.is_Integer for expr in (*layout.size, *layout.stride)):
        return None
    return tuple(map(int, layout.size)), tuple(abs(int(step)) for step in layout.stride)

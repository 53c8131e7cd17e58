"""What a loop is expected to take, in microseconds, for comparing it with what it might be fused to or split into.

In: the targets of a compile, and a Program for sizes and hints. Out: a time per loop, from the bytes that it moves,
its arithmetic, how many units it keeps busy and the cost of one launch. It is made for comparing a loop with what it
might be fused to; the times on a Schedule come from the plugins' cost models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from litz.ir import Loop, Program
from litz.ir.accesses import Access
from litz.ir.index import Symbol
from litz.ir.ops import OPS
from litz.ir.reductions import REDUCTIONS
from litz.ir.stages import walks_loading
from litz.target import target_of
from litz_plugins import Ask, Target, TargetOf


@dataclass(frozen=True)
class Cost:
    """What a loop is expected to take: microseconds (launch included), and the bytes and flops behind it. by: who says
    so, core or a plugin."""

    us: float
    bytes: float
    flops: float
    by: str = "core"


def deciding(*costs: Cost) -> str:
    """Who decides where these are compared: the plugins among those who say so, else core."""
    return " and ".join(sorted({cost.by for cost in costs} - {"core"})) or "core"


class CostModel:
    """Times of the loops of one program on its targets. Remembers what it has worked out about sizes and accesses.

    ask: what plugins say of a loop, which goes before core's own formula (`PassContext.ask`).
    """

    def __init__(self, program: Program, target_of: TargetOf = target_of, ask: Ask | None = None) -> None:
        self.program = program
        self.target_of = target_of
        self.ask = ask
        self._targets: dict[torch.device, Target] = {}
        self._hints: dict[object, int] = {}
        self._nbytes: dict[str, int] = {}

    def target(self, device: torch.device) -> Target:
        found = self._targets.get(device)
        if found is None:
            found = self._targets[device] = self.target_of(device)
        return found

    def hint(self, expr: object) -> int:
        found = self._hints.get(expr)
        if found is None:
            found = self._hints[expr] = max(self.program.hint(expr), 0)  # type: ignore[arg-type]
        return found

    def nbytes(self, name: str) -> int:
        found = self._nbytes.get(name)
        if found is None:
            found = self._nbytes[name] = self.hint(self.program.buffers[name].nbytes)
        return found

    def cost(self, loop: Loop) -> Cost:
        """What one loop takes: what a plugin says, else its roofline."""
        target = self.target(loop.device)
        sizes = {r.var: self.hint(r.size) for r in loop.all_ranges}
        outer = 1
        for r in loop.ranges:
            outer *= sizes[r.var]
        inner = 1
        for r in loop.reduction_ranges:
            inner *= sizes[r.var]
        traffic = self._traffic(loop, sizes)
        moved = self._moved(loop, traffic, target, outer, inner)
        flops = self._flops(loop, outer, inner)
        busy = self._busy(loop, traffic, target, outer, inner)
        us = max(moved / target.usual_bandwidth, flops / target.usual_flops) / busy + target.launch_us
        found = None if self.ask is None else self.ask(loop, target, self.program)
        return Cost(us, moved, flops) if found is None else Cost(found[1].us, moved, flops, found[0])

    def reduces_columns(self, loop: Loop) -> bool:
        """Are neighbouring outputs, rather than neighbouring values of one output, neighbours in memory?"""
        sizes = {r.var: self.hint(r.size) for r in loop.all_ranges}
        fast = _fast_variable([each for each in self._traffic(loop, sizes) if not each.access.is_store])
        return any(r.var == fast for r in loop.ranges)

    def _traffic(self, loop: Loop, sizes: Mapping[Symbol, int]) -> list[_Traffic]:
        """What each access of a loop moves. sizes: the extent of each loop variable."""
        walks = walks_loading(loop) if loop.reduction_ranges else {}
        found = []
        for access in loop.accesses:
            buffer, count = self.program.buffers[access.buffer], 1
            for var, extent in sizes.items():
                # What is gathered may lie anywhere, so every iteration counts.
                if access.is_indirect or var in access.symbols:
                    count *= extent
            amount = min(count * buffer.dtype.itemsize, self.nbytes(access.buffer))
            times = walks.get(access.site, 1) if access.mode in (None, "set") else 2
            found.append(_Traffic(access, amount, access.unit_variable(buffer.layout), times))
        return found

    def _moved(self, loop: Loop, traffic: Sequence[_Traffic], target: Target, outer: int, inner: int) -> float:
        """Bytes to and from memory: a buffer once per pass over it, more if it is walked against its grain."""
        row = sum(each.bytes for each in traffic if each.access.inner and not each.access.is_store) / max(outer, 1)
        far = bool(loop.reduction_ranges) and row > target.row_bytes
        fast = _fast_variable(traffic)
        total = 0.0
        per_buffer: dict[tuple[str, bool], float] = {}
        for each in traffic:
            access = each.access
            amount = each.bytes * (each.times if far or access.is_store or not access.inner else 1)
            if fast is not None and not access.is_indirect and each.unit != fast and fast in access.symbols:
                # Tiles hide a part of it in pointwise loops; along a reduction there is no tile to turn.
                amount *= 1.3 if not loop.reduction_ranges else 2.0
            key = (access.buffer, access.is_store)
            if key in per_buffer:
                # Further loads of one buffer come mostly from the cache.
                per_buffer[key] = max(per_buffer[key], amount) + 0.1 * min(per_buffer[key], amount)
            else:
                per_buffer[key] = amount
        total += sum(per_buffer.values())
        return total

    def _flops(self, loop: Loop, outer: int, inner: int) -> float:
        levels = loop.levels if loop.reduction_ranges else {}
        small = large = 0
        for node in loop.nodes:
            row = OPS.get(node.op)
            count = row.flops if row is not None else (1 if node.op in ("load", "cast", "index", "scan") else 0)
            if node.op == "reduce":
                large += 4 if REDUCTIONS[node.attrs[0]].several else 1
            elif levels.get(node, False):
                large += count
            else:
                small += count
        return float(outer) * (small + large * inner)

    def _busy(self, loop: Loop, traffic: Sequence[_Traffic], target: Target, outer: int, inner: int) -> float:
        """The share of the device that the loop keeps busy, in (0, 1]."""
        if not loop.reduction_ranges:
            return 1.0
        parallel = float(outer)
        if "blocks" in target.abilities:
            fast = _fast_variable(traffic)
            if fast is not None and any(r.var == fast for r in loop.ranges):
                # Where outputs are contiguous a unit takes a block of them, for whole cache lines.
                parallel = max(parallel / 32, 1.0)
            elif inner < 512:
                # A unit takes several short rows at a time.
                parallel = max(parallel * inner / 512, 1.0)
        return min(1.0, max(parallel, 1.0) / target.units)


@dataclass(frozen=True)
class _Traffic:
    """What an access moves: bytes over the whole loop, in each of so many walks. unit: the variable that neighbouring
    elements belong to."""

    access: Access
    bytes: float
    unit: Symbol | None
    times: int


def _fast_variable(traffic: Sequence[_Traffic]) -> Symbol | None:
    """The variable that most bytes are contiguous along: what code generation will make the innermost."""
    weights: dict[Symbol, float] = {}
    for each in traffic:
        if each.unit is not None:
            weights[each.unit] = weights.get(each.unit, 0.0) + each.bytes
    return max(weights, key=lambda var: (weights[var], var.name)) if weights else None

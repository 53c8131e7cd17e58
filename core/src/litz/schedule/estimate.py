"""What a loop is expected to take, in microseconds, for comparing it with what it might be fused to or split into.

In: the targets of a compile, and a Program for sizes and hints. Out: a time per loop, from the bytes that it moves,
its arithmetic, how many units it keeps busy and the cost of one launch. It is made for comparing a loop with what it
might be fused to; the times on a Schedule come from the plugins' cost models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from litz.ir import Loop, Node, Program
from litz.ir.index import FloorDiv, Mod, PythonMod, is_placeholder
from litz.ir.ops import OPS
from litz.ir.reductions import REDUCTIONS
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
        self._variables: dict[object, frozenset[object]] = {}

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

    def variables(self, index: tuple[object, ...]) -> frozenset[object]:
        """The symbols in an index."""
        found = self._variables.get(index)
        if found is None:
            found = frozenset(s for expr in index for s in expr.free_symbols)  # type: ignore[attr-defined]
            self._variables[index] = found
        return found

    def unit_variable(self, name: str, index: tuple[object, ...]) -> object | None:
        """The variable along which neighbouring iterations touch neighbouring elements; None if there is none."""
        layout = self.program.buffers[name].layout
        for expr, step in zip(index, layout.stride, strict=True):
            if step == 1:
                found = _unit(expr)
                if found is not None:
                    return found
        return None

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
        accesses = self._accesses(loop, sizes)
        moved = self._moved(loop, accesses, target, outer, inner)
        flops = self._flops(loop, outer, inner)
        busy = self._busy(loop, accesses, target, outer, inner)
        us = max(moved / target.usual_bandwidth, flops / target.usual_flops) / busy + target.launch_us
        found = None if self.ask is None else self.ask(loop, target, self.program)
        return Cost(us, moved, flops) if found is None else Cost(found[1].us, moved, flops, found[0])

    def reduces_columns(self, loop: Loop) -> bool:
        """Are neighbouring outputs, rather than neighbouring values of one output, neighbours in memory?"""
        sizes = {r.var: self.hint(r.size) for r in loop.all_ranges}
        fast = _fast_variable([a for a in self._accesses(loop, sizes) if not a.store])
        return any(r.var == fast for r in loop.ranges)

    def _accesses(self, loop: Loop, sizes: Mapping[object, int]) -> list[_Access]:
        levels = loop.levels if loop.reduction_ranges else {}
        passes = _passes(loop) if loop.reduction_ranges else {}
        found = []
        for node in loop.loads:
            wide = bool(node.args) and bool(node.indirect)
            found.append(
                self._access(node.buffer, node.index, wide, sizes, passes.get(node, 1), levels.get(node, False))
            )
        for store in loop.stores:
            inner = bool(loop.reduction_ranges) and loop.at_reduction_level(store)
            times = 1 if store.mode == "set" else 2
            found.append(self._access(store.buffer, store.index, bool(store.indirect), sizes, times, inner, True))
        return found

    def _access(
        self,
        name: str,
        index: tuple[object, ...],
        indirect: bool,
        sizes: Mapping[object, int],
        times: int,
        inner: bool,
        store: bool = False,
    ) -> _Access:
        count = 1
        used = self.variables(index)
        for var, extent in sizes.items():
            # What is gathered may lie anywhere, so every iteration counts.
            if indirect or var in used:
                count *= extent
        amount = min(count * self.program.buffers[name].dtype.itemsize, self.nbytes(name))
        return _Access(name, amount, self.unit_variable(name, index), used, times, inner, indirect, store)

    def _moved(self, loop: Loop, accesses: list[_Access], target: Target, outer: int, inner: int) -> float:
        """Bytes to and from memory: a buffer once per pass over it, more if it is walked against its grain."""
        row = sum(a.bytes for a in accesses if a.inner and not a.store) / max(outer, 1)
        far = bool(loop.reduction_ranges) and row > target.row_bytes
        fast = _fast_variable(accesses)
        total = 0.0
        per_buffer: dict[tuple[str, bool], float] = {}
        for access in accesses:
            amount = access.bytes * (access.times if far or access.store or not access.inner else 1)
            if fast is not None and not access.indirect and access.unit is not fast and fast in access.used:
                # Tiles hide a part of it in pointwise loops; along a reduction there is no tile to turn.
                amount *= 1.3 if not loop.reduction_ranges else 2.0
            key = (access.buffer, access.store)
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

    def _busy(self, loop: Loop, accesses: list[_Access], target: Target, outer: int, inner: int) -> float:
        """The share of the device that the loop keeps busy, in (0, 1]."""
        if not loop.reduction_ranges:
            return 1.0
        parallel = float(outer)
        if "blocks" in target.abilities:
            fast = _fast_variable(accesses)
            if fast is not None and any(r.var == fast for r in loop.ranges):
                # Where outputs are contiguous a unit takes a block of them, for whole cache lines.
                parallel = max(parallel / 32, 1.0)
            elif inner < 512:
                # A unit takes several short rows at a time.
                parallel = max(parallel * inner / 512, 1.0)
        return min(1.0, max(parallel, 1.0) / target.units)


@dataclass(frozen=True)
class _Access:
    buffer: str
    bytes: float
    unit: object | None
    used: frozenset[object]
    times: int
    inner: bool
    indirect: bool
    store: bool


def _unit(expr: object) -> object | None:
    """The variable that has coefficient 1 in an index expression; None if there is none."""
    if expr.is_Symbol:  # type: ignore[attr-defined]
        return None if is_placeholder(expr) else expr  # type: ignore[arg-type]
    if expr.is_Add:  # type: ignore[attr-defined]
        for term in expr.args:  # type: ignore[attr-defined]
            found = _unit(term) if not term.is_Mul else None
            if found is not None:
                return found
    if isinstance(expr, (Mod, PythonMod)):
        return _unit(expr.args[0])
    if isinstance(expr, FloorDiv):
        return None
    return None


def _fast_variable(accesses: list[_Access]) -> object | None:
    """The variable that most bytes are contiguous along: what code generation will make the innermost."""
    weights: dict[object, float] = {}
    for access in accesses:
        if access.unit is not None:
            weights[access.unit] = weights.get(access.unit, 0.0) + access.bytes
    return max(weights, key=lambda var: (weights[var], str(var))) if weights else None


def _passes(loop: Loop) -> dict[Node, int]:
    """For each load at reduction level: in how many passes over the reduction ranges it is needed."""
    depth = reduction_depth(loop)
    levels = loop.levels
    needed: dict[Node, set[int]] = {}
    for node in reversed(loop.nodes):
        own = needed.setdefault(node, set())
        if levels[node]:
            own.add(depth[node])
        for arg in node.args:
            if levels.get(arg, False):
                passes = needed.setdefault(arg, set())
                # A reduction takes its values in the pass that they belong to.
                passes.update({depth[arg]} if node.op == "reduce" else own)
    return {node: max(1, len(needed.get(node, ()))) for node in loop.loads}


def reduction_depth(loop: Loop) -> dict[Node, int]:
    """For each node: in which pass over the reduction ranges it can be computed, counted from 0."""
    depth: dict[Node, int] = {}
    for node in loop.nodes:
        below = max((depth[arg] for arg in node.args), default=0)
        depth[node] = below + 1 if node.op == "reduce" else below
    return depth

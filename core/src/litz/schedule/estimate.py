"""What fusion and splitting believe of the machine: how long a loop takes, in microseconds.

In: a Machine (a few numbers) and a Program for sizes and hints. Out: a time per loop, from the bytes that it moves,
its arithmetic, how many units it keeps busy and the cost of one launch. It is made for comparing a loop with what it
might be fused to; the times on a Schedule come from the plugins' cost models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from litz.ir import Loop, Node, Program
from litz.ir.index import FloorDiv, Mod, PythonMod, is_placeholder
from litz.ir.ops import OPS
from litz_plugins import DeviceInfo


@dataclass(frozen=True)
class Machine:
    """A device in numbers.

    units: what works independently (SMs, threads). bandwidth: bytes per microsecond to and from memory, all units
    together. flops: per microsecond, likewise. launch_us: what one more kernel costs. row_bytes: how much of a
    reduction's row stays close enough that a second pass over it is free. cache_bytes: the last-level cache.
    max_buffers: the most distinct buffers that one kernel may take.
    """

    type: str
    units: int
    bandwidth: float
    flops: float
    launch_us: float
    row_bytes: int
    cache_bytes: int
    max_buffers: int = 48

    @property
    def is_gpu(self) -> bool:
        return self.type != "cpu"


H100 = Machine("cuda", 132, 2.9e6, 3.0e7, 2.5, 128 << 10, 50 << 20)
"""NVIDIA H100 SXM: 132 SMs, 3.35 TB/s of which copies reach 2.9, arithmetic at half of the FP32 peak."""


def cpu_machine(threads: int | None = None) -> Machine:
    """A CPU with so many threads (torch's by default): 6 GB/s and 8 Gflop/s each, 512 KiB of L2 per core."""
    threads = threads or torch.get_num_threads()
    return Machine("cpu", threads, 6e3 * threads, 8e3 * threads, 2.0, 256 << 10, (1 << 20) * threads, 64)


Machines = Mapping[str, Machine]


@cache
def machine_of(device: torch.device) -> Machine:
    """The machine behind a torch device; an H100 where a GPU is compiled for that is not there."""
    if device.type == "cpu":
        return cpu_machine()
    if device.type == "cuda" and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(device)
        share = properties.multi_processor_count / H100.units
        return Machine(
            "cuda",
            properties.multi_processor_count,
            H100.bandwidth * share,
            H100.flops * share,
            H100.launch_us,
            H100.row_bytes,
            getattr(properties, "L2_cache_size", H100.cache_bytes),
        )
    return H100


def pick_machine(machine: Machine | Machines | Any | None, device: torch.device) -> Machine:
    """The machine of a device, from one machine for all, a mapping by device type, or what torch reports."""
    if isinstance(machine, Mapping):
        return machine.get(device.type) or machine_of(device)
    if machine is None or (device.type == "cpu") != (machine.type == "cpu"):
        return machine_of(device)  # a program for one GPU may have loops on the CPU too
    return machine if isinstance(machine, Machine) else _adopted(machine)


def _adopted(machine: Any) -> Machine:
    """A machine from any record with its figures, such as the cost model's."""
    base = machine_of(torch.device(machine.type))
    return replace(
        base,
        units=machine.units,
        bandwidth=machine.bandwidth,
        launch_us=machine.launch_us,
        cache_bytes=machine.cache_bytes,
        flops=0.5 * machine.vector.get("fp32", 2 * base.flops),
    )


def device_info(device: torch.device) -> DeviceInfo:
    return DeviceInfo(device.type, device.index)


@dataclass(frozen=True)
class Cost:
    """What a loop is expected to take: microseconds (launch included), and the bytes and flops behind it."""

    us: float
    bytes: float
    flops: float


class CostModel:
    """Times of the loops of one program. Remembers what it has worked out about sizes and accesses."""

    def __init__(self, program: Program, machine: Machine | Machines | Any | None = None) -> None:
        self.program = program
        self.machine = machine
        self._machines: dict[torch.device, Machine] = {}
        self._hints: dict[object, int] = {}
        self._nbytes: dict[str, int] = {}
        self._variables: dict[object, frozenset[object]] = {}

    def machine_for(self, device: torch.device) -> Machine:
        found = self._machines.get(device)
        if found is None:
            found = self._machines[device] = pick_machine(self.machine, device)
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
        """The roofline of one loop."""
        machine = self.machine_for(loop.device)
        sizes = {r.var: self.hint(r.size) for r in loop.all_ranges}
        outer = 1
        for r in loop.ranges:
            outer *= sizes[r.var]
        inner = 1
        for r in loop.reduction_ranges:
            inner *= sizes[r.var]
        accesses = self._accesses(loop, sizes)
        moved = self._moved(loop, accesses, machine, outer, inner)
        flops = self._flops(loop, outer, inner)
        busy = self._busy(loop, accesses, machine, outer, inner)
        us = max(moved / machine.bandwidth, flops / machine.flops) / busy + machine.launch_us
        return Cost(us, moved, flops)

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

    def _moved(self, loop: Loop, accesses: list[_Access], machine: Machine, outer: int, inner: int) -> float:
        """Bytes to and from memory: a buffer once per pass over it, more if it is walked against its grain."""
        row = sum(a.bytes for a in accesses if a.inner and not a.store) / max(outer, 1)
        far = bool(loop.reduction_ranges) and row > machine.row_bytes
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
                large += 4 if "welford" in node.attrs[0] else 1
            elif levels.get(node, False):
                large += count
            else:
                small += count
        return float(outer) * (small + large * inner)

    def _busy(self, loop: Loop, accesses: list[_Access], machine: Machine, outer: int, inner: int) -> float:
        """The share of the machine that the loop keeps busy, in (0, 1]."""
        if not loop.reduction_ranges:
            return 1.0
        parallel = float(outer)
        if machine.is_gpu:
            fast = _fast_variable(accesses)
            if fast is not None and any(r.var == fast for r in loop.ranges):
                # Where outputs are contiguous a unit takes a block of them, for whole cache lines.
                parallel = max(parallel / 32, 1.0)
            elif inner < 512:
                # A unit takes several short rows at a time.
                parallel = max(parallel * inner / 512, 1.0)
        return min(1.0, max(parallel, 1.0) / machine.units)


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

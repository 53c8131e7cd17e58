"""What fusion and splitting believe of the machine: how long a loop takes, in microseconds.

In: a Machine (a few numbers) and a Program for sizes and hints. Out: a time per loop, from the bytes that it moves,
its arithmetic, how many units it keeps busy and the cost of one launch. It is made for comparing a loop with what it
might be fused to; the times on a Schedule come from the plugins' cost models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from litz.ir import Loop, Program
from litz.ir.accesses import Access
from litz.ir.index import Symbol
from litz.ir.ops import OPS
from litz.ir.reductions import REDUCTIONS
from litz.ir.stages import walks_loading
from litz_plugins import DeviceInfo, Estimate

EstimateFn = Callable[[object, DeviceInfo, Program], Estimate | None]
"""`estimate(operation or kernel, device, program)`; None when nobody knows."""


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
        traffic = self._traffic(loop, sizes)
        moved = self._moved(loop, traffic, machine, outer, inner)
        flops = self._flops(loop, outer, inner)
        busy = self._busy(loop, traffic, machine, outer, inner)
        us = max(moved / machine.bandwidth, flops / machine.flops) / busy + machine.launch_us
        return Cost(us, moved, flops)

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

    def _moved(self, loop: Loop, traffic: Sequence[_Traffic], machine: Machine, outer: int, inner: int) -> float:
        """Bytes to and from memory: a buffer once per pass over it, more if it is walked against its grain."""
        row = sum(each.bytes for each in traffic if each.access.inner and not each.access.is_store) / max(outer, 1)
        far = bool(loop.reduction_ranges) and row > machine.row_bytes
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

    def _busy(self, loop: Loop, traffic: Sequence[_Traffic], machine: Machine, outer: int, inner: int) -> float:
        """The share of the machine that the loop keeps busy, in (0, 1]."""
        if not loop.reduction_ranges:
            return 1.0
        parallel = float(outer)
        if machine.is_gpu:
            fast = _fast_variable(traffic)
            if fast is not None and any(r.var == fast for r in loop.ranges):
                # Where outputs are contiguous a unit takes a block of them, for whole cache lines.
                parallel = max(parallel / 32, 1.0)
            elif inner < 512:
                # A unit takes several short rows at a time.
                parallel = max(parallel * inner / 512, 1.0)
        return min(1.0, max(parallel, 1.0) / machine.units)


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

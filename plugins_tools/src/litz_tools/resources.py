"""What a CUDA kernel takes of a multiprocessor. In: the cubin. Out: registers, spilled bytes, occupancy.

A cubin is an ELF file. Its section `.nv.info` has records of four bytes and a payload; two of them are the registers of
a thread and the frame of a thread in local memory, which holds what registers have no room for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litz.cache.disk import Cache
from litz.options import Options
from litz.report import CompileReport
from litz.targets.triton import build as triton_build
from litz_plugins import Target

_FRAME, _REGISTERS = 0x11, 0x2F
_VALUE_IN_RECORD = 4
"""The format of a record whose payload follows; the others have two bytes and no payload."""
_ALLOCATED, _RESERVED = 8, 1024
"""Registers are given to threads by eights. A block takes a KiB of shared memory for itself."""
_BLOCKS = 32
"""Blocks that a multiprocessor runs at once, at most."""


@dataclass(frozen=True)
class Resources:
    """The part of a multiprocessor that a kernel takes. registers: of a thread. spilled: bytes of local memory of a
    thread. shared: bytes of a block. threads: of a block. occupancy: the share of a multiprocessor's threads that can
    run at once."""

    registers: int
    spilled: int
    shared: int
    threads: int
    occupancy: float


def read_cubin(cubin: bytes) -> tuple[int, int]:
    """Returns the registers and the bytes of local memory of a thread, the most of all functions. Errors: ValueError
    for what is no cubin."""
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError("this is no ELF file of 64 bits")
    try:
        found: dict[int, int] = {}
        for attribute, value in _records(cubin):
            found[attribute] = max(found.get(attribute, 0), value)
    except struct.error as error:
        raise ValueError(f"the ELF file is cut off: {error}") from error
    return found.get(_REGISTERS, 0), found.get(_FRAME, 0)


def _records(cubin: bytes) -> Iterator[tuple[int, int]]:
    """Yields the attribute and the second word of each record that has two words: of a function, and its value."""
    (sections,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, sections + at * size) for at in range(count)]
    texts = headers[names][4]
    for name, _, _, _, start, length in headers:
        if cubin[texts + name :].split(b"\0", 1)[0] != b".nv.info":
            continue
        at = start
        while at < start + length:
            form, attribute, value = struct.unpack_from("<BBH", cubin, at)
            at += 4
            if form == _VALUE_IN_RECORD:
                if value == 8:
                    yield attribute, struct.unpack_from("<II", cubin, at)[1]
                at += value


def occupancy(registers: int, shared: int, threads: int, target: Target) -> float:
    """Returns the share of a multiprocessor's threads that blocks of a kernel can fill; 0 where the device's figures
    are not known."""
    if not (target.registers and target.threads and threads):
        return 0.0
    each = -(-max(registers, 1) // _ALLOCATED) * _ALLOCATED
    limits = [_BLOCKS, target.threads // threads, target.registers // (each * threads)]
    if target.shared_bytes and shared:
        limits.append((target.shared_bytes + _RESERVED) // (shared + _RESERVED))
    return min(limits) * threads / target.threads


class _NotBuilt(Exception):
    """A kernel is not in the cache."""


def binaries_of(report: CompileReport, options: Options) -> Iterator[tuple[str, Any, Target]]:
    """Yields each CUDA kernel of a graph that is in the cache: its name, its binary, and its target. Compiles
    nothing."""
    if report.code is None or report.plan is None:
        return
    cache = Cache(options.cache_dir, options.cache)
    for name, kernel in report.code.kernels.items():
        target = next((target for device, target in report.plan.targets.items() if str(device) == kernel.device), None)
        if target is None or target.type != "cuda" or kernel.source.language != "triton":
            continue
        with suppress(_NotBuilt, KeyError):
            yield name, _binary(kernel.source, target, cache, report.plan.program), target


def _binary(source: Any, target: Target, cache: Cache, program: Any) -> Any:
    def absent(job: Any, folder: Path) -> str:
        raise _NotBuilt

    variant = triton_build.expected_variant(source, program.hint)
    return triton_build.build(source, divmod(target.capability, 10), cache, variant, absent)


def resources_of(binary: Any, target: Target) -> Resources | None:
    """Returns what a CUDA kernel takes; None where its cubin cannot be read."""
    try:
        registers, spilled = read_cubin(binary.cubin)
    except ValueError:
        return None
    share = occupancy(registers, binary.shared, binary.threads, target)
    return Resources(registers, spilled, binary.shared, binary.threads, share)

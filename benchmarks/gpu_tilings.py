"""Which tiling is best for a kernel: those around the one that litz chooses, measured.

    python -m benchmarks.gpu_tilings [--only NAME ...] [--short] [--dtype bf16 f32] [--seconds S] [--out PATH]

The cases are those of `benchmarks.gpu_kernels`; `--only` takes parts of their names with the type ("softmax 64 f32"),
`--short` those of `SHORT`. Each is scheduled by litz; each of its kernels is written for the
tiling that litz chooses and for others (`alternatives`), all are built side by side, run on the same tensors, compared
with the first, and timed with a cold L2 cache. Printed are the best of each kernel, and the one chosen: microseconds,
and the bytes of all its tensors over the time, as a share of the copy bandwidth.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from litz.cache.disk import Cache
from litz.codegen.kernel_plan import KernelPlan, plan_kernel
from litz.ir import Program
from litz.pipeline import schedule_only
from litz.schedule.schedule import Kernel
from litz.target import target_of
from litz.targets.triton.build import build, expected_variant
from litz.targets.triton.build import load as load_kernel
from litz.targets.triton.codegen import TritonCodegen
from litz.targets.triton.finish import tilings_after
from litz.targets.triton.tile_shape import power_of_two
from litz.targets.triton.tiling import choose_tiling
from litz.tiles.shape import Tiling
from litz_plugins import COUNTERS, CodegenContext, KernelSource

from .gpu_kernels import CASES, DTYPES, Timer, chosen_cases, copy_bandwidth

MOST_ELEMENTS = 64
"""Of a thread, beyond which nothing is tried."""

LONGEST = 65536
"""Elements of a row that is tried as a whole."""

SHORT = (
    "modulation backward bf16",
    "modulation backward f32",
    "batch norm + relu bf16",
    "softmax 50257 bf16",
    "softmax 197 bf16",
    "layer norm 1001 bf16",
    "softmax 49 bf16",
    "softmax 1001 bf16",
    "softmax 64 f32",
    "softmax 4096 f32",
    "softmax 8192 f32",
    "layer norm 4096 f32",
    "layer norm 16384 f32",
    "layer norm 16384 bf16",
    "layer norm 256 bf16",
    "column sum bf16",
    "cross-entropy 50257 bf16",
    "cross-entropy 32768 bf16",
    "batch norm + relu, channels last bf16",
)
"""Cases that were slower than TorchInductor's kernels, or below 0.92 of copy bandwidth, on an H100 on 2026-11-25."""


def alternatives(tiling: Tiling) -> Iterator[Tiling]:
    """The tiling itself, the same without what it does for unaligned rows and for the accumulators, rows beside each
    other in place of rows that begin alike (as they are, and half as many), then others."""
    plain = replace(tiling, frame=None, together=1)
    beside = replace(tiling, axes=tuple(replace(axis, step=1) for axis in tiling.axes))
    first = (tiling, plain, beside, _with(beside, {"x": max(1, tiling.axes[0].block // 2)}))
    seen = dict.fromkeys(first if beside != tiling else first[:2])
    yield from tuple(seen)
    r = tiling.axis("r")
    makers = _pointwise(tiling) if r is None else _whole_rows(tiling) if tiling.persistent else _passes(tiling)
    for other in makers:
        elements = _elements(other)
        if other not in seen and 1 <= elements <= MOST_ELEMENTS:
            seen[other] = None
            yield other


def _elements(tiling: Tiling) -> float:
    """Elements of a thread."""
    total = 1
    for axis in tiling.axes:
        total *= axis.block
    return total / (32 * tiling.num_warps)


def _with(tiling: Tiling, blocks: dict[str, int], **changes: Any) -> Tiling:
    axes = tuple(replace(axis, block=blocks.get(axis.name, axis.block)) for axis in tiling.axes)
    return replace(tiling, axes=axes, **changes)


def _pointwise(tiling: Tiling) -> Iterator[Tiling]:
    if len(tiling.axes) == 1:
        for block in (256, 512, 1024, 2048, 4096):
            for warps in (1, 2, 4, 8):
                if 4 <= block / (32 * warps) <= 32:
                    yield _with(tiling, {"x": block}, num_warps=warps)
        return
    for y in (16, 32, 64, 128, 256):
        for x in (16, 32, 64, 128):
            for warps in (2, 4, 8):
                if 1024 <= y * x <= 8192 and 8 <= y * x / (32 * warps) <= 32:
                    yield _with(tiling, {"y": y, "x": x}, num_warps=warps)


def _whole_rows(tiling: Tiling) -> Iterator[Tiling]:
    x, r, w = tiling.axes[0].block, tiling.axes[1].block, tiling.num_warps
    for rows in dict.fromkeys((x, max(1, x // 2), max(1, x // 4), 2 * x, 4 * x)):
        for warps in (w // 4, w // 2, w, 2 * w, 4 * w):
            if 1 <= warps <= 32 and 4 <= rows * r / (32 * warps) <= 32:
                yield _with(tiling, {"x": rows}, num_warps=warps)
    if x == 1 and r >= 4096:
        yield from _passes(_with(tiling, {"r": r // 4}, persistent=False))


def _passes(tiling: Tiling) -> Iterator[Tiling]:
    x, r = tiling.axes[0].block, tiling.axes[1].block
    if x > 1:
        for stages in (2, 3):
            yield _with(tiling, {}, stages=stages)
        for rows in dict.fromkeys((x, x // 2, 2 * x)):
            for block in (r, r // 2, 2 * r, r // 4, 4 * r):
                for warps in (4, 8, 16):
                    if 4 <= rows * block / (32 * warps) <= MOST_ELEMENTS and block >= 4:
                        yield _with(tiling, {"x": rows, "r": block}, num_warps=warps)
        return
    yield from _held_rows(tiling)
    for stages in (1, 3):
        for warps in (8, 4, 16, 32) if stages == 1 else (4, 8):
            for each in (8, 16, 32) if stages == 1 else (8, 16):
                yield _with(tiling, {"r": 32 * warps * each}, num_warps=warps, stages=stages)


def _held_rows(tiling: Tiling) -> Iterator[Tiling]:
    """Long rows in registers, in place of passes."""
    size = tiling.axes[1].size
    if not size.is_Integer or int(size) > LONGEST:
        return
    lead = 0 if tiling.frame is None else tiling.frame.lanes - 1
    block = power_of_two(int(size) + lead)
    for warps in (32, 16, 8):
        yield _with(tiling, {"r": block}, num_warps=warps, persistent=True, together=1)


def _unaligned(tiling: Tiling) -> Iterator[Tiling]:
    """Rows that begin anywhere: those that begin alike in one program."""
    assert tiling.frame is not None
    x, r = tiling.axes
    period = tiling.frame.period
    for rows in (1, 2, 4, 8) if period else ():
        for each in (16, 32):
            warps = rows * r.block // (32 * each)
            axes = replace(x, block=rows, step=period if rows > 1 else 1), r
            if 1 <= warps <= 16 and rows * r.block >= 512:
                yield replace(tiling, axes=axes, num_warps=warps)


@dataclass(eq=False)
class Variant:
    """One tiling of a kernel."""

    tiling: Tiling
    source: KernelSource
    us: float | None = None
    problem: str = ""

    def __str__(self) -> str:
        steps = {axis.name: f" every {axis.step}" for axis in self.tiling.axes if axis.step > 1}
        blocks = " ".join(f"{axis.name}={axis.block}{steps.get(axis.name, '')}" for axis in self.tiling.axes)
        rest = [f"{self.tiling.num_warps} warps"]
        rest += ["whole rows"] if self.tiling.persistent else []
        rest += ["framed"] if self.tiling.frame is not None else []
        rest += [f"together {self.tiling.together}"] if self.tiling.together > 1 else []
        rest += [f"stages {self.tiling.stages}"] if self.tiling.stages > 1 else []
        return ", ".join([blocks, *rest])


def variants(plan: KernelPlan, most: int) -> list[Variant]:
    """Each tiling's source, the chosen one first."""
    target = target_of("cuda:0")
    chosen = choose_tiling(plan.loops[0], plan, target)
    found = list(alternatives(chosen))
    if chosen.persistent and chosen.frame is not None:
        found[1:1] = list(_unaligned(chosen))
    tilings = [tilings_after(each, plan, target) for each in dict.fromkeys(found)][:most]
    return [Variant(each[0], TritonCodegen().generate_tiled(plan, each)) for each in tilings]


def _build(job: tuple[KernelSource, str, Any]) -> str:
    """In a process of its own: the binary goes into the cache."""
    source, folder, variant = job
    try:
        build(source, divmod(target_of("cuda:0").capability, 10), Cache(Path(folder)), variant)
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _memory(kernel: Kernel, program: Program, source: KernelSource) -> dict[str, torch.Tensor]:
    """Tensors for the buffers of a kernel: random numbers, indices from 0 to 48."""
    found: dict[str, torch.Tensor] = {}
    for name in source.arguments:
        if isinstance(name, str) and name != COUNTERS and name not in kernel.inplace:
            buffer = program.buffers[name]
            count = max(1, program.hint(buffer.layout.span))
            held = torch.zeros(count, dtype=buffer.dtype, device="cuda")
            if buffer.dtype.is_floating_point:
                held.copy_(torch.randn(count, device="cuda"))
            elif buffer.dtype != torch.bool:
                held.copy_(torch.arange(count, device="cuda") * 7919 % 49)
            found[name] = held
    return {**found, **{name: found[other] for name, other in kernel.inplace.items() if other in found}}


def _counters(source: KernelSource) -> dict[str, torch.Tensor]:
    """The zeros that the programs of a kernel count in, if they do."""
    if COUNTERS not in source.arguments:
        return {}
    return {COUNTERS: torch.zeros(source.settings["counters"], dtype=torch.int32, device="cuda")}


def _launch(launch: Callable[..., None], addresses: Sequence[int], counters: torch.Tensor | None) -> None:
    if counters is not None:
        counters.zero_()
    launch(*addresses)


@dataclass(eq=False)
class Job:
    """A kernel of a case, its variants, and the builds of their binaries."""

    case: str
    dtype: str
    kernel: Kernel
    program: Program
    variants: list[Variant]
    builds: list[Future[str]]


def measure(job: Job, timer: Timer, cache: Cache, deadline: float, calls: int) -> int:
    """Fill in the microseconds of each variant; the bytes of the kernel's tensors."""
    kernel, program, found = job.kernel, job.program, job.variants
    memory = _memory(kernel, program, found[0].source)
    context = CodegenContext(None, target_of("cuda:0"), program, cache)  # type: ignore[arg-type]
    wanted: dict[str, torch.Tensor] | None = None
    kept = {name: memory[name].clone() for name in kernel.inplace.values() if name in memory}
    for variant, built in zip(found, job.builds, strict=True):
        try:
            variant.problem = built.result(timeout=max(0.0, deadline - time.monotonic()))
            if variant.problem:
                continue
            launch = load_kernel(variant.source, context)
            memory |= _counters(variant.source)
            for name in kernel.writes:
                if name in memory and name not in kernel.reads and name not in kernel.inplace:
                    memory[name].zero_()  # what the variant before has stored
            addresses = [memory[item].data_ptr() for item in variant.source.arguments if isinstance(item, str)]
            for name, value in kept.items():
                memory[name].copy_(value)
            launch(*addresses)
            torch.cuda.synchronize()
            got = {name: memory[name].clone() for name in kernel.writes if name in memory}
            wanted = wanted or got
            for name, value in got.items():
                torch.testing.assert_close(value, wanted[name], rtol=2e-2, atol=2e-2, equal_nan=True)
            counters = memory[COUNTERS] if COUNTERS in variant.source.arguments else None
            variant.us = timer(partial(_launch, launch, addresses, counters), calls)
        except Exception as error:
            variant.problem = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return sum(value.nbytes for name, value in memory.items() if name not in (COUNTERS, *kernel.inplace))


def _jobs(options: argparse.Namespace, pool: ProcessPoolExecutor, folder: str) -> Iterator[Job]:
    """Every kernel of the cases that are asked for, all on their way to be built."""
    few = [(name, short) for name, short in (each.rsplit(" ", 1) for each in SHORT)]
    for name, short in few if options.short else chosen_cases(options.only, options.dtype):
        case = CASES[name](DTYPES[short])
        torch._dynamo.reset()
        with torch.no_grad():
            schedules = schedule_only(case.function, case.args, dynamic=False)
        del case
        torch.cuda.empty_cache()
        for schedule in schedules:
            for kernel in (part for each in schedule.kernels for part in each.parts):
                found = variants(plan_kernel(kernel, schedule.program), options.most)
                expected = expected_variant(found[0].source, schedule.program.hint)
                builds = [pool.submit(_build, (each.source, folder, expected)) for each in found]
                yield Job(name, short, kernel, schedule.program, found, builds)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, help="where to write the numbers")
    parser.add_argument("--only", nargs="*", default=[], help="cases whose names hold one of these, in this order")
    parser.add_argument("--short", action="store_true", help="the cases of SHORT, with their types")
    parser.add_argument("--dtype", nargs="*", default=["bf16"], choices=list(DTYPES))
    parser.add_argument("--calls", type=int, default=15, help="of a variant, of which the median counts")
    parser.add_argument("--seconds", type=float, default=500, help="after which nothing more is measured")
    parser.add_argument("--most", type=int, default=40, help="variants of a kernel")
    parser.add_argument("--jobs", type=int, default=12, help="processes that build")
    options = parser.parse_args(argv)
    deadline = time.monotonic() + options.seconds
    timer = Timer()
    peak = copy_bandwidth(timer)
    print(f"{torch.cuda.get_device_name()}: copy {peak / 1e9:.0f} GB/s", flush=True)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="litz-benchmark-") as folder:
        cache = Cache(Path(folder))
        pool = ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"))
        for job in list(_jobs(options, pool, folder)):
            size = measure(job, timer, cache, deadline, options.calls)
            _print(job, size, peak)
            rows += [
                {"case": job.case, "dtype": job.dtype, "kernel": job.variants[0].source.symbol, "bytes": size,
                 "tiling": str(each), "us": each.us, "chosen": each is job.variants[0]}
                for each in job.variants
            ]  # fmt: skip
            if options.out:
                options.out.write_text(json.dumps(rows, indent=1))
        pool.shutdown(cancel_futures=True)


def _print(job: Job, size: int, peak: float) -> None:
    found = job.variants
    symbol, done = found[0].source.symbol, sum(each.us is not None for each in found)
    print(f"{job.case} {job.dtype}: {symbol}, {done} of {len(found)} tilings, {size / 1e6:.1f} MB", flush=True)
    order = sorted((each for each in found if each.us), key=lambda each: each.us or 0.0)
    for each in dict.fromkeys([*order[:6], found[0]]) if order else found[:1]:
        us = "-" if each.us is None else f"{each.us:8.1f} us {size / each.us * 1e6 / peak:6.2f}"
        print(f"    {us}  {each}{'  <- chosen' if each is found[0] else ''}", flush=True)
    for problem in dict.fromkeys(each.problem for each in found if each.problem):
        print(f"    {sum(each.problem == problem for each in found)} of them: {problem}", flush=True)


if __name__ == "__main__":
    main()

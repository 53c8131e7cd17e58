"""Kernels of products of few rows in several ways, each alone: what the tiles of `products/rows.py` are chosen from.

    python -m benchmarks.few_rows_tiles [--weights int4 int8 bf16] [--rows 1 8] [--only TEXT ...] [--ways TEXT ...]
                                        [--minutes 1.4]

The shapes are those of a layer of `benchmarks.decode`. A way is what it sets in `products/rows.py`. All kernels are
built first, in processes side by side. Every call reads other weights, so that none comes out of the L2: microseconds a
call in a CUDA graph of many, the median of 15 replays. Beside the time: the share of the copy bandwidth, and the
error's norm against float64, of the result's, where it is not that of the first way.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.decode import GROUP
from benchmarks.device_time import copy_speed, describe
from benchmarks.few_rows import COLD, _kernel
from litz.cache.disk import Cache
from litz.capture.graph import Graph
from litz.contractions.products import rows
from litz.driver.stages import capture, prepare_graph, schedule_prepared
from litz.ir import KernelCall, Program
from litz.pipeline import make_compiler
from litz.report.log import Log
from litz.runtime.builders import processors
from litz.schedule import choices
from litz.target import target_of
from litz.targets.triton import build as triton_build
from litz.targets.triton.compile import compile_job
from litz.targets.triton.workers import Workers
from litz_plugins import COUNTERS, CodegenContext

Function = Callable[..., Any]
TIMES = 15
"""Replays."""


def tiled(columns: int, paired: int, step_bytes: int, per_unit: float, **more: Any) -> dict[str, Any]:
    """One tile for all weights."""
    tiles = rows.Tiles(columns, paired, step_bytes, per_unit)
    return {"STORED": tiles, "CONVERTED": tiles, **more}


WAYS: Mapping[str, Mapping[str, Any]] = {
    "as it is": {},
    "64 columns": tiled(64, 32, 128, 3),
    "32 columns": tiled(32, 32, 128, 3),
    "16 columns": tiled(16, 16, 128, 3),
    "64 columns, 32 to a warp": tiled(64, 64, 128, 1.5, PER_WARP=32),
    "32 columns, 256 bytes": tiled(32, 32, 256, 1.5),
    "32 columns, 6 stages": tiled(32, 16, 128, 3, STAGES=6),
    "32 columns, 1.5 programs": tiled(32, 16, 128, 1.5),
    "64 columns, 1.5 programs": tiled(64, 16, 128, 1.5),
}
"""What each way sets in `products/rows.py`."""


def bf16(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight)


def int8(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, weight.to(x.dtype)) * scale


def int4(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    digits = torch.stack((weight & 15, weight >> 4), -1)
    groups = digits.reshape(scale.shape[0], -1, GROUP).to(x.dtype)
    return F.linear(x, ((groups - 8) * scale[:, :, None]).flatten(1))


KINDS: Mapping[str, tuple[Function, int]] = {"int4": (int4, 2), "int8": (int8, 2), "bf16": (bf16, 1)}
"""The product, and the tensors of its weights."""


def weights(kind: str, columns: int, depth: int, device: torch.device) -> list[Tensor]:
    """As `benchmarks.decode` stores them, at random."""
    if kind == "bf16":
        return [(torch.randn(columns, depth, device=device) / depth**0.5).to(torch.bfloat16)]
    if kind == "int8":
        values = torch.randint(-127, 128, (columns, depth), dtype=torch.int8, device=device)
        return [values, (torch.rand(columns, device=device) / (64 * depth**0.5)).to(torch.bfloat16)]
    values = torch.randint(0, 256, (columns, depth // 2), dtype=torch.uint8, device=device)
    return [values, (torch.rand(columns, depth // GROUP, device=device) / (4 * depth**0.5)).to(torch.bfloat16)]


@dataclass(frozen=True)
class Shape:
    """columns: of each product of the activation. after: what is made of the products and an addend. normed: is the
    activation normed first?"""

    columns: tuple[int, ...]
    depth: int
    after: Callable[[list[Tensor], Tensor], Any]
    normed: bool = False

    def function(self, kind: str) -> Function:
        """Of the activation, the addend, and the tensors of all weights."""
        multiply, each = KINDS[kind]

        def call(x: Tensor, added: Tensor, *given: Tensor) -> Any:
            x = F.rms_norm(x, x.shape[-1:], eps=1e-5) if self.normed else x
            parts = [multiply(x, *given[n : n + each]) for n in range(0, len(given), each)]
            return self.after(parts, added)

        return call

    def given(self, kind: str, count: int, device: torch.device) -> list[Tensor]:
        x = torch.randn(count, self.depth, device=device).to(torch.bfloat16)
        added = torch.randn(count, self.columns[0], device=device).to(torch.bfloat16)
        return [x, added, *(each for n in self.columns for each in weights(kind, n, self.depth, device))]


SHAPES: Mapping[str, Shape] = {
    "out 4096 x 4096": Shape((4096,), 4096, lambda parts, added: parts[0] + added),
    "down 4096 x 14336": Shape((4096,), 14336, lambda parts, added: parts[0] + added),
    "gate, up 14336 x 4096": Shape((14336, 14336), 4096, lambda parts, added: F.silu(parts[0]) * parts[1]),
    "q, k, v 6144 x 4096": Shape((4096, 1024, 1024), 4096, lambda parts, added: tuple(parts)),
    "normed gate, up 14336 x 4096": Shape((14336, 14336), 4096, lambda parts, added: F.silu(parts[0]) * parts[1], True),
    "normed q, k, v 6144 x 4096": Shape((4096, 1024, 1024), 4096, lambda parts, added: tuple(parts), True),
}


@dataclass
class Kernel:
    """A program of one kernel; problem: why there is none, or none that can be built."""

    program: Program | None = None
    call: KernelCall | None = None
    problem: str = ""


def kernels_of(function: Function, given: Sequence[Tensor], ways: Mapping[str, Mapping[str, Any]]) -> dict[str, Kernel]:
    """What litz makes of the function in each way, if everything that the way sets says so."""
    compiler, found = make_compiler(None, {"disable_plugins": ("autotune",)}), dict[str, Kernel]()

    def keep(graph: Graph) -> Callable[[list[Any]], Any]:
        log = Log()
        prepared = prepare_graph(graph, compiler, log)
        for name, way in ways.items():
            kernel = found[name] = Kernel()
            try:
                with mock.patch.object(choices, "by_estimate", _kernel), _set(way):
                    schedule = schedule_prepared(prepared, compiler, log)
            except Exception as why:
                kernel.problem = f"{type(why).__name__}: {why}".splitlines()[0]
                continue
            calls = [step for step in schedule.steps if isinstance(step, KernelCall)]
            if len(calls) == len(schedule.steps) == 1:
                kernel.program, kernel.call = schedule.program, calls[0]
            else:
                kernel.problem = f"{len(calls)} kernels of products, {len(schedule.steps)} steps"
        return lambda args: torch.fx.Interpreter(graph.module).run(*args)

    torch._dynamo.reset()
    backend = partial(capture, compile_graph=keep, compiler=compiler)
    torch.compile(function, backend=backend, dynamic=False)(*given)
    return found


@contextmanager
def _set(way: Mapping[str, Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for name, value in way.items():
            stack.enter_context(mock.patch.object(rows, name, value))
        yield


def build(kernels: Sequence[Kernel], cache: Cache, capability: tuple[int, int]) -> None:
    """All of them, in processes side by side."""
    pool, count = Workers(), max(2, processors() - 1)

    def one(kernel: Kernel) -> None:
        if kernel.call is not None:
            variant = triton_build.expected_variant(kernel.call.source, int)
            try:
                compile_ = partial(pool.compile, most=count) if count > 2 else compile_job
                triton_build.build(kernel.call.source, capability, cache, variant, compile_)
            except Exception as why:
                kernel.problem = f"{type(why).__name__}: {why}".splitlines()[0]

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(one, kernels))
    pool.close()


def measure(kernel: Kernel, sets: Sequence[Sequence[Tensor]], cache: Cache, exact: Tensor) -> tuple[float, float]:
    """(microseconds a call, the error's norm, of the result's)."""
    program, call = kernel.program, kernel.call
    assert program is not None and call is not None
    source, device = call.source, torch.device("cuda")
    launch = triton_build.load(source, CodegenContext(None, target_of("cuda:0"), program, cache))  # type: ignore[arg-type]
    own = {}
    for name in call.writes:
        layout = program.buffers[name].layout
        size, stride = (tuple(map(int, exprs)) for exprs in (layout.size, layout.stride))
        own[name] = torch.empty_strided(size, stride, dtype=program.buffers[name].dtype, device=device)
    count = int(source.settings["counters"])
    counters = torch.zeros(max(1, count) * len(sets), dtype=torch.int32, device=device)
    names = [name for name in program.inputs if isinstance(name, str)]
    listed = []
    for number, given in enumerate(sets):
        used = dict(zip(names, kernel_order(given, names, program), strict=True)) | own
        zeros = counters.data_ptr() + 4 * count * number
        listed.append([zeros if n == COUNTERS else used[str(n)].data_ptr() for n in source.arguments])

    def step() -> None:
        if count:
            counters.zero_()
        for addresses in listed:
            launch(*addresses)

    counters.zero_()
    launch(*listed[0])
    torch.cuda.synchronize()
    result = torch.cat([own[name].flatten() for name in call.writes if name in program.output_buffers]).double()
    error = float((result - exact).norm() / exact.norm())
    graph, aside = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(aside):
        step()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        step()
    samples = []
    for _ in range(TIMES + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        samples.append(start.elapsed_time(end) * 1e3 / len(sets))
    return statistics.median(samples[2:]), error


def kernel_order(given: Sequence[Tensor], names: Sequence[str], program: Program) -> list[Tensor]:
    """The tensors in the order of the program's inputs: that of their first use, which leaves out what is not used."""
    rest, found = list(given), []
    for name in names:
        layout, dtype = program.buffers[name].layout, program.buffers[name].dtype
        size = tuple(map(int, layout.size))
        at = next(n for n, t in enumerate(rest) if t.dtype == dtype and tuple(t.shape) == size)
        found.append(rest.pop(at))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table, a line for each way as soon as it is measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--weights", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--only", nargs="+", default=[""], help="shapes whose name has one of these texts in it")
    parser.add_argument("--ways", nargs="+", default=[""], help="ways whose name has one of these texts in it")
    parser.add_argument("--minutes", type=float, default=1.4, help="begin nothing after so many")
    asked = parser.parse_args(argv)
    stop, device = time.monotonic() + 60 * asked.minutes, torch.device("cuda")
    ways = {name: way for name, way in WAYS.items() if any(text in name for text in asked.ways)}
    peak = copy_speed(device)
    print(f"{describe(device)}; copy {peak / 1e9:.0f} GB/s", flush=True)
    capability = torch.cuda.get_device_capability()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        cache, cases = Cache(Path(folder)), {}
        for kind in asked.weights:
            for name in (name for name in SHAPES if any(text in name for text in asked.only)):
                for count in asked.rows:
                    function, given = SHAPES[name].function(kind), SHAPES[name].given(kind, count, device)
                    cases[kind, name, count] = kernels_of(function, given, ways)
        print(f"{sum(map(len, cases.values()))} kernels, {time.monotonic() - stop + 60 * asked.minutes:.0f} s")
        build([kernel for found in cases.values() for kernel in found.values()], cache, capability)
        print(f"built, {time.monotonic() - stop + 60 * asked.minutes:.0f} s", flush=True)
        for (kind, name, count), found in cases.items():
            if time.monotonic() > stop:
                print("out of time")
                return
            _table(f"{kind} {name}, {count}", SHAPES[name], kind, count, found, cache, peak)


def _table(
    title: str, shape: Shape, kind: str, count: int, found: Mapping[str, Kernel], cache: Cache, peak: float
) -> None:
    device = torch.device("cuda")
    first = shape.given(kind, count, device)
    nbytes = sum(each.nbytes for each in first[2:])
    sets = [first] + [shape.given(kind, count, device) for _ in range(min(48, max(4, ceil(COLD / nbytes))) - 1)]
    exact = shape.function(kind)(*(each.double() if each.is_floating_point() else each for each in first))
    exact = torch.cat([each.flatten() for each in (exact if isinstance(exact, tuple) else (exact,))])
    print(f"{title}: {nbytes / 1e6:.1f} MB")
    usual = None
    for way, kernel in found.items():
        if kernel.problem:
            print(f"    {way:44} {kernel.problem[:70]}")
            continue
        us, error = measure(kernel, sets, cache, exact)
        usual = error if usual is None else usual
        told = "" if abs(error - usual) < 0.02 * usual else f"  error {error:.1e}, not {usual:.1e}"
        assert kernel.call is not None
        grid = kernel.call.source.settings["grid"]
        print(f"    {way:44} {us:7.2f} us {nbytes / us * 1e6 / peak:6.2f} {grid:6} programs{told}", flush=True)


if __name__ == "__main__":
    main()

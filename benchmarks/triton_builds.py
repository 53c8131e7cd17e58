"""Ways to build Triton kernels: on threads of this process, or in workers that are cold or warm. Needs no GPU.

    PYTHONPATH=tests:. python -m benchmarks.triton_builds [--models MODEL ...] [--tasks inference training]
        [--processes 2 8 16] [--capability 9 0] [--rounds 2] [--most KERNELS]

The kernels are those of the zoo's models in their sizes for a GPU, equal ones once (`benchmarks.planned_memory` plans
them). Each way starts with empty caches, litz's and Triton's, in a process of its own that has imported torch and litz,
as a compile would have. "here" builds on as many threads as there are processors. Wall seconds are from the first
build's begin to the last's end; for warm workers what it took them to get warm is beside it, which a compile spends on
lowering. Processor seconds are of all processes, their start included. The ways take turns, `rounds` times, and the
shortest is shown, as others may use the machine. That all ways build the same is checked. "inductor" starts
TorchInductor's own pool of compile processes, and waits for it; it is given nothing to build.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from litz.cache.disk import Cache
from litz.runtime.builders import processors
from litz.targets.triton import build as triton_build
from litz.targets.triton.compile import Variant, compile_job
from litz.targets.triton.worker import WARM
from litz.targets.triton.workers import Workers
from litz_plugins import KernelSource

Kernel = tuple[KernelSource, int]
"""A source, and its variant's number."""


def kernels_of(models: Sequence[str], tasks: Sequence[str]) -> list[Kernel]:
    """Each kernel; equal texts once."""
    from benchmarks.planned_memory import plans_of
    from litz.pipeline import generate, make_compiler

    found: dict[str, Kernel] = {}
    for model in models:
        for task in tasks:
            for _, plan in plans_of(model, task)[1]:
                for source in generate(plan, make_compiler()).values():
                    if source.language != "triton" or "user_kernel" in source.settings:
                        continue
                    variant = triton_build.expected_variant(source, plan.program.hint)
                    found.setdefault(source.text, (replace(source, arguments=()), variant.number))
    return list(found.values())


def measure(kernels: Sequence[Kernel], way: str, count: int, capability: tuple[int, int]) -> dict[str, Any]:
    """Build all kernels in one way, in this process, which has done nothing before."""
    pool, compile_, warm_s = Workers(), compile_job, 0.0
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder))
        if way == "warm":
            begun = time.perf_counter()
            pool.start(count)
            with ThreadPoolExecutor(count) as threads:  # each has one
                jobs = [Path(tempfile.mkdtemp(dir=folder)) for _ in range(count)]
                list(threads.map(lambda job: pool.compile(WARM, job, count), jobs))
            warm_s = time.perf_counter() - begun
        if way != "here":
            compile_ = partial(pool.compile, most=count)

        def build(kernel: Kernel) -> tuple[Any, ...]:
            source, number = kernel
            binary = triton_build.build(source, capability, cache, Variant.of(number), compile_)
            return binary.name, binary.threads, binary.shared, binary.parameters  # a cubin has its text's path in it

        begun = time.perf_counter()
        with ThreadPoolExecutor(count) as threads:
            built = list(threads.map(build, kernels))
        wall = time.perf_counter() - begun
        mib = max(map(_resident, pool.processes()), default=0) >> 20
        pool.close()
    return {"wall": wall, "warm": warm_s, **_processor_seconds(), "mib": mib, "built": built}


def start_inductor(count: int) -> dict[str, Any]:
    """What it takes until Inductor's processes are ready."""
    import torch._inductor.config as config
    from torch._inductor.async_compile import AsyncCompile

    config.compile_threads = count
    begun = time.perf_counter()
    AsyncCompile.warm_pool()
    pool = AsyncCompile.process_pool()
    pool.submit(os.getpid).result(120)
    warm_s = time.perf_counter() - begun
    pool.shutdown()
    return {"wall": 0.0, "warm": warm_s, **_processor_seconds(), "mib": 0, "built": None}


def _processor_seconds() -> dict[str, float]:
    """Of this process, and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own, others = (usage.ru_utime + usage.ru_stime for usage in used)
    return {"own": own, "others": others}


def _resident(pid: int) -> int:
    """Bytes of memory that a process has for itself."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def run(file: Path, way: str, count: int, capability: Sequence[int]) -> dict[str, Any]:
    """`measure` in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.triton_builds", "--measure", str(file), way, str(count)]
        command += ["--capability", *map(str, capability)]
        done = subprocess.run(
            command, env={**os.environ, "TRITON_CACHE_DIR": folder}, stdout=subprocess.PIPE, text=True, check=True
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["gpt2", "resnet50"])
    parser.add_argument("--tasks", nargs="+", default=["training"])
    parser.add_argument("--processes", nargs="+", type=int, default=[processors()])
    parser.add_argument("--capability", nargs=2, type=int, default=(9, 0))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--most", type=int, default=1000)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.measure:
        file, way, count = given.measure
        before = _processor_seconds()["own"]  # imports
        if way == "inductor":
            found = start_inductor(int(count))
        else:
            found = measure(pickle.loads(Path(file).read_bytes()), way, int(count), tuple(given.capability))
        found["own"] -= before
        print(json.dumps(found))
        return

    kernels = kernels_of(given.models, given.tasks)[: given.most]
    ways = [
        ("here", processors()),
        *((way, count) for count in given.processes for way in ("cold", "warm", "inductor")),
    ]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.pickle"  # sizes in settings are expressions
        file.write_bytes(pickle.dumps(kernels))
        rounds = [{way: run(file, *way, given.capability) for way in ways} for _ in range(given.rounds)]
    built = {json.dumps(found["built"]) for turn in rounds for found in turn.values() if found["built"] is not None}
    assert len(built) == 1, built
    load = os.getloadavg()[0]
    what = f"{len(kernels)} kernels of {', '.join(given.models)} ({', '.join(given.tasks)})"
    print(f"{what}, sm_{''.join(map(str, given.capability))}, {processors()} processors, load {load:.1f}")
    print(f"{'way':12}{'wall s':>8}{'to warm s':>11}{'own CPU s':>11}{'others s':>10}{'MiB each':>10}")
    for way, count in ways:
        best = min((turn[way, count] for turn in rounds), key=lambda found: found["wall"] or found["warm"])
        wall, warm = (f"{best[key]:.2f}" if best[key] else "" for key in ("wall", "warm"))
        figures = f"{wall:>8}{warm:>11}{best['own']:11.2f}{best['others']:10.2f}{best['mib'] or '':>10}"
        print(f"{way + (f' {count}' if way != 'here' else ''):12}{figures}")


if __name__ == "__main__":
    main()

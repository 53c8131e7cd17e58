"""Compiling candidates ahead of their measurement. In: kernel sources. Out: for each "" or why it does not compile.

On threads, never on the caller's: LLVM and ptxas run outside of Python's lock, and what is built goes to the disk
cache, where the measuring process finds it. Each text is compiled once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from litz.ir import KernelCall, Program
from litz.runtime.cache import Cache
from litz.schedule.choices import replacement_of
from litz_plugins import Choice, DeviceInfo, KernelSource
from litz_plugins.errors import describe

Build = Callable[[KernelSource], Any]


def precompile(
    sources: Mapping[str, Sequence[KernelSource]], build: Build, threads: int | None = None
) -> dict[str, str]:
    """For each name "" or why one of its sources does not compile. threads: at a time; None for one per processor."""
    wanted = {source.text: source for found in sources.values() for source in found}
    workers = max(1, min(threads or os.cpu_count() or 1, 16, len(wanted)))
    with ThreadPoolExecutor(workers, thread_name_prefix="litz-autotune") as pool:
        jobs = {text: pool.submit(build, source) for text, source in wanted.items()}
        problems = {text: _problem(job) for text, job in jobs.items()}
    return {
        name: next((problems[source.text] for source in found if problems[source.text]), "")
        for name, found in sources.items()
    }


def _problem(job: Future[Any]) -> str:
    error = job.exception()
    return "" if error is None else f"does not compile: {describe(error).splitlines()[0][:300]}"


def sources_of(choice: Choice) -> list[KernelSource]:
    """The kernels that a choice brings along."""
    return [op.source for op in replacement_of(choice).operations if isinstance(op, KernelCall)]


def triton_build(device: DeviceInfo, program: Program, cache: Cache) -> Build:
    """What compiles a Triton source for a device, in the variant that the likely sizes ask for. Other languages are
    left to the process that measures."""
    capability = divmod(int(dict(device.facts).get("capability", 90)), 10)

    def build(source: KernelSource) -> None:
        if source.language != "triton":
            return
        from litz.runtime import triton_build as triton

        triton.build(source, capability, cache, triton.expected_variant(source, program.hint))

    return build

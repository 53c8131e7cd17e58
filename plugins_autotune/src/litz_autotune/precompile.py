"""Compiling candidates ahead of their measurement. In: kernel sources. Out: for each "" or why it does not compile.

On threads, never on the caller's, each of which waits for a worker (`litz.targets.triton.workers`): what is built goes to the
disk cache, where the measuring process finds it. Each text is compiled once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from litz.cache.disk import Cache
from litz.ir import KernelCall, Program
from litz.schedule.choices import replacement_of
from litz.targets.triton import workers
from litz_plugins import Choice, KernelSource, OptionsView, Target
from litz_plugins.errors import describe

Build = Callable[[KernelSource], Any]

LEAST_PATIENCE = 10.0
"""Seconds that the last few kernels get at least, once the most of them are compiled. ptxas takes a minute for some."""


MOST_THREADS = 16
"""Unless the option `threads` says more: a contest has few texts, and each compilation takes memory."""


class Precompilation:
    """Sources that are being compiled. threads: at a time; None for one per processor, less one for who measures, and
    at most 16."""

    def __init__(self, sources: Mapping[str, Sequence[KernelSource]], build: Build, threads: int | None = None) -> None:
        wanted = {source.text: source for found in sources.values() for source in found}
        count = max(1, min(threads or min(workers.processors() - 1, MOST_THREADS), len(wanted)))
        self._sources = sources
        self._start = time.monotonic()
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="litz-autotune")
        self._jobs = {text: self._pool.submit(build, source) for text, source in wanted.items()}

    def ready(self, names: Iterable[str], most: int = 1) -> Iterator[dict[str, str]]:
        """Yields candidates as they are compiled, at most `most` at a time: name -> '' or why one of its sources does
        not compile. What takes far longer than the others is given up."""
        waiting = list(names)
        while waiting:
            done = [name for name in waiting if all(job.done() for job in self._of(name))][:most]
            if done:
                waiting = [name for name in waiting if name not in done]
                yield {name: next(filter(None, map(_problem, self._of(name))), "") for name in done}
                continue
            pending = {job for name in waiting for job in self._of(name) if not job.done()}
            spent = time.monotonic() - self._start
            others = [job for job in self._jobs.values() if job not in pending]
            patience = None if len(others) < len(pending) else max(LEAST_PATIENCE, 2 * spent)
            if not wait(pending, timeout=patience, return_when=FIRST_COMPLETED).done:
                text = f"does not compile in {time.monotonic() - self._start:.0f} s"
                yield dict.fromkeys(waiting, text)
                return

    def close(self) -> None:
        """Starts nothing more. What is being compiled goes on, for the disk cache."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _of(self, name: str) -> list[Future[Any]]:
        return [self._jobs[source.text] for source in self._sources[name]]


def precompile(
    sources: Mapping[str, Sequence[KernelSource]], build: Build, threads: int | None = None
) -> dict[str, str]:
    """Compiles the sources of each name, and returns '' or why one of them does not compile. threads: as in
    `Precompilation`."""
    compilation = Precompilation(sources, build, threads)
    found = {name: problem for batch in compilation.ready(sources) for name, problem in batch.items()}
    compilation.close()
    return found


def _problem(job: Future[Any]) -> str:
    error = job.exception()
    return "" if error is None else f"does not compile: {describe(error).splitlines()[0][:300]}"


def sources_of(choice: Choice) -> list[KernelSource]:
    """Returns the kernels that a choice brings along."""
    return [op.source for op in replacement_of(choice).operations if isinstance(op, KernelCall)]


def triton_build(target: Target, program: Program, cache: Cache, options: OptionsView) -> Build:
    """Returns what compiles a Triton source for a target, in the variant that the likely sizes ask for, where `options`
    say. Other languages are left to the process that measures."""
    capability, compile_ = divmod(target.capability, 10), workers.compiling(options)

    def build(source: KernelSource) -> None:
        if source.language != "triton":
            return
        from litz.targets.triton import build as triton

        triton.build(source, capability, cache, triton.expected_variant(source, program.hint), compile_)

    return build

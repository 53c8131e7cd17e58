"""Kernels on their way from text to launch function: begun as soon as a text is known, waited for once all are.

In: kernels' sources, one by one. Out: what launches each. Where a kernel is built, on a thread of this process that
waits for a C++ compiler or for a worker (`litz.targets.triton.workers`), is its code generator's to say
(`Codegen.load`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from litz import graph_cache
from litz.capture.graph import Graph
from litz.driver.compiler import Compiler
from litz.origins.places import Words
from litz.runtime.builders import Builders, processors
from litz.runtime.graph_entry import GraphEntry
from litz_plugins import CodegenContext, KernelSource, PreparingCodegen
from litz_plugins.errors import LitzError

if TYPE_CHECKING:
    from litz.ir import Program

SILENT = Words()
"""Nothing is said."""
Launchers = Mapping[str, Callable[..., Any]]


class Loads:
    """The kernels of one graph that are being built and loaded, equal ones once. At the end of a `with`, nothing is
    under way; what had not begun when it failed never does."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        threads = compiler.options.threads or processors()
        self._builders = Builders(threads)
        self._begun: dict[Hashable, Future[tuple[Callable[..., Any], bool]]] = {}

    def __enter__(self) -> Loads:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._builders.__exit__(kind, error, at)

    def result(self, job: Future[tuple[Callable[..., Any], bool]]) -> tuple[Callable[..., Any], bool]:
        """Waits for what `begin` returned: the launch function, and whether the cache had it."""
        return self._builders.result(job)

    def begin(self, source: KernelSource, device: str, program: Any) -> Future[tuple[Callable[..., Any], bool]]:
        """Builds and loads a kernel, unless an equal one is. Returns its launch function, and whether the cache had it.
        program: the kernel's, for likely values of its arguments."""
        key = (source.language, source.text, device, repr(source.settings))
        if key not in self._begun:
            self._begun[key] = self._builders.submit(self._load, source, torch.device(device), program)
        return self._begun[key]

    def _load(self, source: KernelSource, device: torch.device, program: Any) -> tuple[Callable[..., Any], bool]:
        compiler, cache = self._compiler, self._compiler.cache.counted()
        context = CodegenContext(compiler.options, compiler.target_of(device), program, cache)
        spec = compiler.specs[device.type]
        # A template's kernel is its plugin's, whoever builds it.
        whose, what = source.plugin or spec.plugin, f"load of kernel {source.name!r}"
        with compiler.plugins.blaming(whose, what, node=source.name):
            launch = spec.codegen.load(source, context)
            if not callable(launch):
                raise TypeError(f"returned {type(launch).__name__}; a function that launches is expected")
        return launch, cache.hits > 0 and cache.misses == 0


def load_kernels(
    loads: Loads,
    entry: GraphEntry,
    programs: Mapping[str, Program],
    words: Words = SILENT,
    built: Callable[[int], None] = lambda kernels: None,
) -> tuple[Launchers, int]:
    """Returns the kernels' launch functions by name, and how many were not built, as the cache had them. programs: of
    each kernel; of those that are not in it, the arguments are likely values. words: for errors. built: called for each
    that is built, by any thread, with the number of all."""
    jobs = {
        name: loads.begin(kernel.source, kernel.device, programs.get(name, LIKELY))
        for name, kernel in entry.kernels.items()
    }
    distinct = set(jobs.values())

    def count(job: Future[Any]) -> None:
        if not job.cancelled() and job.exception() is None:
            built(len(distinct))

    for job in distinct:
        job.add_done_callback(count)
    launchers, hits = {}, 0
    for name, job in jobs.items():
        with said_from(words.origins.get(name, "")):
            launchers[name], found = loads.result(job)
        hits += found
    return launchers, hits


class _Likely:
    """In a program's place, where there is none: sizes are their likely values already."""

    @staticmethod
    def hint(size: int) -> int:
        return size


LIKELY = _Likely()


@contextmanager
def said_from(origin: str) -> Iterator[None]:
    """Makes a LitzError that is raised inside name what in the user's model it is about. origin: '' if unknown."""
    try:
        yield
    except LitzError as error:
        if origin:
            error.set_origin(origin)
        raise


def prepare(graph: Graph, compiler: Compiler) -> None:
    """Tells the code generators of a graph's devices that there will be kernels to build."""
    for device in {device.type for device in graph_cache.devices_of(graph)}:
        spec = compiler.specs.get(device)
        if spec is not None and isinstance(spec.codegen, PreparingCodegen):
            spec.codegen.prepare(compiler.options)


__all__ = ["LIKELY", "SILENT", "Launchers", "Loads", "load_kernels", "prepare", "said_from"]

"""A graph's code, from the files of an entry to a function and back: what a process needs that compiles nothing.

In: a `GraphEntry` and the folder of its texts, or the launch functions of its kernels. Out: `GraphCode`, and of this
the `CompiledGraph` of one graph; an entry as files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.autograd.profiler import record_function

from litz.cache.disk import digest
from litz.driver.compiler import Compiler
from litz.driver.kernel_loading import Launchers, Loads, load_kernels
from litz.graph_cache.key import Key
from litz.origins.named import Named
from litz.origins.places import Words, WrapperSource
from litz.origins.words import RANGE, annotated, ranged
from litz.runtime.compiled_graph import CompiledGraph, Entry, Lazily, Site, load_wrapper
from litz.runtime.graph_code import GraphCode, Said, load_code
from litz.runtime.graph_entry import ENTRY, KEY, WRAPPER, GraphEntry, StoredKernel, write_entry
from litz.runtime.pool import pool_for

if TYPE_CHECKING:
    from litz.ir import Program


def load_entry(entry: GraphEntry, folder: Path, compiler: Compiler) -> GraphCode:
    """Returns the code of an entry whose texts lie in a folder; builds its kernels or finds them."""
    with Loads(compiler) as loads:
        return join_code(entry, folder, load_kernels(loads, entry, {}), compiler)


def join_code(entry: GraphEntry, folder: Path, loaded: tuple[Launchers, int], compiler: Compiler) -> GraphCode:
    """Returns the code of an entry whose texts lie in a folder. loaded: what `load_kernels` returned."""
    launchers, hits = loaded
    return load_code(entry, folder, launchers, pool_for(compiler.options, compiler.cache), hits)


def write_code(entry: GraphEntry, others: Mapping[str, str], compiler: Compiler, key: Key | None = None) -> Path:
    """Returns the folder in the disk cache with what a graph became: to be read by people, and with a key by other
    processes too. others: more texts by file name. Errors: NotCacheable, only with a key."""
    files, made = {**entry.texts(), **others}, list[Path]()

    def write(folder: Path) -> None:
        made.append(folder)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        if key is not None:
            (folder / KEY).write_text(key.to_json(), encoding="utf-8")
            write_entry(entry, folder)

    if key is None:
        return compiler.cache.build("graph", digest(*files.values()), write, needs=tuple(files), asks=False)
    folder = compiler.cache.build("graph", key.digest, write, needs=(*files, KEY, ENTRY), asks=False)
    if made:
        compiler.cache.offer("graph", key.digest, folder)
    return folder


def likely_values(entry: GraphEntry, programs: Mapping[str, Program]) -> GraphEntry:
    """Returns the entry with likely values in place of the sizes among its kernels' arguments."""

    def known(name: str, kernel: StoredKernel) -> StoredKernel:
        hint, given = programs[name].hint, kernel.source.arguments
        arguments = tuple(item if isinstance(item, str) else hint(item) for item in given)
        return replace(kernel, source=replace(kernel.source, arguments=arguments))

    return replace(entry, kernels={name: known(name, kernel) for name, kernel in entry.kernels.items()})


def graph_of(
    code: GraphCode,
    name: str,
    words: Callable[[], Words],
    compiler: Compiler,
    output_strides: Any = None,
    key: str = "",
) -> CompiledGraph:
    """Returns one graph of a code, its entry in what plugins wrap around it. words: of its own, asked for where
    somebody reads them. See `GraphCode.graph` for the other arguments."""
    entry, path = code.entry, code.folder / WRAPPER

    @cache
    def plain() -> WrapperSource:
        return WrapperSource(entry.wrapper, entry.objects, Named.from_data(entry.named).places, words())

    texts = {str(path): plain}  # what is run has no comments: equal graphs share it

    def load_ranged() -> Entry:
        with_ranges, its_path = ranged(plain()), code.folder / f"wrapper_of_{name}_with_ranges.py"
        texts[str(its_path)] = cache(lambda: with_ranges)
        return load_wrapper(with_ranges.text, its_path, {**code.namespace, RANGE: record_function})

    def sites(path: str) -> tuple[Site, ...]:
        return _sites(texts[path]()) if path in texts else ()

    said = Said(
        lambda: annotated(plain(), plain().words).text, Lazily(load_ranged), sites, lambda: plain().words.known_as
    )
    graph = code.graph(name, output_strides, key, said)
    around = compiler.plugins.wrap_entry(graph.entry, replace(entry.facts, graph=name), compiler.options)
    # What plugins run has no steps to put into a profile.
    return graph if around is graph.entry else replace(graph, entry=around, ranged=None)


def _sites(wrapper: WrapperSource) -> tuple[Site, ...]:
    """Returns the lines of the steps that come from somewhere."""
    origins = wrapper.words.origins
    return tuple((p.first, p.last, f"{origins[p.step]}, {p.step}") for p in wrapper.places if p.step in origins)

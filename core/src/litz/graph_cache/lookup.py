"""The graph cache: what earlier compiles of equal graphs have made, in this process or any other.

In: a captured Graph and its compiler. Out: a `Lookup`, with the graph's key, and what lies under it. A graph that
cannot be kept has a reason in place of a key.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from litz.cache import artifacts
from litz.cache.disk import Cache
from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.origins.sources import SourcesError
from litz.runtime.graph_code import GraphCode
from litz.runtime.graph_entry import ENTRY, KEY, WRAPPER, GraphEntry, NotCacheable, Strides, read_entry
from litz_plugins.errors import LitzError, describe

from .canonical import graph_text, symbols_text
from .fingerprints import (
    device_parts,
    goes_by_anything,
    group_part,
    option_parts,
    plugin_parts,
    torch_part,
    version_parts,
)
from .key import Key, Part

if TYPE_CHECKING:
    from litz.driver.compiler import Compiler

KIND = "graph"
"""The disk cache's kind of entries. Those of graphs that cannot be kept have a key of their content, and no `ENTRY`."""
NEEDS = (ENTRY, WRAPPER, KEY)

_here: weakref.WeakValueDictionary[tuple[str, str], GraphCode] = weakref.WeakValueDictionary()
_lock = threading.Lock()
"""Codes that a compiled graph of this process still has, by the cache's folder and the key: another graph may share
them. Nobody is handed one that is not equal to what he would compile, so this decides nothing but time."""


@dataclass(frozen=True)
class Lookup:
    """The graph cache's answer for a graph.

    key: None where it is off or the graph cannot be kept. reason: why not, to follow "because"; '' if it can. code:
    loaded already in this process. entry, folder: on the disk.
    """

    key: Key | None = None
    reason: str = ""
    code: GraphCode | None = None
    entry: GraphEntry | None = None
    folder: Path | None = None

    @property
    def found(self) -> bool:
        """Returns whether there is code for the graph, in this process or on the disk."""
        return self.code is not None or self.entry is not None

    def says(self, hit: bool = False) -> str:
        """Returns the result for reports: "hit 0123abcd", "miss 0123abcd", "not cacheable because ...", "off"."""
        if self.key is None:
            return f"not cacheable because {self.reason}" if self.reason else "off"
        where = " (of this process)" if hit and self.code is not None else ""
        return f"{'hit' if hit else 'miss'} {self.key.digest[:12]}{where}"


OFF = Lookup()
"""The result where the graph cache is off."""


def look_up(graph: Graph, compiler: Compiler) -> Lookup:
    """Returns the graph's key and the code or entry found under it. Reads no file of an entry that the manifest does
    not vouch for."""
    if not compiler.options.graph_cache:
        return OFF
    try:
        key = make_key(graph, compiler)
    except (NotCacheable, SourcesError) as why:
        return Lookup(reason=str(why))
    except Exception as error:  # what nobody thought of is no reason not to compile
        if compiler.options.debug or isinstance(error, LitzError):
            raise
        return Lookup(reason=f"its key cannot be made: {describe(error)}")
    code = shared(compiler.cache, key.digest)
    if code is not None:
        return Lookup(key, code=code)
    folder = find(key.digest, compiler.cache)
    if folder is None:
        return Lookup(key)
    try:
        found = Lookup(key, entry=read_entry(folder), folder=folder)
        artifacts.record(KIND, key.digest, folder)
        return found
    except (OSError, ValueError, LookupError, ImportError, AttributeError, TypeError):
        return Lookup(key)  # another process has just removed it, or it names what is no longer here


def find(key: str, cache: Cache) -> Path | None:
    """Returns the folder of the entry under a key's digest, on the disk or from a store; None if nobody has one."""

    def check(folder: Path) -> None:
        read_entry(folder)
        found = Key.from_json((folder / KEY).read_bytes()).digest
        if found != key:
            raise ValueError(f"the entry of {found} lies under the key {key}")

    return cache.fetch(KIND, key, NEEDS, check)


def make_key(graph: Graph, compiler: Compiler) -> Key:
    """Returns the key of all that a compile of the graph depends on. Errors: NotCacheable."""
    return Key(tuple(_parts(graph, compiler)))


def _parts(graph: Graph, compiler: Compiler) -> Iterator[Part]:
    if graph.frozen_values:
        raise NotCacheable("its weights are frozen into it (option freezing)")
    yield Part("graph", graph_text(graph), "the program")
    yield Part("sizes", symbols_text(graph), "the program's inputs, by dynamo")
    group = group_part(graph)
    if group is not None:
        yield group
    yield from version_parts()
    yield torch_part()
    yield from option_parts(compiler)
    yield from device_parts(graph, compiler)
    yield from plugin_parts(compiler)
    if compiler.vetoes.keys or compiler.preferences.ways or goes_by_anything(compiler):
        yield Part("names", _names(graph), "the program, by torch")


def _names(graph: Graph) -> str:
    """Returns what litz's own stages do not go by: names, and where nodes come from."""
    return "\n".join([graph.name, *graph.input_names, *map(place_of, graph.nodes)])


def place_of(node: torch.fx.Node) -> str:
    """Returns a node's name, and the modules and the stack trace that it comes from, as text without dynamo's keys of
    modules, which are addresses."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    return f"{node.name} {modules} {node.meta.get('stack_trace', '')}"


def share(cache: Cache, key: str, code: GraphCode) -> None:
    """Lets other graphs of this process share a code, under a key's digest, as long as the code is in use."""
    with _lock:
        _here[(str(cache.root), key)] = code


def shared(cache: Cache, key: str) -> GraphCode | None:
    """Returns the code that this process keeps under a key's digest, None if there is none."""
    return _here.get((str(cache.root), key))


def forget() -> None:
    """Makes the process share no code that is loaded by now: for tests, and to measure."""
    with _lock:
        _here.clear()


# ---------------------------------------------------------------------------------------------------------- in and out


def guards_texts(graph: Graph, count: int) -> tuple[str, ...]:
    """Returns the guards that were added after the first `count`, as texts without repetitions. Errors: NotCacheable
    for a guard that no text describes."""
    found = torch_api.guards_since(graph.shape_env, count)
    return tuple(dict.fromkeys(_text(guard, graph, "a guard") for guard in found))


def strides_texts(graph: Graph, strides: Any) -> Strides | None:
    """Returns a CompiledGraph's `output_strides` as texts and ints; None where there are none. Errors: NotCacheable for
    a stride that no text describes."""
    if strides is None:
        return None

    def text(value: Any) -> int | str:
        expr = torch_api.sympy_of(value)
        return int(expr) if expr.is_Integer else _text(expr, graph, "an output's stride")

    return tuple(None if item is None else tuple(map(text, item)) for item in strides)


def strides_of(graph: Graph, strides: Strides | None) -> Any:
    """Returns the strides that texts stand for, as ints and SymInts of the graph."""
    if strides is None:
        return None
    env = graph.shape_env
    return tuple(
        None if item is None else tuple(torch_api.size_of_text(env, text) for text in item) for item in strides
    )


def _text(expr: Any, graph: Graph, what: str) -> str:
    from litz.codegen.sizes import python_text  # here: a process that finds its graphs keeps none

    unknown = expr.free_symbols - torch_api.size_symbols(graph.shape_env)
    if unknown:
        raise NotCacheable(f"{what} depends on {', '.join(sorted(map(str, unknown)))}, which no input determines")
    try:
        text = python_text(expr)
    except NotImplementedError as error:
        raise NotCacheable(f"{what} is {expr}, which has no text") from error
    code = compile(text, "<litz guard>", "eval")
    if set(code.co_names) - {str(symbol) for symbol in expr.free_symbols} - {"math", "min", "max"}:
        raise NotCacheable(f"{what} is {text}, which no other process can decide")
    return text


Load = Callable[[GraphEntry, Path], GraphCode]
"""Loads an entry whose texts lie in a folder."""


def load(found: Lookup, graph: Graph, cache: Cache, load_entry: Load) -> GraphCode | None:
    """The code that a lookup has found, and its guards on record for this graph; None where one of them does not
    hold, which is as if nothing had been found."""
    entry = found.code.entry if found.code is not None else found.entry
    if entry is None or found.key is None or not torch_api.decide_again(graph.shape_env, entry.guards):
        return None
    if found.code is not None:
        return found.code
    assert found.folder is not None
    code = load_entry(entry, found.folder)
    share(cache, found.key.digest, code)
    return code

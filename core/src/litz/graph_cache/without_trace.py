"""Graphs that AOTAutograd need not trace again: what its own cache must know to find them, and where they lie.

In: a graph as dynamo captured it. Out: the text of all that litz makes of it depends on besides; and for the digest of
a key, the code that the graph cache has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from litz.cache import artifacts
from litz.cache.disk import digest
from litz.capture import torch_api
from litz.runtime.graph_code import GraphCode
from litz.runtime.graph_entry import GraphEntry, NotCacheable, read_entry

from .fingerprints import devices_part, goes_by_anything, option_parts, plugin_parts, torch_part, version_parts
from .key import Part
from .lookup import KIND, Load, find, place_of, share, shared

if TYPE_CHECKING:
    from litz.driver.compiler import Compiler


def setting_of(gm: Any, compiler: Compiler) -> str:
    """The digest of what a compile depends on besides dynamo's graph and its inputs. Errors: NotCacheable, where it has
    to be traced in each process."""
    options = compiler.options
    if not (options.graph_cache and options.cache):
        raise NotCacheable("the cache is off")
    if options.freezing:
        raise NotCacheable("weights are frozen into graphs (option freezing)")
    if options.debug or compiler.vetoes.keys or compiler.preferences.ways:
        raise NotCacheable("each stage is looked at (options debug, veto, prefer)")
    if not isinstance(gm, torch.fx.GraphModule):
        raise NotCacheable("compiled autograd captures anew in each process")
    return digest(*(text for part in _parts(gm, compiler) for text in (part.name, part.text)))


def _parts(gm: torch.fx.GraphModule, compiler: Compiler) -> Iterator[Part]:
    yield from version_parts()
    yield torch_part()
    yield from option_parts(compiler)
    yield from devices_part(torch_api.captured_devices(gm), compiler)
    yield from plugin_parts(compiler)
    yield Part("sizes", _known_sizes(), "the program's inputs, by dynamo")
    yield Part("rank", str(torch_api.rank()), "the program, by torch.distributed")
    if goes_by_anything(compiler):
        yield Part("names", _names(gm), "the program, by torch")


def _known_sizes() -> str:
    """Ranges of sizes that may vary, and assertions. Their likely values only weigh costs, and guards are torch's,
    which decides them again."""
    env = torch_api.current_shape_env()
    if env is None:
        return ""
    ranges = torch_api.value_ranges(env).items()
    return "\n".join(
        sorted([*(f"{low} <= {symbol} <= {high}" for symbol, (low, high) in ranges), *torch_api.facts_of(env)])
    )


def _names(gm: torch.fx.GraphModule) -> str:
    """Returns what gives traced nodes, and the graph, their names and places."""
    return "\n".join([torch_api.compile_label(), *map(place_of, gm.graph.nodes)])


def program_of(gm: torch.fx.GraphModule) -> str:
    """Returns a digest of the names and lines of a program, which AOTAutograd's cache does not include in its key."""
    modules = (module for module in gm.modules() if isinstance(module, torch.fx.GraphModule))
    return digest(*(place_of(node) for module in modules for node in module.graph.nodes))


def take(key: str, compiler: Compiler, load_entry: Load) -> GraphCode | None:
    """The code under the digest of a key, its guards on record with what is being compiled; None where it is not there,
    or one of the guards does not hold."""
    code = shared(compiler.cache, key)
    if code is not None:
        return code if _hold(code.entry) else None
    folder = find(key, compiler.cache)
    if folder is None:
        return None
    try:
        entry = read_entry(folder)
    except (OSError, ValueError, LookupError, ImportError, AttributeError, TypeError):
        return None  # another process has just removed it, or it names what is no longer here
    if not _hold(entry):
        return None
    code = load_entry(entry, folder)
    artifacts.record(KIND, key, folder)
    share(compiler.cache, key, code)
    return code


def _hold(entry: GraphEntry) -> bool:
    return torch_api.decide_again(torch_api.current_shape_env(), entry.guards)

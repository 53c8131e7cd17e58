"""GraphCode: a graph's wrapper and kernels, loaded. In: a `GraphEntry` and its kernels' launchers. Out: CompiledGraphs.

Graphs that are equal share one code in a process. What belongs to each of them alone (its name, what plugins wrap
around its entry) is made for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from .compiled_graph import CompiledGraph, Entry, Site, load_wrapper
from .graph_entry import WRAPPER, GraphEntry
from .pool import Pool
from .retained import retaining
from .wrapper_support import support


@dataclass(frozen=True, eq=False)
class GraphCode:
    """folder: where the sources lie. call: the wrapper's function. cache_hits: how many kernels were not built.
    namespace: what the wrapper finds in its globals."""

    entry: GraphEntry
    folder: Path
    call: Entry
    cache_hits: int = 0
    namespace: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def graph(
        self,
        name: str,
        output_strides: Sequence[tuple[Any, ...] | None] | None = None,
        key: str = "",
        said: Said | None = None,
    ) -> CompiledGraph:
        """Returns one graph that runs this code. output_strides: as CompiledGraph has them. key: of the graph cache, or
        ''. said: the words for its steps, if any."""
        said = said or Said(lambda: self.entry.wrapper)
        overwritten = self.entry.overwritten
        around = partial(retaining, overwritten=overwritten) if overwritten else lambda entry: entry
        return CompiledGraph(
            name,
            said.text,
            self.folder / WRAPPER,
            around(self.call),
            {name: str(self.folder / file) for name, file in self.entry.kernel_files.items()},
            output_strides,
            self.cache_hits,
            key,
            self,
            ranged=around(said.ranged) if said.ranged else None,
            sites=said.sites,
            inputs=said.inputs,
        )


@dataclass(frozen=True)
class Said:
    """The words for one graph's steps. text: makes the wrapper with comments. ranged, sites, inputs: as CompiledGraph
    has them."""

    text: Callable[[], str]
    ranged: Entry | None = None
    sites: Callable[[str], Sequence[Site]] = lambda path: ()
    inputs: Callable[[], Mapping[str, str]] = dict


def load_code(
    entry: GraphEntry, folder: Path, launchers: Mapping[str, Callable[..., Any]], pool: Pool, cache_hits: int = 0
) -> GraphCode:
    """Returns the wrapper, loaded around its kernels. launchers: by name of the kernel. pool: of host memory."""
    namespace = {**support(pool), **entry.objects, **launchers}
    return GraphCode(entry, folder, load_wrapper(entry.wrapper, folder / WRAPPER, namespace), cache_hits, namespace)

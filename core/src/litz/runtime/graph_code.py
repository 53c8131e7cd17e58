"""GraphCode: a graph's wrapper and kernels, loaded. In: a `GraphEntry` and its kernels' launchers. Out: CompiledGraphs.

Graphs that are equal share one code in a process. What belongs to each of them alone (recorded CUDA graphs, which know
their inputs' addresses) is made for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .compiled_graph import CompiledGraph, Entry, load_wrapper
from .cuda_graphs import replayed
from .graph_entry import WRAPPER, GraphEntry
from .pool import Pool
from .retained import retaining
from .wrapper_support import support


@dataclass(frozen=True, eq=False)
class GraphCode:
    """folder: where the sources lie. call: the wrapper's function. cache_hits: how many kernels were not built."""

    entry: GraphEntry
    folder: Path
    call: Entry
    cache_hits: int = 0

    def graph(
        self, name: str, output_strides: Sequence[tuple[Any, ...] | None] | None = None, key: str = ""
    ) -> CompiledGraph:
        """One graph of this code. output_strides: as CompiledGraph has them. key: of the graph cache, or ''."""
        call = self.call
        if self.entry.replay is not None:
            call = replayed(call, self.entry.replay)
        if self.entry.overwritten:
            call = retaining(call, self.entry.overwritten)
        return CompiledGraph(
            name,
            self.entry.wrapper,
            self.folder / WRAPPER,
            call,
            {name: str(self.folder / self.entry.file_of(name)) for name in self.entry.kernels},
            output_strides,
            self.cache_hits,
            key,
            self,
        )


def load_code(
    entry: GraphEntry, folder: Path, launchers: Mapping[str, Callable[..., Any]], pool: Pool, cache_hits: int = 0
) -> GraphCode:
    """The wrapper, loaded around its kernels. launchers: by kernel. pool: of host memory."""
    namespace = {**support(pool), **entry.objects, **launchers}
    return GraphCode(entry, folder, load_wrapper(entry.wrapper, folder / WRAPPER, namespace), cache_hits)

"""CompiledGraph: the generated module, loaded, with its kernels; call it with the list of inputs."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.autograd import profiler

Entry = Callable[[list[Any]], tuple[Any, ...]]
RANGE = "litz "
"""What a profile's name for a call of a graph begins with; the graph's name follows."""


@dataclass(frozen=True)
class CompiledGraph:
    """What a graph became. Calling it runs the graph; it empties the list that it is given.

    `path` is where the wrapper's source lies; `kernels` maps each kernel's name to where its source lies.
    `cache_hits` is how many of them were not built, as the cache had them.
    `output_strides` are those of each output where they are others than traced (saved tensors only), else None.
    `key` is under which the graph cache has it, '' where it has not; `code` is what equal graphs share.
    """

    name: str
    text: str
    path: Path
    entry: Entry
    kernels: Mapping[str, str] = field(default_factory=dict)
    output_strides: Sequence[tuple[Any, ...] | None] | None = None
    cache_hits: int = 0
    key: str = ""
    code: Any = field(default=None, repr=False, compare=False)

    # AOTAutograd hands a callable with this mark its inputs as one list, so that they can be freed early.
    _boxed_call: bool = True

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        """Run the graph. Under torch.profiler the call is a range "litz NAME"."""
        if profiler._is_profiler_enabled:
            with profiler.record_function(f"{RANGE}{self.name}"):
                return self.entry(args)
        return self.entry(args)

    def __str__(self) -> str:
        return self.text


def load_wrapper(text: str, path: Path, namespace: Mapping[str, Any]) -> Entry:
    """Execute a wrapper's source with `namespace` as its globals and return its `call`.

    The source is registered with linecache, so that a traceback shows its lines even when nothing was written to disk.
    """
    scope = dict(namespace)
    linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
    exec(compile(text, str(path), "exec"), scope)
    entry: Entry = scope["call"]
    return entry

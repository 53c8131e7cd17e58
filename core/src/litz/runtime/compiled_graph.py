"""CompiledGraph: the generated module, loaded, with its kernels; call it with the list of inputs."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch.autograd import profiler

from litz.errors import MissingMemoryError, TracedCallError
from litz_plugins import Entry

from .torch_runtime import mode_count, tracing_mode

Site = tuple[int, int, str]
"""Lines of a wrapper, from the first to the last, and the step that they are of, as a message names it."""
RANGE = "litz "
"""The beginning of a profile's name for a call of a graph; the graph's name follows."""
PREPARED = "litz's ranges, once"
"""The name in a profile of the time in which a graph's first call under a profiler makes the ranges of its steps."""


@dataclass(frozen=True)
class CompiledGraph:
    """A compiled graph. A call runs the graph, and empties the list that it is given.

    `written` makes the wrapper's text, with comments. `path` is where the wrapper's source lies; `kernels` maps each
    kernel's name to where its source lies.
    `cache_hits` is how many of them were not built, as the cache had them.
    `output_strides` are those of each output where they are others than traced (saved tensors only), else None.
    `ranged` does what `entry` does with a range around each step, for calls under a profiler. `sites`: for the path of
    a text that is run, where its steps are; asked where something was raised. `inputs`: what the user calls them, by
    name; asked for there, too.
    `key` is under which the graph cache has it, '' where it has not; `code` is what equal graphs share.
    """

    name: str
    written: Callable[[], str] = field(repr=False, compare=False)
    path: Path
    entry: Entry
    kernels: Mapping[str, str] = field(default_factory=dict)
    output_strides: Sequence[tuple[Any, ...] | None] | None = None
    cache_hits: int = 0
    key: str = ""
    code: Any = field(default=None, repr=False, compare=False)
    ranged: Entry | None = None
    sites: Callable[[str], Sequence[Site]] = lambda path: ()
    inputs: Callable[[], Mapping[str, str]] = dict

    # AOTAutograd hands a callable with this mark its inputs as one list, so that they can be freed early.
    _boxed_call: bool = True

    @property
    def text(self) -> str:
        """Returns the wrapper's text, with comments."""
        return self.written()

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        """Run the graph. Under torch.profiler, and `emit_nvtx`, the call is a range "litz NAME", and each step one in
        it. What a step raises gets a note that says where in the user's model it is."""
        if mode_count():
            refuse_tracing()
        try:
            if profiler._is_profiler_enabled:
                with profiler.record_function(f"{RANGE}{self.name}"):
                    return (self.ranged or self.entry)(args)
            return self.entry(args)
        except Exception as error:
            self._note(error)
            raise

    def _note(self, error: Exception) -> None:
        """Add to an error which step raised it."""
        if isinstance(error, MissingMemoryError) and (known := self.inputs().get(error.name)):
            error.add_note(f"litz: {error.name} is {known}")
        for frame, line in traceback.walk_tb(error.__traceback__):
            for first, last, step in self.sites(frame.f_code.co_filename):
                if first <= line <= last:
                    error.add_note(f"litz: in {step}, of {self.name}")
                    return

    def inside(self, around: Callable[[Entry], Entry]) -> CompiledGraph:
        """Returns the graph with a function wrapped around its entry."""
        return replace(self, entry=around(self.entry), ranged=self.ranged and around(self.ranged))

    def __str__(self) -> str:
        return self.text


def refuse_tracing() -> None:
    """Raises TracedCallError under a mode that traces: what a wrapper allocates there has no memory."""
    mode = tracing_mode()
    if mode:
        raise TracedCallError(mode)


class Lazily:
    """An entry that is made when it is first called."""

    def __init__(self, make: Callable[[], Entry]) -> None:
        self._make, self._entry = make, None  # type: tuple[Callable[[], Entry], Entry | None]

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        """Runs the entry on the inputs; the first call makes it."""
        if self._entry is None:
            with profiler.record_function(PREPARED):
                self._entry = self._make()
        return self._entry(args)


def load_wrapper(text: str, path: Path, namespace: Mapping[str, Any]) -> Entry:
    """Executes a wrapper's source with `namespace` as its globals and returns its `call`.

    The source is registered with linecache, so that a traceback shows its lines even when nothing was written to disk.
    """
    scope = dict(namespace)
    linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
    exec(compile(text, str(path), "exec"), scope)
    entry: Entry = scope["call"]
    return entry

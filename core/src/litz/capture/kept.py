"""What a later process must know to call a compiled graph without a trace: in, what capture found out; out, JSON text.

The text lies in AOTAutograd's disk cache beside the graph's key, under which litz's own cache has the graph
(`litz.capture.torch_api.aot_cache`). The text is read as data, and text that is not as expected is a miss.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from litz.capture.backward_inputs import BackwardInputs
from litz.capture.graph import Kind
from litz.origins.trust import OWN, Trust

VERSION = 1
"""The version of the text's format; a text of another version is a miss."""


@dataclass(frozen=True)
class GraphStore:
    """The place where compiled graphs are kept for other processes.

    setting: what else litz's result for a graph depends on: options, target, versions, plugins. As text.
    load: of a key and what to call the graph: the graph that lies there, ready to be called; None where there is none.
    program: a digest of the names and lines of what is being compiled, for provenances. trust: whose entries are read.
    recording: entered during the trace by who serializes what is compiled; nothing is looked for then.
    What `compile_graph` returns has its key as the attribute `key`, '' or absent where it is not kept.
    """

    setting: str
    load: Callable[[str, str], Callable[[list[Any]], Sequence[Any]] | None]
    program: str = ""
    trust: Trust = OWN
    recording: Callable[[], AbstractContextManager[Any]] | None = None


@dataclass(frozen=True)
class Facts:
    """The facts that calling a graph needs beside the graph.

    watched: the graph is run outside of AOTAutograd's dispatch mode (`torch_api.unwatched`). written, bits: of a
    forward or inference graph, as `_Job` has them. inputs: of a backward.
    """

    kind: Kind
    unwatched: bool = False
    written: frozenset[int] = frozenset()
    bits: Mapping[int, tuple[bool, bool]] | None = None
    inputs: BackwardInputs | None = None

    def as_text(self) -> str | None:
        """Returns the record as JSON; None where some of it cannot be said in text."""
        inputs = None if self.inputs is None else self.inputs.as_data()
        if self.inputs is not None and inputs is None:
            return None
        bits = [[number, *pair] for number, pair in (self.bits or {}).items()]
        data = {"litz": VERSION, "kind": self.kind, "unwatched": self.unwatched, "written": sorted(self.written)}
        return json.dumps({**data, "bits": bits, "inputs": inputs})

    @classmethod
    def from_text(cls, text: str) -> Facts | None:
        """Returns the record that `as_text` of this version wrote; None for any other text."""
        try:
            data = json.loads(text)
            if data["litz"] != VERSION:
                return None
            inputs = None if data["inputs"] is None else BackwardInputs.from_data(data["inputs"])
            bits = {number: (conjugated, negated) for number, conjugated, negated in data["bits"]}
            return cls(data["kind"], data["unwatched"], frozenset(data["written"]), bits, inputs)
        except (ValueError, KeyError, TypeError):
            return None

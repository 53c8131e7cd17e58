"""Custom passes of who calls `litz.standalone_compile`, as a plugin of that one compile."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch

from litz_plugins import OptionsView, Pass, hookimpl

from .errors import ArtifactError


class CustomPasses:
    """The plugin. passes: objects with `uuid()` that are called with a graph, or pairs (identity, function)."""

    def __init__(self, passes: Sequence[Any]) -> None:
        self._passes = [_identified(item) for item in passes]

    @hookimpl
    def litz_register_passes(self, options: OptionsView) -> Sequence[Pass]:
        """Returns the passes, one after the other."""
        names = [f"standalone_pass_{number}" for number in range(len(self._passes))]
        rows = zip(names, [(), *((name,) for name in names)], self._passes, strict=False)
        return [Pass(name, "graph", _run(function), after=after) for name, after, (_, function) in rows]

    @hookimpl
    def litz_cache_fingerprint(self, options: OptionsView) -> str:
        """Returns the passes' identities."""
        return json.dumps([identity for identity, _ in self._passes])


def _identified(item: Any) -> tuple[str, Callable[[torch.fx.Graph], Any]]:
    """A pass's identity as text, and the pass."""
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and callable(item[1]):
        return item
    uuid = getattr(item, "uuid", None)
    identity = uuid() if callable(uuid) else None
    if identity is None or not callable(item):
        problem = f"the pass {item!r} has no identity, so nobody could tell its graphs from others"
        raise ArtifactError(problem, todo="give it a method uuid(), or write (identity, function)")
    if isinstance(identity, bytes):
        return f"sha256 {hashlib.sha256(identity).hexdigest()}", item
    return (identity if isinstance(identity, str) else repr(identity)), item


def _run(function: Callable[[torch.fx.Graph], Any]) -> Callable[[Any, Any], Any]:
    def run(graph: Any, context: Any) -> Any:
        edited = graph.copy()
        function(edited.module.graph)
        edited.module.recompile()
        return edited

    return run

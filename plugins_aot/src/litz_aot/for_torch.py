"""Artifacts where torch itself asks for something to keep: `aot_compile` of a compiled function, and precompiling.

In: what dynamo captured. Out: a callable that is one of torch's `SerializableCallable`, so that torch saves litz's
bytes with its own, and with `torch._dynamo.config.caching_precompile` a `BackendCacheArtifact`. Dynamo's guards stand
in front of each call, so the inputs are not compared again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch._dynamo.aot_compile_types import SerializableCallable
from torch._dynamo.precompile_context import BackendCacheArtifact, PrecompileContext

from . import artifact

_log = logging.getLogger("litz.graph_cache")


class Compiled(SerializableCallable):
    """A compiled graph that torch can save. run: with dynamo's convention. make: returns the artifact as bytes."""

    def __init__(self, run: Any, make: Any) -> None:
        self._run, self._make = run, make

    def __call__(self, *args: Any) -> Any:
        """Returns the graph's results."""
        return self._run(*args)

    @classmethod
    def serialize_compile_artifacts(cls, fn: Any) -> bytes:
        """Returns what torch saves of a callable. Errors: ArtifactError for what another process could not run."""
        made: bytes = fn._make()
        return made

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> Any:
        """Returns the callable that torch saved. Errors: ArtifactError for what cannot run here."""
        loaded = artifact.deserialize(data)
        return cls(loaded, loaded.serialize)


class Precompiled(BackendCacheArtifact[Any]):
    """One graph of a precompiled function, as torch keeps it. content: the artifact as bytes."""

    def after_deserialization(self) -> Any:
        """Returns what runs the graph. Errors: ArtifactError for what cannot run here."""
        return Compiled.deserialize_compile_artifacts(self.content)


def compiled(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], compiler: Any) -> Any:
    """Returns what runs a graph that dynamo captured, for torch to save; None for another graph than dynamo's."""
    from litz.capture import torch_api

    from . import graph_inputs
    from .errors import ArtifactError
    from .standalone import Job

    flat = graph_inputs.as_it_is(gm) if isinstance(gm, torch.fx.GraphModule) else None
    if flat is None:
        return None
    job = Job(flat, example_inputs, torch_api.as_captured(gm, example_inputs), autograd=True, checked=False)
    done = job.compiled(compiler)
    key = getattr(gm, "_backend_id", None)
    if torch._dynamo.config.caching_precompile and key is not None:
        try:
            PrecompileContext.record_artifact(Precompiled(key, done.serialized()))
        except ArtifactError as error:
            _log.warning("torch cannot precompile a graph of litz's: %s", error)
    return Compiled(done.run, done.serialized)

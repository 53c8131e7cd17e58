"""CUDA graphs: a compiled graph recorded once per set of input shapes, then replayed as one launch.

Safe by construction: a recording reads its inputs from memory of its own, into which each call's inputs are copied
(parameters, whose addresses do not move, are read where they are; a moved one makes a new recording), and every output
is copied out of the recording's memory, so what the caller keeps is the caller's. That costs one pass over inputs and
outputs; it saves the host time of every launch.

NCCL does not end a communicator while a recording with one of its collectives lives, and dynamo may keep compiled code
for as long as the process lives. So recordings do not live as long as that code: `release` ends all of them, which
`torch._dynamo.reset()` calls by way of the backend.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .compiled_graph import Entry

MOST_RECORDINGS = 16
"""Shapes recorded per graph; calls with further shapes run without a recording."""


_with_recordings: weakref.WeakSet[_Replayer] = weakref.WeakSet()
"""All replayers of the process that have recordings: dynamo's reset has no handle on a graph, and NCCL's communicators
belong to the process."""


def recordings() -> int:
    """Returns the number of recordings in this process."""
    return sum(len(replayer.recordings) for replayer in list(_with_recordings))


def release() -> None:
    """End all recordings of this process. Graphs that are called again record anew."""
    for replayer in list(_with_recordings):
        replayer.release()
    _with_recordings.clear()


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: list[Any]
    outputs: tuple[Any, ...]


def why_not(facts: Mapping[str, Any]) -> str | None:
    """Returns the reason that a schedule cannot be recorded, None if it can."""
    if not facts["recordable"]:
        return "it uses memory that is not on a CUDA device"
    if facts["unbacked"]:
        return "it has sizes that are known only at run time, which a recording would fix"
    return None


def replayed(entry: Entry, facts: Mapping[str, Any]) -> Entry:
    """`entry` behind recordings; `entry` itself where recording is not possible."""
    if why_not(facts) is not None:
        return entry
    return _Replayer(entry, facts)


class _Replayer:
    """Warm-up on the first call of each set of shapes, a recording on the second, replays from then on."""

    def __init__(self, entry: Entry, facts: Mapping[str, Any]) -> None:
        self.entry = entry
        self.static: frozenset[int] = facts["static"]
        self.mutated: frozenset[int] = facts["mutated"]
        self.returned: tuple[int | None, ...] = facts["returned_inputs"]
        self.seen: set[Any] = set()
        self.failed = False
        self.recordings: dict[Any, _Recording] = {}

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        key = tuple(self._key(position, value) for position, value in enumerate(args))
        recording = self.recordings.get(key)
        if recording is None:
            full = len(self.recordings) >= MOST_RECORDINGS
            if self.failed or full or key not in self.seen or _capturing():
                self.seen.add(key)
                return self.entry(args)
            recording = self._record(args)
            if recording is None:
                return self.entry(args)
            self.recordings[key] = recording
            _with_recordings.add(self)
        return self._replay(recording, args)

    def release(self) -> None:
        """Drops all recordings, as before the first call. The device first ends a recording that is running."""
        self.recordings.clear()
        self.seen.clear()

    def _key(self, position: int, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if position in self.static:
            return value.data_ptr()
        return value.shape, value.stride(), value.device.index

    def _record(self, args: list[Any]) -> _Recording | None:
        inputs = [_copied(value) if self._moves(position, value) else value for position, value in enumerate(args)]
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                outputs = self.entry(list(inputs))
        except RuntimeError as error:
            warnings.warn(f"litz runs a graph without CUDA graphs, because recording it failed: {error}", stacklevel=2)
            self.failed = True
            return None
        return _Recording(graph, inputs, outputs)

    def _moves(self, position: int, value: Any) -> bool:
        """Does a recording read an input from memory of its own?"""
        return isinstance(value, torch.Tensor) and position not in self.static

    def _replay(self, recording: _Recording, args: list[Any]) -> tuple[Any, ...]:
        for position, (own, value) in enumerate(zip(recording.inputs, args, strict=True)):
            if own is not value and self._moves(position, value):
                own.copy_(value)
        recording.graph.replay()
        for position in self.mutated - self.static:
            args[position].copy_(recording.inputs[position])
        outputs = []
        for output, source in zip(recording.outputs, self.returned, strict=True):
            if source is not None and source not in self.static:
                outputs.append(_same_part(output, recording.inputs[source], args[source]))
            elif isinstance(output, torch.Tensor) and source is None:
                outputs.append(_copied(output))
            else:
                outputs.append(output)
        args.clear()
        return tuple(outputs)


def _same_part(output: torch.Tensor, own: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """The part of the caller's tensor that `output` is of the recording's."""
    if output is own:
        return given
    offset = given.storage_offset() + output.storage_offset() - own.storage_offset()
    return given.as_strided(output.shape, output.stride(), offset)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy with the same strides, and with the conjugate and negative bits of the tensor: the graph was
    traced for these."""
    fresh = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    fresh = fresh.conj() if tensor.is_conj() else fresh
    return (fresh._neg_view() if tensor.is_neg() else fresh).copy_(tensor)


def _capturing() -> bool:
    return torch.cuda.is_current_stream_capturing()

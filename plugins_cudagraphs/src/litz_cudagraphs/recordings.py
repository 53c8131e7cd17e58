"""CUDA graphs: a compiled graph recorded once per set of input shapes, then replayed as one launch.

Safe by construction: a replay changes no tensor that a caller holds. A recording reads three kinds of inputs where they
lie: parameters, tensors that another recording has lent (those saved for a backward), and inputs that had the same
address in the call before. Each call copies the other inputs into memory of the recording's own. When an input that the
recording reads in place has another address, litz makes a new recording, which copies that input. Outputs are lent
(`lent.py`): where a caller holds an output at the next call, litz makes a new recording, which writes elsewhere. The
recordings of a stream share memory for all that nobody sees (`shared_memory.py`). A backward gets the memory of what
its forward saved for it alone (`ceding.py`), unless autograd keeps that for another backward (`retain_graph=True`):
such calls have recordings of their own.

NCCL does not end a communicator while a recording with one of its collectives lives, and dynamo may keep compiled code
for as long as the process lives. So recordings do not live as long as that code: `release` ends all of them, which
`torch._dynamo.reset()` calls (`RESET`).
"""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from litz.capture.torch_api import reset_with_dynamo
from litz.runtime.torch_runtime import graph_is_kept
from litz_plugins import Entry, EntryFacts

from .ceding import Handover, to_cede
from .lent import Loan, Outputs, copied, room_for, unowned
from .shared_memory import Place, Pools
from .torch_memory import drop_library_workspaces, storage_of, take_segment

MOST_RECORDINGS = 16
"""Shapes recorded per graph; calls with further shapes run without a recording."""
MOST_SEEN = 256
"""Shapes without a recording that a graph remembers, so that it records the second call: the oldest are forgotten."""
MOST_ATTEMPTS = 3
"""Recordings of one set of shapes, as inputs turn out to move. The last copies all inputs but the static ones and those
that are lent; if these move, another one copies them, too."""


_with_recordings: weakref.WeakSet[_Replayer] = weakref.WeakSet()
"""All replayers of the process that have recordings: dynamo's reset has no handle on a graph, and NCCL's communicators
belong to the process."""

_needed: list[_Recording] = []
"""Recordings that were dropped while somebody holds memory that they have ceded: the pool has it for as long as they
live."""

_pools = Pools()
"""The memory of the recordings, which are of all graphs of the process."""


_lock = threading.RLock()
"""Held from the question who holds the recordings' memory until a call has its outputs, as recordings of all threads
share memory: otherwise two replays could find the same outputs free, and the second would write over the first's."""


def count() -> int:
    """Returns the number of recordings in this process."""
    return sum(len(replayer.recordings) for replayer in list(_with_recordings))


def release() -> None:
    """Ends all recordings of this process. Graphs that are called again record anew."""
    with _lock:
        for recording in _needed:
            recording.move_ceded()
        _needed.clear()
        for replayer in list(_with_recordings):
            replayer.release()
        _with_recordings.clear()


RESET = SimpleNamespace(reset=release)
"""What `torch._dynamo.reset()` is told to call, by whoever records."""


def _drop(recordings: list[_Recording]) -> None:
    """Drops recordings, but for those whose memory somebody needs."""
    for recording in recordings:
        recording.memory.leave()
    _needed[:] = [recording for recording in (*_needed, *recordings) if recording.outputs.held_of_ceded()]


@dataclass(frozen=True)
class _Part:
    """A view of an input. offset: in elements, from where the input begins."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, given: torch.Tensor) -> torch.Tensor:
        return given.as_strided(self.shape, self.stride, given.storage_offset() + self.offset)


@dataclass
class _Recording:
    """copies: by position, the recording's memory of each input that a call copies. places: by position, the
    address of each input that the recording reads where the input lies. memory: where all else lies. returned: by the
    number of an output that is an input or a part of an input, the input's position and the part (None: the whole)."""

    graph: torch.cuda.CUDAGraph
    memory: Place
    copies: dict[int, torch.Tensor]
    places: dict[int, int]
    outputs: Outputs
    returned: dict[int, tuple[int, _Part | None]]

    def all_stayed(self, args: list[Any]) -> bool:
        """Returns whether all inputs that are read in place lie where they lay."""
        return [args[position].data_ptr() for position in self.places] == list(self.places.values())

    def stayed(self, args: list[Any]) -> set[int]:
        """Returns the positions of those that lie there."""
        return {position for position, place in self.places.items() if args[position].data_ptr() == place}

    def move_ceded(self) -> None:
        """Moves what somebody holds of ceded memory, which nobody owns when the recordings end."""
        self.outputs.move(self.outputs.held_of_ceded())


def replayed(entry: Entry, facts: EntryFacts) -> Entry:
    """Returns `entry` behind recordings, or `entry` itself where `facts` names an obstacle to recording."""
    if facts.obstacle:
        return entry
    reset_with_dynamo(RESET)  # mostly within a compile, when no other thread can be resetting
    return _Replayer(entry, facts)


class _Replayer:
    """Warm-up on the first call of each set of shapes, a recording on the second, replays from then on."""

    def __init__(self, entry: Entry, facts: EntryFacts) -> None:
        self.entry = entry
        self.static = facts.static
        self.mutated = facts.mutated
        self.made = facts.made
        self.fixed: list[int] = sorted(self.static)
        self.varying: list[int] = sorted(facts.varying - self.static)
        self.returned = facts.returned_inputs
        self.peak = facts.peak
        self.growth = facts.growth
        self.seen: dict[Any, dict[int, int]] = {}
        self.attempts: dict[Any, int] = {}
        self.held: dict[Any, list[set[int]]] = {}
        self.failed = False
        self.recordings: dict[Any, _Recording] = {}
        weakref.finalize(self, _drop_all, self.recordings).atexit = False

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        with _lock:
            outputs = self._from_recording(args)
        return self.entry(args) if outputs is None else outputs

    def _from_recording(self, args: list[Any]) -> tuple[Any, ...] | None:
        """The outputs of a replay; None where the call is to run without a recording."""
        kept = not self.made or graph_is_kept()
        places = [args[position].data_ptr() for position in self.fixed]
        key = (_stream(), kept, *places, *[_varying(args[position]) for position in self.varying])
        recording = self.recordings.get(key)
        held = recording.outputs.unavailable() if recording is not None else []
        if held:
            self.held.setdefault(key, []).append({number for loan in held for number in loan.outputs})
        if recording is None:
            full = len(self.recordings) >= MOST_RECORDINGS
            if self.failed or full or key not in self.seen or _capturing():
                self.seen.setdefault(key, self._places(args))
                if len(self.seen) > MOST_SEEN:
                    del self.seen[next(iter(self.seen))]
                return None
            if self._waits(key, args):
                return None
            staying = {p for p, place in self._places(args).items() if self.seen[key].get(p) == place}
            recording = self._record(key, args, staying)
        elif not recording.all_stayed(args):
            stayed, pool = recording.stayed(args), recording.memory.pool if recording.memory.ceded else None
            recording = None  # the next one takes its memory
            self._forget(key, stayed)
            if pool is not None and self._starts_over(key, args, pool.endangered_by_new()):
                return None
            recording = self._record(key, args, stayed)
        elif in_the_way := recording.memory.endangered():
            stayed, alone = set(recording.places), self._moves_out(key, args, in_the_way)
            recording = None
            self._forget(key, stayed, moved=not alone)
            recording = self._record(key, args, stayed, alone)
        elif held:
            # Another thread or stream may be about to read what is held, so nothing moves it. What nobody holds needs
            # no such care: who lets go of a tensor has launched all that reads it.
            stayed = set(recording.places)
            recording = None
            self._forget(key, stayed, moved=False)
            recording = self._record(key, args, stayed)
        return None if recording is None else self._replay(recording, args)

    def release(self) -> None:
        """Drops all recordings, as before the first call. The device first ends a recording that is running."""
        for recording in self.recordings.values():
            recording.move_ceded()
        self.recordings.clear()
        self.seen.clear()
        self.attempts.clear()
        self.held.clear()

    def _places(self, args: list[Any]) -> dict[int, int]:
        """The addresses of the inputs that a recording can read where they are, if they stay there."""
        return {
            position: value.data_ptr()
            for position, value in enumerate(args)
            if isinstance(value, torch.Tensor) and position not in self.static
        }

    def _lent(self, args: list[Any]) -> set[int]:
        """The inputs that some recording has lent: the next call gets them at the same addresses."""
        lent = {loan.number for _, _, made in _all_recordings() for loan in made.outputs.loans}
        return {position for position in self._places(args) if storage_of(args[position]) in lent}

    def _forget(self, key: Any, stayed: set[int], moved: bool = True) -> None:
        """Drops a recording, as another is to take its place, in its memory. stayed: which inputs were where they
        were. What it has ceded memory to goes as well: that needs the inputs where they were."""
        recording = self.recordings.pop(key)
        loans = set(recording.outputs.loans)  # before those that nobody holds are dropped
        _drop([recording])
        self.seen[key] = {position: recording.places[position] for position in stayed}
        self.attempts[key] = self.attempts.get(key, 0) + moved
        _forget_all(lambda other: not other.memory.ceded.keys().isdisjoint(loans))

    def _moves_out(self, key: Any, args: list[Any], in_the_way: list[Loan]) -> bool:
        """Returns whether to record a graph in memory of its own, as a replay would write over what somebody holds. If
        some of that is an input, its maker was recorded later: then it is enough to record the graph after that."""
        return not _inputs_in(args, in_the_way) or self.attempts.get(key, 0) >= MOST_ATTEMPTS

    def _starts_over(self, key: Any, args: list[Any], in_the_way: list[Loan]) -> bool:
        """Returns whether forwards are to be recorded again, and their backwards after them, when they are called next.
        So it is for a backward that was ceded its inputs' memory, and is to be recorded again: this memory belongs to
        nobody now, and a recording would take it."""
        if _inputs_in(args, in_the_way).isdisjoint(self.made) or self.attempts[key] > MOST_ATTEMPTS:
            return False
        _forget_all(lambda other: not set(in_the_way).isdisjoint(other.outputs.loans))
        return True

    def _waits(self, key: Any, args: list[Any]) -> bool:
        """Returns whether a backward is not to be recorded in this call, as its forward is recorded again first."""
        in_the_way = [] if key[1] else _pools.shared(key[0]).endangered_by_new()
        alive = {loan for _, _, recording in _all_recordings() for loan in recording.outputs.loans}
        return not _inputs_in(args, [loan for loan in in_the_way if loan not in alive]).isdisjoint(self.made)

    def _record(self, key: Any, args: list[Any], staying: set[int], alone: bool = False) -> _Recording | None:
        """A recording, kept under `key`. staying: the inputs to read where they are, besides those that are lent.
        alone: in memory of its own."""
        attempts = self.attempts.get(key, 0)
        staying = staying if attempts + 1 < MOST_ATTEMPTS or alone else set()
        staying |= self._lent(args) if attempts < MOST_ATTEMPTS else set()
        moving = {position: args[position] for position in self._places(args) if position not in staying}
        copies = {p: copied(value) for p, value in moving.items() if p in self.mutated or not value.numel()}
        _drop([])
        pool = _pools.shared(key[0])
        if alone or pool.endangered_by_new():
            pool = _pools.own()
        made_before = frozenset[int]() if key[1] else self.made & staying
        handover = Handover(args, to_cede(args, made_before, pool.out.values()), pool.made + 1)
        copied_bytes = sum(value.nbytes for position, value in moving.items() if position not in copies)
        lacks = pool.lacks((self.growth if handover.inputs else self.peak) + copied_bytes)
        graph = torch.cuda.CUDAGraph()
        try:
            with _own_workspaces(), torch.cuda.graph(graph, pool.handle, capture_error_mode="thread_local"):
                take_segment(lacks)
                rooms = {position: room_for(value) for position, value in moving.items() if position not in copies}
                copies |= {position: unowned(room) for position, room in rooms.items()}
                made = list(self.entry(_given([copies.get(p, v) for p, v in enumerate(args)], rooms, handover.inputs)))
        except RuntimeError as error:
            warnings.warn(f"litz runs a graph without CUDA graphs, because recording it failed: {error}", stacklevel=2)
            handover.end()
            pool.next()
            self.failed = True
            return None
        ceded = handover.end()
        returned = {
            n: (p, _part(made[n], copies.get(p, args[p]))) for n, p in enumerate(self.returned) if p is not None
        }
        outputs = Outputs([None if number in returned else value for number, value in enumerate(made)])
        del made
        outputs.settle(self._to_copy(key, len(outputs.values)))
        places = {position: args[position].data_ptr() for position in staying}
        recording = self.recordings[key] = _Recording(
            graph, pool.place(outputs, ceded), copies, places, outputs, returned
        )
        _with_recordings.add(self)
        reset_with_dynamo(RESET)  # again, after a reset
        return recording

    def _to_copy(self, key: Any, number: int) -> set[int]:
        """The outputs that callers have held when they called again, or all where that took too many recordings."""
        held = self.held.get(key, [])
        return set(range(number)) if len(held) >= MOST_ATTEMPTS else set().union(*held)

    def _replay(self, recording: _Recording, args: list[Any]) -> tuple[Any, ...]:
        recording.memory.take()
        _copy({position: (own, args[position]) for position, own in recording.copies.items()})
        recording.graph.replay()
        _copy({p: (args[p], own) for p, own in recording.copies.items() if p in self.mutated})
        outputs = recording.outputs.given()
        for number, (position, part) in recording.returned.items():
            outputs[number] = args[position] if part is None else part.of(args[position])
        args.clear()
        return tuple(outputs)


def _varying(value: Any) -> Any:
    """Returns the part of a recording's key for an input whose sizes vary."""
    return (value.shape, value.stride(), value.device.index) if isinstance(value, torch.Tensor) else value


def _all_recordings() -> list[tuple[_Replayer, Any, _Recording]]:
    return [(replayer, *item) for replayer in list(_with_recordings) for item in replayer.recordings.items()]


def _forget_all(which: Callable[[_Recording], bool]) -> None:
    for replayer, key, recording in _all_recordings():
        if key in replayer.recordings and which(recording):
            replayer._forget(key, set(recording.places), moved=False)


def _drop_all(recordings: dict[Any, _Recording]) -> None:
    """Called when a graph ends, maybe by the garbage collector, in any thread: does nothing on the device."""
    with _lock:
        _drop(list(recordings.values()))


def _inputs_in(args: list[Any], loans: list[Loan]) -> set[int]:
    """The positions of the inputs that lie in what is lent."""
    storages = {loan.number for loan in loans}
    return {n for n, value in enumerate(args) if isinstance(value, torch.Tensor) and storage_of(value) in storages}


def _given(args: list[Any], *instead: dict[int, torch.Tensor]) -> list[Any]:
    """The inputs to record with, those of `instead` in place of others. The dicts are empty then, so that the entry
    frees the tensors after its last use."""
    for tensors in instead:
        for position in list(tensors):
            args[position] = tensors.pop(position)
    return args


def _copy(pairs: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy the second of each pair to the first: tensors of one type together, as each launch takes its time."""
    alike: dict[Any, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for position, (to, source) in pairs.items():
        bits = to.is_conj() or to.is_neg() or source.is_conj() or source.is_neg()
        targets, sources = alike.setdefault((position if bits else -1, to.dtype, to.device), ([], []))
        targets.append(to)
        sources.append(source)
    for targets, sources in alike.values():
        if len(targets) == 1:
            targets[0].copy_(sources[0])
        else:
            torch._foreach_copy_(targets, sources)


def _part(output: torch.Tensor, given: torch.Tensor) -> _Part | None:
    """Returns the part of an input that an output is; None: the whole."""
    offset = int(output.storage_offset() - given.storage_offset())
    part = _Part(tuple(output.shape), output.stride(), offset)
    return None if part == _Part(tuple(given.shape), given.stride(), 0) else part


@contextlib.contextmanager
def _own_workspaces() -> Iterator[None]:
    """Gives cuBLAS memory of the recording's own to work in. torch keeps cuBLAS's memory for later products on the same
    stream. Other code that records, such as TorchInductor, makes torch forget this memory; a recording that used memory
    from outside would then use memory that is free."""
    drop_library_workspaces()
    try:
        yield
    finally:
        drop_library_workspaces()


def _stream() -> tuple[int, int]:
    """Returns the current device and its current stream. Streams run side by side, so none shares recordings."""
    stream = torch.cuda.current_stream()
    return stream.device_index, stream.cuda_stream


def _capturing() -> bool:
    return torch.cuda.is_current_stream_capturing()

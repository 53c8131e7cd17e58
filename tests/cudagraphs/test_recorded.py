"""Recordings without a GPU: when one is made, and when it ends."""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from litz_cudagraphs import recordings, shared_memory
from litz_cudagraphs.recordings import replayed
from litz_plugins import EntryFacts

FACTS = EntryFacts(varying=frozenset({0}), returned_inputs=(None,))


class FakeGraph:
    """In place of torch.cuda.CUDAGraph: a replay does nothing, so that results are those of the recording."""

    made: list[weakref.ref[FakeGraph]] = []

    def __init__(self) -> None:
        self.made.append(weakref.ref(self))

    def replay(self) -> None:
        pass


def kept_room(tensor: torch.Tensor) -> torch.Tensor:
    """As `room_for`, but what the recording frees belongs to no pool here."""
    ROOMS.append(torch.empty_like(tensor))
    return ROOMS[-1].detach()


ROOMS: list[torch.Tensor] = []
NUMBERS = itertools.count(1)
POOLS: list[object] = []
"""The pool of each recording, in order."""
STREAM = [0]
"""The current one."""


def begin(graph: FakeGraph, pool: object, **_: Any) -> contextlib.AbstractContextManager[None]:
    POOLS.append(pool)
    return contextlib.nullcontext()


def alive() -> int:
    return sum(graph() is not None for graph in FakeGraph.made)


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    FakeGraph.made.clear()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", begin)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, next(NUMBERS)))
    monkeypatch.setattr(recordings, "_stream", lambda: (0, STREAM[0]))
    POOLS.clear()
    monkeypatch.setattr(recordings, "_capturing", lambda: False)
    monkeypatch.setattr(recordings, "drop_library_workspaces", lambda: None)
    monkeypatch.setattr(recordings, "room_for", kept_room)
    monkeypatch.setattr(recordings, "take_segment", lambda nbytes: None)
    monkeypatch.setattr(shared_memory, "unused_bytes", lambda pool: 0)
    ROOMS.clear()
    yield
    recordings.release()


def counted() -> tuple[Any, list[int]]:
    """A recorded function that doubles, and the sizes that it really ran for."""
    ran: list[int] = []

    def entry(args: list[Any]) -> tuple[Any, ...]:
        (x,) = args
        ran.append(x.numel())
        return (x * 2,)

    return replayed(entry, FACTS), ran


def test_the_second_call_of_a_size_records_and_later_ones_replay() -> None:
    double, ran = counted()
    for size in (4, 8):
        x = torch.ones(size)
        for _ in range(4):
            (found,) = double([x])
            assert torch.equal(found, torch.full((size,), 2.0))
            del found
    assert ran == [4, 4, 8, 8] and alive() == recordings.count() == 2


def test_sizes_that_come_once_are_forgotten() -> None:
    double, _ = counted()
    for size in range(1, 600):
        double([torch.ones(size)])
    assert len(double.seen) <= recordings.MOST_SEEN
    double([torch.ones(599)])
    assert recordings.count() == 1, "the last ones are known"


def test_released_recordings_end_though_the_graph_lives() -> None:
    double, ran = counted()
    for _ in range(3):
        double([torch.ones(4)])
    assert alive() == 1
    recordings.release()
    assert alive() == 0
    for _ in range(3):
        double([torch.ones(4)])
    assert ran == [4] * 4 and alive() == 1, "a call, and a recording, once more"


def test_dynamos_reset_ends_them() -> None:
    """NCCL's communicators cannot end before them, and dynamo keeps code that has traced a collective."""
    compiled = torch.compile(lambda x: x + 1, backend="litz", options={"cuda_graphs": True})
    double, _ = counted()
    for _ in range(2):  # what is compiled after a reset ends with the next one
        compiled(torch.ones(4))
        for _ in range(2):
            double([torch.ones(4)])
        assert alive() == 1
        torch._dynamo.reset()
        assert alive() == 0


def test_what_cannot_be_recorded_is_left_alone() -> None:
    entry = lambda args: tuple(args)
    assert replayed(entry, replace(FACTS, obstacle="it is on a CPU")) is entry


def test_outputs_that_nobody_holds_are_lent() -> None:
    double, _ = counted()
    x = torch.ones(4)
    places = []
    for _ in range(5):
        (found,) = double([x])
        places.append(found.data_ptr())
        del found
    assert len(set(places[1:])) == 1, "no call after the recording makes memory for its output"


@pytest.mark.parametrize("hold", [lambda out: out, lambda out: out[1:], lambda out: out.detach()[::2]])
def test_what_a_caller_holds_stays_and_is_copied_from_then_on(hold: Any) -> None:
    double, ran = counted()
    x = torch.ones(4)
    for _ in range(2):
        (found,) = double([x])
    held, expected = hold(found), hold(found).clone()
    place, recorded = held.data_ptr(), found.data_ptr()
    del found
    kept = [double([x])[0] for _ in range(4)]
    assert held.data_ptr() == place and torch.equal(held, expected), "nothing moves"
    assert len({recorded, *(found.data_ptr() for found in kept)}) == 5, "copied"
    assert len(ran) == 3, "a call, and two recordings"


def test_outputs_that_are_held_in_turn_do_not_record_for_ever() -> None:
    ran: list[int] = []

    def entry(args: list[Any]) -> tuple[Any, ...]:
        ran.append(1)
        return tuple(args[0] + n for n in range(12))

    run, x = replayed(entry, replace(FACTS, returned_inputs=(None,) * 12)), torch.ones(4)
    run([x])
    held: list[torch.Tensor] = []
    for number in range(12):
        held.append(run([x])[number])
    assert len(ran) == 2 + recordings.MOST_ATTEMPTS
    assert [tensor[0].item() for tensor in held] == [1.0 + number for number in range(12)]


def test_what_the_graph_keeps_is_never_lent() -> None:
    constant = torch.arange(3.0)
    entry = replayed(lambda args: (constant, args[0] + 1), replace(FACTS, returned_inputs=(None, None)))
    x = torch.ones(2)
    places = [entry([x])[0].data_ptr() for _ in range(4)]
    assert constant.data_ptr() not in places[1:]


def test_outputs_of_one_memory_stay_together() -> None:
    def entry(args: list[Any]) -> tuple[Any, ...]:
        whole = args[0] + 1
        return whole, whole[1:]

    run = replayed(entry, replace(FACTS, returned_inputs=(None, None)))
    x = torch.arange(4.0)
    for _ in range(2):
        whole, part = run([x])
    del whole
    run([x])
    assert torch.equal(part, torch.arange(2.0, 5.0))


def written(entry: Any, **facts: Any) -> tuple[Any, list[int]]:
    """A recorded function, and the addresses of its inputs at each time that it really ran."""
    ran: list[int] = []

    def listening(args: list[Any]) -> tuple[Any, ...]:
        ran.extend(value.data_ptr() for value in args)
        return entry(args)

    return replayed(listening, replace(FACTS, **facts)), ran


def test_an_input_that_stays_is_read_where_it_is() -> None:
    run, ran = written(lambda args: (args[0] + 1,))
    x = torch.ones(4)
    for _ in range(4):
        run([x])
    assert ran == [x.data_ptr()] * 2


def test_an_input_that_moves_is_copied() -> None:
    run, ran = written(lambda args: (args[0] + 1,))
    inputs = [torch.ones(4) for _ in range(5)]
    for x in inputs:
        run([x])
    assert len(ran) == 2 and ran[1] not in {x.data_ptr() for x in inputs}


def test_an_input_that_moves_later_makes_one_recording_more() -> None:
    run, ran = written(lambda args: (args[0] + args[1],))
    x, others = torch.ones(4), [torch.ones(4) for _ in range(4)]
    for _ in range(3):
        run([x, others[0]])
    for y in (*others, *others):
        run([x, y])
    assert ran[2:4] == [x.data_ptr(), others[0].data_ptr()], "both stayed"
    assert len(ran) == 6 and ran[4] == x.data_ptr(), "the one that stays is still read where it is"
    assert ran[5] not in {y.data_ptr() for y in others} and alive() == 1


def test_inputs_that_move_in_turn_do_not_record_for_ever() -> None:
    run, ran = written(lambda args: (sum(args),))
    first, second = ([torch.ones(4) for _ in range(6)] for _ in range(2))
    args = list(first)
    for n in range(6):
        for _ in range(2):
            run(list(args))
        args[n] = second[n]
    for _ in range(2):
        run(list(args))
    assert len(ran) == 6 * (1 + recordings.MOST_ATTEMPTS), "a call, and the recordings"


def test_a_backward_reads_what_its_forward_lent() -> None:
    forward = replayed(lambda args: (args[0] + 1,), FACTS)
    backward, ran = written(lambda args: (args[0] * 2,))
    x = torch.ones(4)
    for _ in range(4):
        (saved,) = forward([x])
        place = saved.data_ptr()
        args = [saved]
        del saved
        backward(args)
    assert ran[1] == place and len(ran) == 2


def test_an_input_that_stays_is_written_where_it_is() -> None:
    def entry(args: list[Any]) -> tuple[Any, ...]:
        args[0].add_(1)
        return (args[0] * 1,)

    run = replayed(entry, replace(FACTS, mutated=frozenset({0})))
    x = torch.zeros(2)
    for _ in range(2):  # a call, and a recording, which on a GPU does not compute
        run([x])
    assert x.tolist() == [2.0, 2.0]


def test_an_output_that_is_an_input_is_the_callers() -> None:
    facts = {"returned_inputs": (0, 0, 1, None)}
    run, ran = written(lambda args: (args[0], args[0][1:], args[1][::2], args[0] * args[1]), **facts)
    x, moving = torch.arange(4.0), [torch.full((4,), float(n)) for n in range(4)]
    for y in (*moving, *moving):
        whole, part, other = run([x, y])[:3]
        assert whole is x and part.data_ptr() == x[1:].data_ptr() and torch.equal(other, y[::2])
        assert part.shape == (3,) and other.stride() == (2,)
    assert len(ran) == 4 and ran[2] == x.data_ptr(), "it is read where it is, too"


def add(number: float) -> tuple[Any, list[int]]:
    return written(lambda args: (args[0] + number,))


def test_recordings_of_a_stream_share_memory_and_others_do_not() -> None:
    first, second = add(1)[0], add(2)[0]
    x = torch.ones(4)
    for STREAM[0] in (0, 7, 0):
        for _ in range(2):
            first([x])
            second([x])
    STREAM[0] = 0
    assert len(POOLS) == 4 and POOLS[0] == POOLS[1] != POOLS[2] == POOLS[3]


def test_an_earlier_recording_moves_out_while_somebody_holds_what_a_later_one_made() -> None:
    (first, ran), (second, later) = add(1), add(2)
    x = torch.ones(4)
    for _ in range(3):
        first([x])
        second([x])
    assert len(set(POOLS)) == 1
    (held,) = second([x])
    place = held.data_ptr()
    first([x])
    assert POOLS[2] not in POOLS[:2] and len(ran) == 3, "recorded again, elsewhere"
    assert held.data_ptr() == place, "nothing moves"
    for _ in range(3):
        first([x])
        second([x])
    assert len(POOLS) == 4 and len(later) == 3, "once, and the second once as its output was held when it was called"


def test_what_an_earlier_recording_made_is_out_of_a_later_ones_way() -> None:
    first, second = add(1)[0], add(2)[0]
    x = torch.ones(4)
    for _ in range(2):
        first([x])
        second([x])
    (held,) = first([x])
    second([x])
    assert len(POOLS) == 2 and held.tolist() == [2.0] * 4


def test_what_a_dropped_recording_lent_is_still_somebodys() -> None:
    first, second = add(1)[0], add(2)[0]
    x, y = torch.ones(4), torch.ones(4)
    for _ in range(2):
        first([x])
        second([x])
    (held,) = second([x])
    again = second([y])  # the input has moved: another recording
    del again
    first([x])
    assert len(POOLS) == 4 and POOLS[3] not in POOLS[:3], "the first would write over `held`"
    assert held.tolist() == [3.0] * 4


def test_memory_goes_with_the_last_recording_in_it() -> None:
    for _ in range(2):
        run = add(1)[0]
        for _ in range(2):
            run([torch.ones(4)])
        del run
        gc.collect()
    assert len(set(POOLS)) == 2


def test_who_holds_the_storage_alone_keeps_its_values() -> None:
    """torch counts all references to a storage's Python object as one owner, and a recording has that object, too."""
    (double, _), x = counted(), torch.ones(4)
    for _ in range(3):
        double([x])
    (found,) = double([x])
    storage = found.untyped_storage()
    place = found.data_ptr()
    del found
    (other,) = double([x])
    assert storage.data_ptr() == place
    assert torch.empty(0).set_(storage, 0, (4,)).tolist() == [2.0] * 4 and other.data_ptr() != storage.data_ptr()


def together(call: Callable[[], Any], number: int) -> list[Any]:
    """What several threads get that call at once, all held."""
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(call())) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_threads_that_replay_at_once_get_memory_each(monkeypatch: pytest.MonkeyPatch) -> None:
    (double, _), x = counted(), torch.ones(4)
    for _ in range(3):
        double([x])
    monkeypatch.setattr(FakeGraph, "replay", lambda graph: time.sleep(0.02))  # others run meanwhile
    found = together(lambda: double([x])[0], 4)
    assert len({y.data_ptr() for y in found}) == 4


def test_what_another_thread_holds_does_not_move() -> None:
    """That thread may just be handing the address to the GPU."""
    (double, ran), x = counted(), torch.ones(4)
    for _ in range(3):
        double([x])
    (held,) = double([x])
    place = held.data_ptr()
    calls = len(ran)
    (other,) = together(lambda: double([x])[0], 1)
    assert held.data_ptr() == place != other.data_ptr() and len(ran) == calls + 1, "it was recorded again"
    del held, other
    together(lambda: double([x])[0], 1)
    assert len(ran) == calls + 1, "a replay"

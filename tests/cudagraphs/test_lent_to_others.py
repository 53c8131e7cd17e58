"""What a recording has lent, and others read: another thread, or a stream that is behind. Each reads an address first,
and the memory there later, after the recording was replayed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from litz_cudagraphs import recordings
from litz_cudagraphs.recordings import replayed
from litz_cudagraphs.torch_memory import storage_at
from support.fake_recordings import CPU, Machine, machine
from support.recorded_layers import FACTS, SIZE, kernel

Recorded = Callable[[list[Any]], tuple[Any, ...]]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    recordings.release()
    yield machine(monkeypatch)
    recordings.release()


def producer(made: Machine) -> Recorded:
    run = replayed(lambda args: (kernel(made, torch.sin, args.pop()),), replace(FACTS, returned_inputs=(None,)))
    for _ in range(3):
        run([torch.rand(SIZE)])
    return run


def launched(x: Tensor) -> Callable[[], Tensor]:
    """A copy of x that was handed to a GPU by address: what it gives is what lies there when it runs."""
    place, size, like = x.data_ptr(), x.untyped_storage().nbytes(), (0, x.shape, x.stride())
    return lambda: torch.empty(0).set_(storage_at(place, CPU, size), *like).clone()  # type: ignore[call-overload]


@pytest.mark.parametrize("consumer", ["with recordings", "without recordings"])
def test_a_thread_that_has_read_an_address(made: Machine, consumer: str) -> None:
    """The second thread runs eager code, another compiler's, or a graph of litz's that cannot be recorded; or a call of
    litz's that comes before the recording."""
    run, x = producer(made), torch.rand(SIZE)
    address_read, replay_done = threading.Event(), threading.Event()
    found: list[Tensor] = []

    def consume(args: list[Any]) -> tuple[Any, ...]:
        kernel_to_run = launched(args[0])
        address_read.set()
        assert replay_done.wait(10)
        found.append(kernel_to_run())
        return ()

    facts = replace(FACTS, returned_inputs=(), obstacle="" if consumer == "with recordings" else "it is eager")
    second = replayed(consume, facts)
    (lent,) = run([x])
    thread = threading.Thread(target=lambda: second([lent]))
    thread.start()
    assert address_read.wait(10)
    (other,) = run([x + 1])
    replay_done.set()
    thread.join()
    torch.testing.assert_close(found[0], x.sin())
    torch.testing.assert_close(lent, x.sin())
    torch.testing.assert_close(other, (x + 1).sin())


def test_a_stream_that_is_behind(made: Machine) -> None:
    """A stream waits for another once, and then reads what it holds, while that goes on."""
    run, x = producer(made), torch.rand(SIZE)
    (lent,) = run([x])
    on_other_stream = [launched(lent)]
    (other,) = run([x + 1])
    on_other_stream.append(launched(lent))
    for late in on_other_stream:
        torch.testing.assert_close(late(), x.sin())
    torch.testing.assert_close(other, (x + 1).sin())


@pytest.mark.parametrize("holds", [False, True])
def test_memory_that_a_caller_gave_back(made: Machine, holds: bool) -> None:
    """`untyped_storage().resize_`, by which sharded training frees what it gathered: a storage of the fake machine
    cannot be resized, and sharing it with other processes moves it elsewhere as well."""
    run, x = producer(made), torch.rand(SIZE)
    (lent,) = run([x])
    lent.untyped_storage()._share_fd_cpu_()
    held = lent.fill_(7) if holds else None
    del lent
    for number in range(3):
        (other,) = run([x + number])
        torch.testing.assert_close(other, (x + number).sin())
        assert held is None or bool((held == 7).all())
        del other


def test_another_process(made: Machine) -> None:
    """Nobody in this process holds what was sent, and the other process reads it when it likes."""
    run, x = producer(made), torch.rand(SIZE)
    (lent,) = run([x])
    elsewhere = made.send(lent)
    del lent
    for number in range(1, 5):
        (other,) = run([x + number])
        torch.testing.assert_close(other, (x + number).sin())
        torch.testing.assert_close(elsewhere(), x.sin())
        del other
    assert recordings.count() == 1


def test_another_process_and_a_recording_that_was_made_before(made: Machine) -> None:
    """The earlier recording's memory may be where the later one's outputs lie."""
    facts, x = replace(FACTS, returned_inputs=(None,)), torch.rand(SIZE)

    def with_temporary(args: list[Any]) -> tuple[Any, ...]:
        temporary = kernel(made, torch.cos, args.pop())
        return (kernel(made, torch.sin, temporary),)

    first = replayed(with_temporary, facts)
    for _ in range(3):
        first([x])
    second = producer(made)
    (lent,) = second([x])
    elsewhere = made.send(lent)
    del lent
    for number in range(1, 4):
        torch.testing.assert_close(first([x + number])[0], (x + number).cos().sin())
        torch.testing.assert_close(elsewhere(), x.sin())
        torch.testing.assert_close(second([x - number])[0], (x - number).sin())
        torch.testing.assert_close(elsewhere(), x.sin())


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["sent", "given back"])
def test_what_a_gpu_lent(way: str) -> None:
    """As with the machine above, where torch's own allocator and CUDA's handles for other processes do it."""
    recordings.release()
    run = torch.compile(lambda x: x.sin() * 2, backend="litz", mode="reduce-overhead")
    x = torch.rand(1 << 20, device="cuda")
    for _ in range(4):
        run(x)
    assert recordings.count() == 1
    lent = run(x)
    storage, place = lent.untyped_storage(), lent.data_ptr()
    if way == "sent":
        storage._share_cuda_()
    else:
        storage.resize_(0)
    size = 4 * x.numel()
    del lent, storage
    for number in range(1, 4):
        torch.testing.assert_close(run(x + number), (x + number).sin() * 2)
        if way == "sent":
            read = torch.empty(0, device="cuda").set_(storage_at(place, x.device, size), 0, x.shape, (1,))  # type: ignore[call-overload]
            torch.testing.assert_close(read.clone(), x.sin() * 2)

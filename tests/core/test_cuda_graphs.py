"""Recordings without a GPU: when one is made, and when it ends."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from litz.runtime import cuda_graphs
from litz.runtime.cuda_graphs import replayed

FACTS = {
    "recordable": True,
    "unbacked": False,
    "static": frozenset(),
    "mutated": frozenset(),
    "returned_inputs": (None,),
}


class FakeGraph:
    """In place of torch.cuda.CUDAGraph: a replay does nothing, so that results are those of the recording."""

    made: list[weakref.ref[FakeGraph]] = []

    def __init__(self) -> None:
        self.made.append(weakref.ref(self))

    def replay(self) -> None:
        pass


def alive() -> int:
    return sum(graph() is not None for graph in FakeGraph.made)


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    FakeGraph.made.clear()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(cuda_graphs, "_capturing", lambda: False)
    yield
    cuda_graphs.release()


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
        for _ in range(4):
            (found,) = double([torch.ones(size)])
            assert torch.equal(found, torch.full((size,), 2.0))
    assert ran == [4, 4, 8, 8] and alive() == cuda_graphs.recordings() == 2


def test_released_recordings_end_though_the_graph_lives() -> None:
    double, ran = counted()
    for _ in range(3):
        double([torch.ones(4)])
    assert alive() == 1
    cuda_graphs.release()
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
    assert replayed(entry, {**FACTS, "recordable": False}) is entry
    assert replayed(entry, {**FACTS, "unbacked": True}) is entry

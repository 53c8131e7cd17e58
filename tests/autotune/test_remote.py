"""Results shared through a real Redis server; and servers that are not there, slow, or hold nonsense."""

from __future__ import annotations

import json
import socket
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from litz_autotune.measurement import Measurement
from litz_autotune.problem import Operand, Problem
from litz_autotune.remote import PREFIX, SECONDS, RemoteStore
from litz_autotune.results import Counters, Record
from support import rivals
from support.fake_timer import FakeTimer
from support.redis_server import redis_server
from support.tuned import Tuned

A, B = torch.randn(32, 48), torch.randn(48, 16)
PROBLEM = Problem("mm", (Operand((2, 3), (3, 1), "f32"),), ("mm",), (), "H100")
RECORD = Record(PROBLEM, {"library": Measurement(10.0, 0.1, 5)})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def client(url: str) -> Any:
    import redis

    client = redis.Redis.from_url(url)
    client.flushall()
    return client


def test_a_record_comes_back(url: str, client: Any) -> None:
    counters = Counters()
    store = RemoteStore(url, counters)
    assert store.find("key", PROBLEM) is None
    assert store.put("key", RECORD) == RECORD
    assert RemoteStore(url, counters).find("key", PROBLEM) == RECORD
    assert (counters.remote_misses, counters.remote_puts, counters.remote_hits) == (1, 1, 1)
    assert json.loads(client.get(PREFIX + "key"))["format"] == "litz-autotune"


def test_the_first_result_counts_for_all(url: str, client: Any) -> None:
    first, second = RemoteStore(url, Counters()), RemoteStore(url, Counters())
    other = Record(PROBLEM, {"library": Measurement(20.0, 0.1, 5)})
    assert first.put("key", RECORD) == RECORD
    assert second.put("key", other) == RECORD
    assert second.counters.remote_puts == 0


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x80\x04\x95",  # the beginning of a pickle
        b"{}",
        b"[1, 2]",
        b'{"format": "litz-autotune", "version": 99}',
        RECORD.to_json().replace("10.0", "-1").encode(),
        Record(Problem("bmm", (), (), (), "H100"), {}).to_json().encode(),
    ],
)
def test_nonsense_is_not_believed_and_is_replaced(url: str, client: Any, value: bytes) -> None:
    client.set(PREFIX + "key", value)
    store = RemoteStore(url, Counters())
    assert store.find("key", PROBLEM) is None
    assert store.put("key", RECORD) == RECORD
    assert store.find("key", PROBLEM) == RECORD


def test_a_second_machine_does_not_measure(url: str, client: Any, tmp_path: Path) -> None:
    timer = FakeTimer((("library", 100), ("good", 50)))
    for number in range(4):  # each with a disk of its own
        compile_ = Tuned(tmp_path / str(number), timer, rivals.good, **{"autotune.remote_cache": url})
        torch.testing.assert_close(compile_(torch.mm, A, B), A @ B)
        assert compile_.chosen == ["good"]
        counters = compile_.autotune.counters
        assert (counters.remote_hits, counters.remote_puts, counters.tuned) == ((0, 1, 1) if number == 0 else (1, 0, 0))


def costs_one_warning(store: RemoteStore, match: str) -> float:
    """Seconds for three questions."""
    store._connect()  # the import of the package aside
    start = time.monotonic()
    with pytest.warns(UserWarning, match=match) as caught:
        for _ in range(3):
            assert store.find("key", PROBLEM) is None
            assert store.put("key", RECORD) == RECORD
    assert len(caught) == 1 and store.counters.remote_failures == 1
    return time.monotonic() - start


def test_an_unreachable_server_costs_one_warning() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pytest.importorskip("redis")
    costs_one_warning(RemoteStore(f"redis://127.0.0.1:{port}", Counters()), "goes on without")


def test_a_server_that_does_not_answer_costs_its_limit_once() -> None:
    pytest.importorskip("redis")
    with socket.socket() as silent:  # accepts, and says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        store = RemoteStore(f"redis://127.0.0.1:{silent.getsockname()[1]}", Counters())
        seconds = costs_one_warning(store, "goes on without")
    assert SECONDS == 0.2
    assert seconds < 5 * SECONDS  # six questions would take six times the limit


def test_a_url_that_is_none_costs_one_warning() -> None:
    pytest.importorskip("redis")
    store = RemoteStore("nonsense://", Counters())
    with pytest.warns(UserWarning, match="goes on without"):
        assert store.find("key", PROBLEM) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.find("key", PROBLEM) is None

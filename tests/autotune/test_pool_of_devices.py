"""A pool of several devices measures on all of them. Workers are played here: no process starts."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from litz_autotune.pool import Worker, WorkerPool


@pytest.mark.parametrize("count", [2, 3])
def test_every_device_measures(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(count)

    def ask(worker: Worker, request: Any, timeout: float) -> tuple[int | None, Any]:
        together.wait(timeout=10)  # each takes one request, and answers when all have one
        return worker.device, request

    monkeypatch.setattr(Worker, "ask", ask)
    pool = WorkerPool(tuple(range(count)))
    found = pool.run([f"request {number}" for number in range(2 * count)])  # type: ignore[misc]
    assert [request for _, request in found] == [f"request {number}" for number in range(2 * count)], "in order"
    assert sorted(device for device, _ in found) == sorted([*range(count)] * 2)

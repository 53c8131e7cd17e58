"""Processes that measure: a crash or a hang costs the request that caused it, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from litz_autotune.library_settings import SETTINGS, restore, snapshot
from litz_autotune.pool import Failure, InProcess, WorkerPool, devices_for

pytestmark = [pytest.mark.xdist_group("pool"), pytest.mark.usefixtures("interpreters_with_litz")]


@dataclass(frozen=True)
class Do:
    """A request that does what its name says."""

    what: str
    value: float = 0.0

    def run(self, state: dict[str, Any]) -> Any:
        if self.what == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.what == "hang":
            time.sleep(600)
        if self.what == "raise":
            raise ValueError("no good")
        if self.what == "spoil":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if self.what == "pid":
            return os.getpid()
        state["count"] = state.get("count", 0) + 1
        return self.value, state["count"]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool()
    yield pool
    pool.close()


@dataclass(frozen=True)
class Settings:
    """A request that says which settings it runs under."""

    def run(self, state: dict[str, Any]) -> dict[str, Any]:
        return snapshot()


@pytest.fixture
def kept() -> Iterator[None]:
    """Leaves torch's settings as they were."""
    before = snapshot()
    yield
    restore(before)
    assert snapshot() == before


CHANGES = {
    "float32_matmul_precision": "high",
    "deterministic": 1,
    "cudnn.allow_tf32": False,
    "cuda.matmul.allow_bf16_reduced_precision_reduction": False,
    "cuda.matmul.allow_fp16_reduced_precision_reduction": False,
    "cudnn.benchmark": True,
    "cudnn.deterministic": True,
}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_library_runs_under_the_settings_of_the_process_that_asks(pool: WorkerPool, kept: None) -> None:
    """Else a product in float32 would be measured without TF32 where the user allows it, and lose."""
    assert pool.run([Settings()]) == [snapshot()]
    seen = [snapshot()]
    for name, value in CHANGES.items():
        restore({name: value})
        assert snapshot() not in seen
        seen.append(snapshot())
        assert pool.run([Settings()]) == [snapshot()], name
    for before in seen[::-1]:
        restore(before)
        assert pool.run([Settings()]) == [before]


@pytest.mark.parametrize("forbidden", [False, True], ids=["free", "forbidden"])
def test_settings_are_restored_where_torch_forbids_to_set_them(
    kept: None, monkeypatch: pytest.MonkeyPatch, forbidden: bool
) -> None:
    """An import of torch.testing._internal forbids that, for the rest of the process."""
    namespace = torch.backends.disable_global_flags.__globals__
    monkeypatch.setitem(namespace, "__allow_nonbracketed_mutation_flag", not forbidden)
    for name in ("cudnn.allow_tf32", "cudnn.benchmark"):
        wanted = not SETTINGS[name].read()
        restore({name: wanted})
        assert SETTINGS[name].read() == wanted
        assert torch.backends.flags_frozen() == forbidden


def test_requests_are_answered_in_order_by_another_process(pool: WorkerPool) -> None:
    pids = pool.run([Do("pid"), Do("pid")])
    assert pids[0] == pids[1] != os.getpid()  # a warm one has another number than what starts it
    assert [result[0] for result in pool.run([Do("value", 3.14), Do("value", 2.7)])] == [3.14, 2.7]


def test_an_exception_costs_the_request(pool: WorkerPool) -> None:
    before = pool.run([Do("pid")])[0]
    failure, after = pool.run([Do("raise"), Do("pid")])
    assert failure == Failure("ValueError: no good")
    assert after == before


@pytest.mark.ci_cases("crash-signal 11")
@pytest.mark.parametrize("what, reason", [("crash", "signal 11"), ("spoil", "illegal memory access")])
def test_a_crash_costs_the_request_and_the_process_is_replaced(pool: WorkerPool, what: str, reason: str) -> None:
    pool.run([Do("pid")])
    before = pool.workers[0].pid
    failure, value = pool.run([Do(what), Do("value", 1.0)])
    assert failure.crashed and reason in failure.reason
    assert value == (1.0, 1)  # a fresh process, with no state
    assert before is not None and pool.workers[0].pid not in (None, before)


def test_a_hang_costs_its_timeout(pool: WorkerPool) -> None:
    failure = pool.run([Do("hang")], timeout=0.2)[0]
    assert failure.crashed and "did not end in 0 s" in failure.reason
    assert pool.run([Do("value", 5.0)])[0] == (5.0, 1)


def test_state_is_kept_from_request_to_request(pool: WorkerPool) -> None:
    first, second = pool.run([Do("value"), Do("value")])
    assert second[1] == first[1] + 1


def test_what_does_not_pickle_is_said(pool: WorkerPool) -> None:
    failure = pool.run([lambda: None])[0]  # type: ignore[list-item]
    assert "cannot be sent" in failure.reason and not failure.crashed


def test_a_process_ends_with_its_pool() -> None:
    pool = WorkerPool()
    pool.run([Do("pid")])
    pid = pool.workers[0].pid
    assert pid is not None
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_in_process_an_exception_costs_the_request_too() -> None:
    here = InProcess()
    assert here.run([Do("pid"), Do("raise")]) == [os.getpid(), Failure("ValueError: no good")]


@pytest.mark.parametrize(
    "inherited, device, expected",
    [(None, None, None), ("2,3", None, None), (None, 1, "1"), ("2,3", 1, "3"), ("GPU-a,GPU-b", 0, "GPU-a")],
)
def test_each_process_sees_the_device_that_it_is_for(inherited: Any, device: Any, expected: Any) -> None:
    assert devices_for(inherited, device) == expected


PARENT = """
import sys, threading, time
sys.path[:0] = {path!r}
from litz_autotune.pool import Worker
from support.rivals import Sleeps
worker = Worker()
threading.Thread(target=worker.ask, args=(Sleeps(), 60.0), daemon=True).start()
while not worker._ready:
    time.sleep(0.01)
print(worker.pid, flush=True)
time.sleep(60)
"""


def test_a_measuring_process_ends_when_its_parent_is_killed() -> None:
    """While it is busy with a request."""
    script = PARENT.format(path=[str(Path(__file__).parents[1])])
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = Path(f"/proc/{int(parent.stdout.readline())}/stat")
    assert child.exists()
    parent.kill()
    parent.wait()
    stop = time.monotonic() + 2
    while time.monotonic() < stop and child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.05)
    assert not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z"

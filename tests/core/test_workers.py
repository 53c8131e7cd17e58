"""Processes that compile Triton kernels: what they build, and all that may happen to them. No GPU is needed.

One real worker serves the tests that compile; what is looked at where one is lost is the pool, so those workers are
processes that answer without compiling, or do not.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from litz import graph_cache
from litz.cache.disk import Cache
from litz.errors import KernelBuildError
from litz.options import Options, local_ranks, without_gpus
from litz.runtime import builders
from litz.targets.triton import workers
from litz.targets.triton.build import build
from litz.targets.triton.codegen import TritonCodegen
from litz.targets.triton.compile import Job, Variant, compile_job
from litz.targets.triton.worker import WARM
from litz.targets.triton.workers import Workers, worker_count
from support.triton_cases import CASES

STAND_IN = """
import json, os, sys, time
from multiprocessing.connection import Connection
settings = json.loads(sys.argv[1])
line = Connection(settings["line"])
{start}
line.send_bytes(b"")
while True:
    request = json.loads(line.recv_bytes())
    folder = request["folder"]
    open(folder + "/begun", "w").write(str(os.getpid()))
    {serve}
"""
"""A worker that compiles nothing."""
ANSWER = "line.send_bytes(b'answered')"


@pytest.fixture(scope="module")
def pool() -> Iterator[Workers]:
    """With one real worker."""
    found = Workers()
    yield found
    found.close()


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Workers]]:
    """Makes pools of processes that do `serve` with a job. What this process compiles itself is answered "here"."""
    made: list[Workers] = []

    def make(serve: str = ANSWER, start: str = "", **settings: Any) -> Workers:
        made.append(Workers(program=STAND_IN.format(start=start, serve=serve), **settings))
        return made[-1]

    monkeypatch.setattr(workers, "compile_job", lambda job, folder: "here")
    yield make
    for pool in made:
        pool.close()


def gone(pid: int) -> bool:
    """Has a process ended, and does no parent have to look after it?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z" and os.getppid() != pid
    except (FileNotFoundError, ProcessLookupError):  # the second where it ends between the opening and the reading
        return True


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def test_a_worker_builds_what_this_process_builds(pool: Workers, tmp_path: Path) -> None:
    source, variant = CASES["symbolic"]().source, Variant(multiples=True)
    there, here = Cache(tmp_path / "there"), Cache(tmp_path / "here")
    by_worker = build(source, (9, 0), there, variant, partial(pool.compile, most=1))
    (pid,) = pool.processes()
    assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text(), "which needs no torch for it"
    own = build(source, (9, 0), here, variant)
    assert replace(by_worker, cubin=b"") == replace(own, cubin=b"") and by_worker.cubin[:4] == b"\x7fELF"
    (one,), (other,) = there._entries(), here._entries()
    assert one.name == other.name, "it is found where the other is"
    assert {path.name for path in one.iterdir()} == {path.name for path in other.iterdir()}


def test_what_does_not_compile_is_said_as_by_this_process(pool: Workers, tmp_path: Path) -> None:
    source = CASES["bias"]().source
    source = replace(source, text=source.text.replace("tmp0 + tmp1", "tmp0 + nothing"))
    said = []
    for compile_ in (compile_job, partial(pool.compile, most=1)):
        with pytest.raises(KernelBuildError, match="nothing is not defined") as caught:
            build(source, (9, 0), Cache(tmp_path), Variant(), compile_)
        said.append(str(caught.value))
    assert said[0] == said[1] and Path(caught.value.source).read_text() == source.text
    Path(caught.value.source).unlink()
    assert len(pool.processes()) == 1, "the worker goes on"


def test_a_worker_goes_on_after_ctrl_c(pool: Workers, tmp_path: Path) -> None:
    assert pool.compile(WARM, tmp_path, 1) == ""
    (pid,) = pool.processes()
    os.kill(pid, signal.SIGINT)
    assert pool.compile(WARM, tmp_path, 1) == ""
    assert pool.processes() == [pid]


def test_a_forked_process_has_no_workers(pool: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a DataLoader's. It holds no line open, and what it does at its end ends nobody else's workers."""
    monkeypatch.setattr(workers, "_shared", pool)
    assert pool.compile(WARM, tmp_path, 1) == ""
    (worker,) = pool._free
    with pool._changed:  # a thread of the parent's has the lock
        child = os.fork()
        if not child:
            fresh = workers._shared is not pool and not workers._shared.processes()
            workers._end()
            os._exit(0 if fresh and worker._line.closed else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert not worker._line.closed and pool.compile(WARM, tmp_path, 1) == "" and pool._free == [worker]


def test_a_job_is_data() -> None:
    job = Job("text", "kernel", {"pointers": ["*fp32"], "num_stages": 3}, (9, 0), 1000, Variant(False, True, True))
    assert Job.from_data(json.loads(json.dumps(job.to_data()))) == job


@pytest.mark.parametrize(
    ("serve", "said"),
    [("raise SystemExit('out of luck')", "a worker has ended: out of luck"), ("time.sleep(60)", "in 0.3 s")],
    ids=["died", "hangs"],
)
def test_a_lost_worker_costs_a_job_nothing(
    serve: str, said: str, stand_ins: Callable[..., Workers], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = stand_ins(serve, seconds=0.3)
    for lost in range(1, workers.LOSSES + 1):
        pool.start(1)
        (pid,) = pool.processes()
        assert pool.compile(WARM, tmp_path, 1) == "here"
        assert not list(tmp_path.iterdir()), "what the worker left is removed"
        assert gone(pid) and not pool.processes()
        assert len(caplog.records) == lost and said in caplog.text
    assert "all others" in caplog.messages[-1] and "all others" not in caplog.messages[0]
    assert pool.compile(WARM, tmp_path, 1) == "here" and not pool.processes() and len(caplog.records) == lost


@pytest.mark.parametrize(
    "start", ["raise ImportError('no triton')", "line.send_bytes(b'no triton')"], ids=["died", "compiles nothing"]
)
def test_what_never_gets_warm_is_not_tried_again(
    start: str, stand_ins: Callable[..., Workers], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = stand_ins(start=start)
    pool.start(2)
    assert [pool.compile(WARM, tmp_path, 2) for _ in range(2)] == ["here", "here"]
    assert "no triton" in caplog.text and len(caplog.records) == 1


def test_a_job_goes_to_who_is_warm(stand_ins: Callable[..., Workers], tmp_path: Path) -> None:
    """The first of the two to start takes forever."""
    first = str(tmp_path / "first")
    pool = stand_ins(start=f"try: os.mkdir({first!r})\nexcept FileExistsError: pass\nelse: time.sleep(60)")
    pool.start(2)
    assert wait_for(lambda: any(worker.ready for worker in pool._free))
    for _ in range(2):
        begun = time.monotonic()
        assert pool.compile(WARM, tmp_path, 2) == "answered" and time.monotonic() - begun < 30


@pytest.mark.parametrize("executable", ["", "/usr/bin/blender", "/nowhere/python"])
def test_where_no_process_can_be_started(
    executable: str,
    stand_ins: Callable[..., Workers],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    pool = stand_ins()
    pool.start(2)
    assert pool.compile(WARM, tmp_path, 2) == "here"
    assert len(caplog.records) == 1 and "no other can be started" in caplog.text


def test_an_interrupted_job_takes_its_worker_along(
    stand_ins: Callable[..., Workers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer would be taken for that to the next job."""
    pool = stand_ins()

    def interrupted(*given: Any) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(workers.Worker, "ask", interrupted)
        pool.compile(WARM, tmp_path, 1)
    assert not pool.processes()
    assert pool.compile(WARM, tmp_path, 1) == "answered"


def test_jobs_of_many_threads_wait_for_a_few_workers(stand_ins: Callable[..., Workers], tmp_path: Path) -> None:
    pool = stand_ins(f"time.sleep(0.02); {ANSWER}")
    folders = [tmp_path / str(number) for number in range(8)]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda folder: pool.compile(WARM, folder, 2), folders))
    assert found == ["answered"] * 8
    assert {int((folder / "begun").read_text()) for folder in folders} == set(pool.processes())
    assert len(pool.processes()) == 2


def test_who_waits_for_a_worker_goes_on_when_the_pool_ends(stand_ins: Callable[..., Workers], tmp_path: Path) -> None:
    pool = stand_ins("time.sleep(60)")
    with ThreadPoolExecutor(2) as threads:
        jobs = [threads.submit(pool.compile, WARM, tmp_path, 1) for _ in range(2)]
        assert wait_for((tmp_path / "begun").exists)
        pool.close()
        assert [job.result(10) for job in jobs] == ["here", "here"]
    assert not pool.processes()


def test_workers_end_when_nobody_asks(stand_ins: Callable[..., Workers], tmp_path: Path) -> None:
    pool = stand_ins(idle=0.3)
    pool.start(2)
    pids = pool.processes()
    assert len(pids) == 2
    assert wait_for(lambda: not pool.processes()) and wait_for(lambda: all(map(gone, pids)))
    assert pool.compile(WARM, tmp_path, 2) == "answered", "and come again"
    assert wait_for(lambda: threading.active_count() == 1 or not pool.processes())


# No `if __name__ == "__main__"`, as in many scripts.
PARENT = """
import os, signal, sys
from pathlib import Path
from litz.targets.triton.workers import _shared
from litz.targets.triton.worker import WARM
_shared.start(2)
held = [os.dup(worker._line.fileno()) for worker in _shared._free]
child = os.fork()
if not child:
    import time
    os.close(1)
    time.sleep(60)
    os._exit(0)
print(child, *_shared.processes(), flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["killed", "ends"])
def test_no_worker_outlives_its_parent(how: str) -> None:
    """Also one whose line a forked process holds."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**without_gpus(), "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", PARENT, how], stdout=subprocess.PIPE, text=True, env=environment)
    assert done.returncode == (-signal.SIGKILL if how == "killed" else 0)
    child, *pids = map(int, done.stdout.split())
    try:
        assert len(pids) == 2
        assert wait_for(lambda: all(map(gone, pids)))
    finally:
        os.kill(child, signal.SIGKILL)


def options(**given: Any) -> Options:
    return Options(**given)


@pytest.mark.parametrize(
    ("given", "machine", "own", "ranks", "count"),
    [
        ({}, 8, 8, 1, 8),
        ({}, 64, 64, 1, 16),
        ({}, 1, 1, 1, 0),  # it would be in its parent's way
        ({}, 3, 3, 1, 0),
        ({}, 16, 16, 8, 0),  # 2 for each rank
        ({}, 32, 32, 8, 4),
        ({}, 64, 4, 8, 4),  # each rank is bound to some
        ({}, 64, 4, 1, 4),
        ({"threads": 4}, 64, 64, 1, 4),
        ({"threads": 1}, 64, 64, 1, 0),
        ({"build_processes": 0}, 64, 64, 1, 0),
        ({"build_processes": 1}, 1, 1, 1, 1),
        ({"build_processes": 40, "threads": 2}, 1, 1, 1, 40),
    ],
)
def test_how_many_workers_there_are(
    given: dict[str, Any], machine: int, own: int, ranks: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builders, "_bound_to", lambda process: machine if process else own)
    monkeypatch.setattr(builders, "QUOTA", Path("/nowhere"))
    monkeypatch.setattr(workers, "local_ranks", lambda: ranks)
    assert worker_count(options(**given)) == count
    assert (workers.compiling(options(**given)) is compile_job) == (count == 0)


def test_a_compile_uses_the_workers_of_the_process(
    stand_ins: Callable[..., Workers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_shared", stand_ins())
    monkeypatch.setattr(workers, "processors", lambda ranks: 3)
    for count, there in ((0, 0), (1, 1), (3, 2)):  # one processor is this process's
        TritonCodegen().prepare(options(build_processes=count))
        assert len(workers._shared.processes()) == there
    assert workers.compiling(options(build_processes=3))(WARM, tmp_path) == "answered"
    assert len(workers._shared.processes()) == 2


def test_how_many_ranks_share_a_machine() -> None:
    assert [local_ranks({"LOCAL_WORLD_SIZE": text}) for text in ("8", "", "0", "many")] == [8, 1, 1, 1]
    assert local_ranks({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}) == 4
    assert local_ranks({}) == 1 and worker_count(None) == 0


@pytest.mark.parametrize(("quota", "count"), [("max 100000", 8), ("250000 100000", 3), ("50000 100000", 1), ("", 8)])
def test_a_container_may_have_less(quota: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(builders, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(builders, "_bound_to", lambda process: 8)
    assert builders.processors() == count


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_compile_builds_in_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, given = torch.randn(64, 1000, device="cuda"), {"build_processes": 2, "graph_cache": True}
    for processes in (2, 0):  # the second finds all in the cache
        with closing(Workers()) as pool:
            monkeypatch.setattr(workers, "_shared", pool)
            torch._dynamo.reset()
            graph_cache.forget()
            compiled = torch.compile(
                lambda x: torch.softmax(x, -1) + 1, backend="litz", options={**given, "cache_dir": str(tmp_path)}
            )
            torch.testing.assert_close(compiled(x), torch.softmax(x, -1) + 1)
            assert len(pool.processes()) == processes

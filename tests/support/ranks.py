"""Processes with a group between them, for tests that communicate: gloo on the CPU, or NCCL with a GPU each.

    with Ranks(2) as ranks:
        ranks.run(__file__, "function_of_this_file", argument)   # on every rank; raises what a rank raised

The function is called as `function(rank, argument)` in each process; `device()` says where its tensors belong. The
processes live as long as the Ranks, so that many tests pay for importing torch once; after a failure that ended one,
the next `run` starts new ones.

The seeds' tests run on two ranks, or on as many as LITZ_TEST_RANKS says.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import tempfile
import time
import traceback
from multiprocessing import connection, resource_tracker, spawn
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from support.warm_children import warm_python

if TYPE_CHECKING:
    import torch

START_SECONDS, RUN_SECONDS = 180, 180
AFTER_FAILURE_SECONDS = 15

WORLD = int(os.environ.get("LITZ_TEST_RANKS", "2"))
TRS = {"tag": "", "ranks": list(range(WORLD)), "group_size": WORLD}
"""What the collectives of the seeds' tests are told of their group."""


class RankFailed(AssertionError):
    """A rank raised; the message has its traceback."""


class Ranks:
    """`count` processes, each a rank of the default group. backend: "gloo" or "nccl"."""

    def __init__(self, count: int = 2, backend: str = "gloo") -> None:
        self.count, self.backend = count, backend
        self._workers: list[tuple[Any, Any]] = []
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        real = spawn.get_executable()
        if self.backend == "gloo":  # a copy has not looked at GPUs
            resource_tracker.ensure_running()  # by the interpreter itself, as no torch is needed there
            context.set_executable(warm_python(imported=True))
        try:
            self._start_by(context)
        finally:
            context.set_executable(real)
        self._gather(START_SECONDS)

    def _start_by(self, context: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="litz-ranks-")
        place = str(Path(self._folder.name) / "store")
        for rank in range(self.count):
            mine, theirs = context.Pipe()
            process = context.Process(target=_work, args=(rank, self.count, self.backend, place, theirs), daemon=True)
            process.start()
            self._workers.append((process, mine))

    def run(self, file: str, function: str, argument: Any = None) -> list[Any]:
        """What `function` of `file` returns on each rank."""
        if not self._workers:
            self._start()
        for _, pipe in self._workers:
            pipe.send((file, function, argument))
        return self._gather(RUN_SECONDS)

    def _gather(self, seconds: float) -> list[Any]:
        """What each rank says, within so many seconds. A rank that failed may leave others waiting for it: they have
        a little longer, and all are ended if one says nothing then."""
        found: dict[int, Any] = {}
        failures: dict[int, str] = {}
        until = time.monotonic() + seconds
        while len(found) < self.count:
            open_pipes = {pipe: rank for rank, (_, pipe) in enumerate(self._workers) if rank not in found}
            ready = connection.wait(list(open_pipes), max(0.0, until - time.monotonic()))
            for pipe in ready:
                rank = open_pipes[pipe]
                try:
                    failure, found[rank] = pipe.recv()
                except EOFError:
                    process = self._workers[rank][0]
                    process.join(10)
                    failure, found[rank] = f"died with exit code {process.exitcode}", None
                if failure:
                    failures[rank] = failure
                    until = min(until, time.monotonic() + AFTER_FAILURE_SECONDS)
            if not ready:
                failures |= {rank: "said nothing in time" for rank in open_pipes.values()}
                break
        if failures:
            if len(found) < self.count or any(process.exitcode is not None for process, _ in self._workers):
                self.close()
            raise RankFailed("\n".join(f"rank {rank} {what}" for rank, what in sorted(failures.items())))
        return [found[rank] for rank in range(self.count)]

    def close(self) -> None:
        for process, pipe in self._workers:
            pipe.close()
            process.terminate()
            process.join(10)
        self._workers = []
        self._folder.cleanup()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def device() -> torch.device:
    """Where this rank's tensors belong: the current GPU under NCCL, else the CPU."""
    import torch
    import torch.distributed as dist

    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


def _work(rank: int, count: int, backend: str, place: str, pipe: Any) -> None:
    """A worker: joins the group, then runs what it is told until the pipe closes."""
    if backend != "nccl":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # what is tested there is tested as on a machine without GPUs
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    own = {}
    if backend == "nccl":
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # multicast may not work where GPUs are lent
        torch.cuda.set_device(rank)
        own["device_id"] = torch.device("cuda", rank)
    dist.init_process_group(backend, store=dist.FileStore(place, count), rank=rank, world_size=count, **own)
    modules: dict[str, Any] = {}
    pipe.send(("", None))
    while True:
        try:
            file, function, argument = pipe.recv()
        except EOFError:
            return
        try:
            if file not in modules:
                spec = importlib.util.spec_from_file_location(Path(file).stem, file)
                assert spec is not None and spec.loader is not None
                modules[file] = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(modules[file])
            torch._dynamo.reset()
            pipe.send(("", getattr(modules[file], function)(rank, argument)))
        except BaseException:
            pipe.send((f"raised\n{traceback.format_exc()}", None))

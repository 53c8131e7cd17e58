"""Processes that run jobs. In: Jobs. Out: Outcomes, as they come.

A worker is forked from a process that has imported torch and has run nothing, so that a new one costs milliseconds:
from the parent itself or, where there is a GPU, from a server that has not looked at the GPU, because CUDA does not
survive a fork, and dynamo asks the GPU for its random state also where a graph is the CPU's. A worker for the CPU alone
sees no GPU. A worker says which case it begins and what became of the case; where a worker falls silent for too long it
is killed, and where a worker dies, the case that it was at has failed and another worker goes on with the next.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import multiprocessing
import os
import pkgutil
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from litz.options import hide_gpus

from .cases import Case, Job, cases, differentiable, samples, spread
from .check import Outcome, Way, check, check_call
from .edges import edge_calls

JOBS_PER_WORKER = 30
"""A worker is replaced after so many, for what torch.compile keeps in memory."""
_PRELOADED = ("litz.pipeline", "litz.backend", "litz.driver.builtin", "torch._dynamo", "torch._functorch.aot_autograd")


@dataclass(frozen=True)
class Settings:
    """The settings of each job. samples: how many of an operator's. modes: of "run" (no gradients), "train" (nothing
    for an operator without a backward) and "either" (train where there is a backward, else run). seconds: how long a
    case may take. way: how a case is compiled and judged.
    """

    samples: int = 2
    dynamic: tuple[bool, ...] = (False, True)
    modes: tuple[str, ...] = ("run", "train")
    way: Way = field(default_factory=Way)
    seconds: float = 60.0


def run_job(job: Job, settings: Settings, begin: Callable[[Case], bool] = lambda case: True) -> Iterator[Outcome]:
    """Yields the outcomes of a job's cases, run in this process. begin: told of each case; False leaves it out."""
    if "::" in job.op:
        yield from _run_edges(job, settings, begin)
        return
    for mode in settings.modes:
        train = mode != "run" and differentiable(job)
        if mode == "train" and not train:
            continue
        try:
            found = samples(job, settings.samples, train)
        except Exception as error:  # some sample functions need what is not installed, or have no such dtype
            yield Outcome(f"{job}/samples/{mode}", "skipped", f"no samples: {type(error).__name__}: {error}")
            continue
        for case in cases(job, found, settings.dynamic, train):
            if begin(case):
                yield check(case, found[case.sample], settings.way)


def _run_edges(job: Job, settings: Settings, begin: Callable[[Case], bool]) -> Iterator[Outcome]:
    taken, refused = edge_calls(job.op, job.dtype)
    for dynamic in settings.dynamic:
        case = Case(job, 0, dynamic, train=False)
        if taken is not None and begin(case):
            yield check_call(case, taken, settings.way)
        for position in spread(len(refused), settings.samples):
            case = Case(job, position + 1, dynamic, train=False)
            if refused and begin(case):
                yield check_call(case, refused[position], settings.way, refused=True)


def run_jobs(jobs: Sequence[Job], settings: Settings, workers: int = 2) -> Iterator[Outcome]:
    """Yields the outcomes of all jobs, in the order in which they come."""
    waiting: deque[tuple[Job, frozenset[str]]] = deque((job, frozenset()) for job in jobs)
    pool: list[_Worker] = []
    context, on_cpu = _context({job.device for job in jobs}), all(job.device == "cpu" for job in jobs)
    try:
        while waiting or any(worker.job for worker in pool):
            pool = [worker for worker in pool if worker.job or worker.left]
            while waiting and (free := _free(pool, workers, settings, context, on_cpu)) is not None:
                free.give(*waiting.popleft())
            ready = wait([worker.pipe for worker in pool], timeout=1.0)
            for worker in list(pool):
                if worker.pipe in ready:
                    yield from worker.hear()
                elif worker.job and time.monotonic() - worker.heard > settings.seconds:
                    worker.retire()
                    yield worker.lost("timeout", f"more than {settings.seconds:.0f} s")
                if worker.dead:
                    pool.remove(worker)
                    if worker.job:
                        waiting.appendleft((worker.job, frozenset(worker.done)))
    finally:
        for worker in pool:
            worker.process.kill()


def _context(devices: set[str]) -> Any:
    """Returns the context in which processes are started for jobs on these devices."""
    if devices <= {"cpu"} and not torch.cuda.is_available():
        torch.set_num_threads(1)  # in the parent, so that no thread pool is there to be forked
        _preload()
        return multiprocessing.get_context("fork")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    return context


def _preload() -> None:
    """Import the compiler once, for all the processes forked from this one."""
    for room in ("capture", "targets.cpp", "cost", "ir", "lower", "report", "runtime", "schedule"):
        package = importlib.import_module(f"litz.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"litz.{room}."):
            with contextlib.suppress(ImportError):  # what needs triton
                importlib.import_module(module.name)
    for name in _PRELOADED:
        importlib.import_module(name)


def _free(pool: list[_Worker], workers: int, settings: Settings, context: Any, on_cpu: bool) -> _Worker | None:
    for worker in pool:
        if worker.job is None and worker.left:
            return worker
    if len(pool) >= workers:
        return None
    pool.append(_Worker(settings, context, on_cpu))
    return pool[-1]


@dataclass
class _Worker:
    """A process, and what its parent knows of it."""

    settings: Settings
    context: Any
    on_cpu: bool
    job: Job | None = None
    left: int = JOBS_PER_WORKER
    dead: bool = False
    current: str = ""
    done: set[str] = field(default_factory=set)
    heard: float = 0.0

    def __post_init__(self) -> None:
        self.pipe, theirs = self.context.Pipe()
        self.process = self.context.Process(target=_serve, args=(theirs, self.settings, self.on_cpu), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, job: Job, done: frozenset[str]) -> None:
        self.job, self.done, self.current = job, set(done), f"{job}/samples"
        self.left -= 1
        self.heard = time.monotonic()
        self.pipe.send((job, done))

    def hear(self) -> Iterator[Outcome]:
        """Take one message."""
        self.heard = time.monotonic()
        try:
            kind, value = self.pipe.recv()
        except (EOFError, OSError):
            self.dead = True
            self.process.join()
            if self.job:
                yield self.lost("error", f"crash: {_cause(self.process.exitcode)}")
            return
        if kind == "begin":
            self.current = value
        elif kind == "outcome":
            self.done.add(value.case)
            yield value
        else:  # the job's end
            self.job = None
            if not self.left:
                self.retire()

    def retire(self) -> None:
        """End the process. Closing the pipe would not: workers forked later hold its other end open."""
        self.process.kill()
        self.process.join()
        self.pipe.close()
        self.dead = True

    def lost(self, status: str, why: str) -> Outcome:
        """The outcome of the case that the worker was at. A job that fails before its first case is given up."""
        self.done.add(self.current)
        if self.current.endswith("/samples"):
            self.job = None
        return Outcome(self.current, status, why)


def _cause(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit status {code}"
    return signal.Signals(-code).name


def _serve(pipe: Connection, settings: Settings, on_cpu: bool) -> None:
    """A worker's life."""
    if on_cpu:
        hide_gpus()
    torch.set_num_threads(1)
    torch._logging.set_logs(dynamo=logging.ERROR)  # graph breaks are no news here
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # nor are refusals
    while True:
        try:
            job, done = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)

        def begin(case: Case, done: frozenset[str] = done) -> bool:
            if str(case) in done:
                return False
            pipe.send(("begin", str(case)))
            return True

        try:
            for outcome in run_job(job, settings, begin):
                pipe.send(("outcome", outcome))
        except Exception:
            pipe.send(("outcome", Outcome(f"{job}/samples", "error", traceback.format_exc()[-700:])))
        pipe.send(("end", None))
        # After the end: on a busy machine this takes seconds, which are not the last case's.
        torch._dynamo.reset()
        gc.collect()

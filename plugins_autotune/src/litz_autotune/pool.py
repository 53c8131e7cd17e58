"""A pool of processes that measure. In: requests. Out: for each its result, or why there is none.

A crash, a hang or an illegal memory access costs the request that caused it; the process is replaced and the next
request runs in a fresh one. Processes start when the pool does, so that their start overlaps with compiling, and end
with this process: their end of the line closes.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import Any, Protocol

import torch

from litz.options import visible_cuda_devices
from litz.targets.triton.workers import last_words

from .library_settings import snapshot

START_SECONDS = 120.0
"""How long a process may take to import torch and start the device, in seconds."""


class Request(Protocol):
    """A task for a worker. A request must pickle: data and functions with a name, no closures."""

    def run(self, state: dict[str, Any]) -> Any:
        """Runs in the worker. state: kept from request to request of that worker."""


@dataclass(frozen=True)
class Failure:
    """A request without a result, with the reason. crashed: whether it took the process along."""

    reason: str
    crashed: bool = False


class _Pickler(pickle.Pickler):
    """Pickles torch's operators too, by their names, and read-only mappings as dicts."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch._ops.OpOverload):
            return _overload, (value._schema.name, value._overloadname)
        if isinstance(value, MappingProxyType):
            return dict, (dict(value),)
        return NotImplemented


def _overload(name: str, overload: str) -> Any:
    namespace, _, op = name.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), op), overload)


def dumps(value: Any) -> bytes:
    """Pickles a value for another process of litz. Raises whatever pickle raises for what has no name."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def devices_for(inherited: str | None, device: int | None) -> str | None:
    """Returns what CUDA_VISIBLE_DEVICES is to be for a process that sees one device, by its number in this process;
    None to leave it as it is."""
    if device is None:
        return None
    return str(device) if inherited is None else inherited.split(",")[device]


class Worker:
    """One process that measures. device: which of the visible devices it sees alone; None for all that this process
    sees."""

    def __init__(self, device: int | None = None) -> None:
        self.device = device
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Connection | None = None
        self._errors: Any = None
        self._ready = False

    def start(self) -> None:
        """Starts the process if it does not run, and does not wait for it."""
        if self._process is not None:
            return
        ours, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        settings = json.dumps({"path": sys.path, "line": theirs.fileno(), "parent": os.getpid()})
        visible = devices_for(visible_cuda_devices(), self.device)
        # By `env`, so that it is set before anything in the process can look at it.
        prefix = [] if visible is None else ["env", f"CUDA_VISIBLE_DEVICES={visible}"]
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-c", _START, settings],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
        )
        theirs.close()
        self._line = Connection(ours.detach())
        self._ready = False
        weakref.finalize(self, _kill, self._process)

    @property
    def pid(self) -> int | None:
        """Returns the process id, None while no process runs."""
        return None if self._process is None else self._process.pid

    def ask(self, request: Request, timeout: float) -> Any:
        """Returns the request's result, or a Failure. timeout: seconds for the request, the process's start aside. The
        process takes over torch's settings from this one first (`library_settings`)."""
        try:
            data = dumps((snapshot(), request))
        except Exception as error:
            return Failure(f"cannot be sent to another process: {error}")
        self.start()
        assert self._line is not None
        try:
            if not self._ready:
                if not self._line.poll(START_SECONDS):
                    return self._lost(f"the process did not start in {START_SECONDS:.0f} s")
                self._line.recv()
                self._ready = True
            self._line.send_bytes(data)
            if not self._line.poll(timeout):
                return self._lost(f"did not end in {timeout:.0f} s")
            kind, value = self._line.recv()
        except (EOFError, OSError):
            return self._lost("")
        if kind == "result":
            return value
        if kind == "fatal":
            return self._lost(value)
        return Failure(value)

    def _lost(self, reason: str) -> Failure:
        process = self._process
        assert process is not None
        self.stop(at_once=bool(reason))
        if not reason:
            code = process.returncode
            ended = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with status {code}"
            reason = f"the process {ended}{last_words(self._errors)}"
        return Failure(reason, crashed=True)

    def stop(self, at_once: bool = True) -> None:
        """Ends the process. The next request starts another. at_once: without 5 seconds to end by itself."""
        process, line = self._process, self._line
        self._process = self._line = None
        if line is not None:
            line.close()
        if process is not None:
            try:
                process.wait(0 if at_once else 5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


# The line closes when the parent ends, but a process that measures does not look at it: a thread looks for the parent.
# (prctl's PR_SET_PDEATHSIG means the thread that started the process, which ends before the parent does.)
_START = """
import json, os, sys, threading, time
settings = json.loads(sys.argv[1])

def end_with_the_parent():
    while os.getppid() == settings["parent"]:
        time.sleep(0.25)
    os._exit(1)

threading.Thread(target=end_with_the_parent, daemon=True).start()
sys.path[:] = settings["path"]
from litz_autotune.worker import main
main(settings["line"])
"""


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()


class WorkerPool:
    """Workers that take requests as they come free."""

    def __init__(self, devices: Sequence[int | None] = (None,)) -> None:
        """devices: one worker for each; see `Worker`."""
        self.workers = tuple(Worker(device) for device in devices)
        self._lock = threading.Lock()

    def start(self) -> None:
        """Starts all processes, without waiting for them."""
        for worker in self.workers:
            worker.start()

    def run(self, requests: Sequence[Request], timeout: float = 60.0) -> list[Any]:
        """Returns a result or a Failure for each request, in order. timeout: seconds for each request."""
        results: list[Any] = [None] * len(requests)
        waiting: SimpleQueue[int] = SimpleQueue()
        for number in range(len(requests)):
            waiting.put(number)

        def serve(worker: Worker) -> None:
            while True:
                try:
                    number = waiting.get_nowait()
                except Empty:
                    return
                results[number] = worker.ask(requests[number], timeout)

        with self._lock:  # one set of requests at a time: what runs beside a measurement spoils it
            threads = [threading.Thread(target=serve, args=(w,)) for w in self.workers[: len(requests)]]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return results

    def rest(self, request: Request) -> None:
        """Makes every running worker do `request`, once its present requests are done."""
        with self._lock:
            for worker in self.workers:
                if worker.pid is not None:
                    worker.ask(request, START_SECONDS)

    def close(self) -> None:
        """Stops all processes."""
        for worker in self.workers:
            worker.stop()


class InProcess:
    """Runs requests in this process: a crash ends it."""

    def __init__(self) -> None:
        self._state: dict[str, Any] = {}

    def start(self) -> None:
        """Does nothing: there is no process to start."""
        return None

    def run(self, requests: Sequence[Request], timeout: float = 60.0) -> list[Any]:
        """Runs the requests in order and returns a result or a Failure for each. timeout: ignored, as this process
        cannot stop itself."""
        found: list[Any] = []
        for request in requests:
            try:
                found.append(request.run(self._state))
            except Exception as error:
                found.append(Failure(f"{type(error).__name__}: {error}"))
        return found

    def rest(self, request: Request) -> None:
        """Does `request` in this process."""
        request.run(self._state)

    def close(self) -> None:
        """Lets go of what requests have kept."""
        self._state.clear()


Runner = WorkerPool | InProcess

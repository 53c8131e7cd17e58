"""A process that compiles Triton kernels for another, which `litz.targets.triton.workers` starts.

In: jobs as JSON, over a line. Out: the files of each in a folder, and an answer: why they are not there, '' if they
are. The first answer is to no job: it says why the worker compiles nothing, '' once it is warm. The process ends when
the line closes or its parent does.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from .compile import Job, compile_job

WATCH_SECONDS = 0.5
"""Between two looks for the parent: who compiles does not look at the line, and other processes may hold it open."""

# What helpers import, Triton's hash of its own files, and LLVM are ready once any kernel is compiled.
WARM = Job(
    text="""import triton
import triton.language as tl
from litz.targets.triton.helpers import _maximum


@triton.jit
def kernel(p0, p1):
    x0 = tl.arange(0, 16)
    tl.store(p1 + x0, _maximum(tl.load(p0 + x0), 0.0))
""",
    symbol="kernel",
    settings={
        "pointers": ["*fp32", "*fp32"],
        "sizes": 0,
        "unaligned": [],
        "num_warps": 1,
        "num_stages": 1,
        "limits": [],
        "asserts": False,
    },
    capability=(9, 0),
    shared=1 << 16,
)


def main(line: int, parent: int) -> None:
    """Serves the jobs that come over the socket `line` until it closes. parent: the number of the parent process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes of a terminal; the parent decides
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    connection = Connection(line)
    with tempfile.TemporaryDirectory(prefix="litz-") as folder:
        problem = compile_job(WARM, Path(folder))
    try:
        connection.send_bytes(problem.encode())
        while True:
            request = json.loads(connection.recv_bytes())
            problem = compile_job(Job.from_data(request["job"]), Path(request["folder"]))
            connection.send_bytes(problem.encode())
    except (EOFError, OSError):
        os._exit(0)  # at once: there is nothing to tidy up


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)

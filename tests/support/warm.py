"""Fresh interpreters that need not import torch again, which takes longer than most of what tests run in them.

A process that has imported torch and dynamo, and nothing of litz's, waits for requests on its standard input: one line
of JSON each. It forks for a request; the child becomes what `python ARGUMENTS` would be, and the parent answers with
the exit status.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_lock = threading.Lock()
_process: subprocess.Popen[str] | None = None


def run_warm(arguments: Sequence[str], environ: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` (a script or `-c CODE` or `-m MODULE`, with their arguments) in a copy of the waiting process.

    environ: the whole environment. PYTHONPATH counts; what an interpreter reads when it starts (PYTHONHASHSEED, -W)
    does not. Errors: subprocess.TimeoutExpired.
    """
    with _lock, tempfile.TemporaryDirectory() as folder:
        files = {name: str(Path(folder, name)) for name in ("stdout", "stderr")}
        request = {"arguments": list(arguments), "environ": dict(environ), "cwd": os.getcwd(), **files}
        process = _started()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({**request, "timeout": timeout}) + "\n")
        process.stdin.flush()
        status = json.loads(process.stdout.readline())
        stdout, stderr = (Path(files[name]).read_text() for name in ("stdout", "stderr"))
    if status is None:
        raise subprocess.TimeoutExpired(list(arguments), timeout, stdout, stderr)
    return subprocess.CompletedProcess(list(arguments), status, stdout, stderr)


def _started() -> subprocess.Popen[str]:
    global _process
    if _process is None or _process.poll() is not None:
        pipe = subprocess.PIPE
        _process = subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, text=True)
        atexit.register(_process.kill)
    return _process


def serve() -> None:
    """Answer requests until standard input ends."""
    import torch._dynamo  # noqa: F401  (children find it imported)

    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(request)
        print(json.dumps(_wait(child, request["timeout"])), flush=True)


def _wait(child: int, timeout: float) -> int | None:
    """The child's exit status as subprocess has it; None if it took too long."""
    late: list[int] = []

    def stop() -> None:
        late.append(child)
        os.kill(child, signal.SIGKILL)

    timer = threading.Timer(timeout, stop)
    timer.start()
    _, status = os.waitpid(child, 0)
    timer.cancel()
    return None if late else os.waitstatus_to_exitcode(status)


def _become(request: Mapping[str, Any]) -> None:
    """Run the request in this process, and end it."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["cwd"])
    given = [entry for entry in request["environ"].get("PYTHONPATH", "").split(os.pathsep) if entry]
    inherited = [entry for entry in sys.path[1:] if entry not in given]
    first, *rest = request["arguments"]
    home = "" if first in ("-c", "-m") else str(Path(first).resolve().parent)
    sys.path[:] = [home, *given, *inherited]
    status: Any = 0
    try:
        if first == "-c":
            sys.argv = ["-c", *rest[1:]]
            main = {"__name__": "__main__", "__builtins__": __builtins__}
            exec(compile(rest[0], "<string>", "exec"), main)
        elif first == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [first, *rest]
            runpy.run_path(first, run_name="__main__")
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
        status = 1
    if isinstance(status, str):
        print(status, file=sys.stderr)
        status = 1
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(int(status or 0))


if __name__ == "__main__":
    sys.path.pop(0)  # tests/support is no place to import from
    serve()

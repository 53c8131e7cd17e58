"""A Python that is a copy of `support.warm`'s process, for code that starts interpreters by `sys.executable` itself.

`warm_python()` is the path of a small program to take in its place, the *client*. The client sends its arguments,
environment, folder and open files to a process that has imported torch, which forks; the client ends as the copy ends,
and the copy ends when the client is killed. The copy finds the client's parent as its own. What cannot be done that way
(most options of the interpreter, another TRITON_INTERPRET) the client has done by the interpreter itself.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import json
import os
import select
import shlex
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

PROGRAM = """#!/bin/sh
exec {python} -SsE {client} "$@"
"""
CLIENT = """
import json, os, signal, socket, sys

given, faults = sys.argv[1:], False
# The copy writes at once in any case, and keeps bytecode or not as its original does.
while given and (given[0] in ("-u", "-B") or given[:2] == ["-X", "faulthandler"]):
    faults |= given[0] == "-X"
    del given[: 2 if given[0] == "-X" else 1]
known = given and (given[0] in ("-c", "-m") or given[0][0] != "-")
line = socket.socket(socket.AF_UNIX)
if not known or os.environ.get("TRITON_INTERPRET", "") != {interpret!r} or line.connect_ex({place!r}):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
files = [int(name) for name in os.listdir("/proc/self/fd")]
files = [n for n in sorted(files) if n != line.fileno() and os.path.exists(f"/proc/self/fd/{{n}}")]
asked = {{"arguments": given, "environ": dict(os.environ), "cwd": os.getcwd(), "files": files, "client": os.getpid()}}
socket.send_fds(line, [b"."], files)
line.sendall(json.dumps({{**asked, "faulthandler": faults}}).encode() + b"\\n")
status = json.loads(line.makefile().readline() or "1")
if status < 0:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -status not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""
MOST_FILES = 64
Become = Callable[[Mapping[str, Any]], None]


@cache
def _folder(imported: bool, interpret: str) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="litz-warm-")


def warm_python(imported: bool = False, interpret: str | None = None) -> str:
    """The path of the program, on Linux; elsewhere that of the interpreter. A process that `run_warm` starts with it as
    WARM_PYTHON has it for `sys.executable`. imported: as `run_warm` has it. interpret: the TRITON_INTERPRET of what it
    is started with, None for this process's."""
    if sys.platform != "linux":
        return sys.executable
    return _program(imported, os.environ.get("TRITON_INTERPRET", "") if interpret is None else interpret)


@cache
def _program(imported: bool, interpret: str) -> str:
    """Makes the program, once however its arguments are given: a second one would listen at the same place."""
    from support.warm import listening

    folder = Path(_folder(imported, interpret).name)
    place, client, program = folder / "socket", folder / "client.py", folder / "python"
    listening(place, {**os.environ, "TRITON_INTERPRET": interpret}, imported)
    client.write_text(CLIENT.format(python=sys.executable, interpret=interpret, place=str(place)))
    program.write_text(PROGRAM.format(python=shlex.quote(sys.executable), client=shlex.quote(str(client))))
    program.chmod(0o755)
    return str(program)


def listen(place: str, become: Become) -> None:
    """Fork a process that answers clients at `place` as long as this one lives."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen(64)
    parent = os.getpid()
    if os.fork():
        listener.close()
        return
    listener.settimeout(2)
    while os.getppid() == parent:
        with contextlib.suppress(ChildProcessError):  # there is none
            while os.waitpid(-1, os.WNOHANG) != (0, 0):  # those that have ended
                pass
        with contextlib.suppress(TimeoutError):
            line, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _answer(line, become)
            line.close()
    os._exit(0)


def _answer(line: socket.socket, become: Become) -> None:
    """Fork what a client asks for; end as that has ended, or end it when the client is gone."""
    line.settimeout(None)
    _, files, _, _ = socket.recv_fds(line, 1, MOST_FILES)
    request = json.loads(line.makefile().readline())
    child = os.fork()
    if child == 0:
        line.close()
        _take_place(request, files)
        become(request)
    for file in files:
        os.close(file)
    ended = os.pidfd_open(child)
    readable, _, _ = select.select([ended, line], [], [])
    if ended not in readable:
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if ended in readable:
        line.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _take_place(request: Mapping[str, Any], files: Sequence[int]) -> None:
    """Make this process a client's: its open files, its parent, and what its options ask for."""
    os.setsid()
    high = [fcntl.fcntl(file, fcntl.F_DUPFD, 10 * MOST_FILES) for file in files]
    for file in files:
        os.close(file)
    for number, file in zip(request["files"], high, strict=True):
        os.dup2(file, number)
        os.close(file)
    state = Path(f"/proc/{request['client']}/stat")
    os.getppid = lambda: int(state.read_text().rpartition(")")[2].split()[1]) if state.exists() else 1
    sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    if request["faulthandler"]:
        faulthandler.enable()

"""Fresh interpreters that need not import torch again, which takes longer than most of what tests run in them.

A process that has imported torch and dynamo, and nothing of litz's, waits for requests on its standard input: one line
of JSON with those that are to run at the same time. It forks for each; the child becomes what `python ARGUMENTS` would
be, and the parent answers with the exit statuses. Triton decides when it is imported whether kernels are interpreted,
so another process waits for those requests. What such a child starts itself by `sys.executable` can be a copy, too:
`support.warm_children`.

A request may ask for a child that has imported what a first compile imports, litz and 600 modules: most of what a small
program in a process of its own takes. A copy of the waiting process, with these modules, answers it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.util
import io
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

MODULES = (
    *("torch._dynamo", "torch._functorch.aot_autograd", "torch._functorch.partitioners", "torch.export._trace"),
    *("torch._inductor.pattern_matcher", "networkx"),
)
"""What torch itself imports when it first compiles something."""
FIRST_COMPILE = """
import sys, torch
def softmax(x, w): return torch.softmax(x @ w, 1).sum(0)
x, w = torch.ones(8, 16), torch.ones(16, 4, requires_grad=True)
torch.compile(softmax, backend="litz")(x, w).sum().backward()
found = [name for name, module in list(sys.modules.items()) if getattr(module, "__spec__", None)]
open(sys.argv[-1], "w").write("\\n".join(found))
"""
"""A program that leaves the names of the modules that it has imported in a file."""
UNREAD: Mapping[str, Any] = {
    "torch._dynamo.guards.profile_guard_manager": lambda *_: 0.0,
    "torch._dynamo.symbolic_convert.get_funcname": lambda *_: None,
    "torch._dynamo.utils._scrubbed_inductor_config_for_logging": lambda: None,
    "torch._dynamo.utils._get_dynamo_config_for_logging": lambda: None,
    "torch._functorch.aot_autograd.PhiloxStateTracker": contextlib.nullcontext,  # litz's graphs have no state of it
    "torch._functorch._aot_autograd.graph_compile._log_inference_graph": lambda *_: None,
    "torch._functorch._aot_autograd.graph_compile._log_joint_graph": lambda *_: None,
    "torch._functorch._aot_autograd.graph_compile._log_fw_bw_graphs": lambda *_: (None, None),
    "torch.fx.experimental.recording.trace_shape_events_log": SimpleNamespace(debug=lambda *_: None),
    "torch._subclasses.fake_tensor.traceback": SimpleNamespace(extract_stack=list, format_list=traceback.format_list),
}
"""What takes a function's place in torch, of which no test reads the result."""
GC_THRESHOLDS = (20_000, 10, 20)
"""When a process that compiles looks for garbage: by default a tenth of the time goes into looks at what compiles
keep."""
_lock = threading.Lock()
_processes: dict[str, subprocess.Popen[str]] = {}
"""What waits, by TRITON_INTERPRET."""


def run_warm(
    arguments: Sequence[str],
    environ: Mapping[str, str] | None = None,
    timeout: float = 300,
    stderr: str | None = None,
    imported: bool = False,
) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` (a script or `-c CODE` or `-m MODULE`, with their arguments) in a copy of the waiting process.

    environ: the whole environment, None for this process's. PYTHONPATH and TRITON_INTERPRET count; what an interpreter
    or torch reads when it starts (PYTHONHASHSEED, -W, TORCH_LOGS, OMP_NUM_THREADS) does not. stderr: the path of a
    terminal to write to, in place of the result's `stderr`. imported: the copy has imported what a first compile
    imports: not for a test of what is imported, or of another litz than this process's.
    Errors: subprocess.TimeoutExpired.
    """
    (done,) = run_together([arguments], environ, timeout, stderr, imported)
    return done


def run_twice(code: str, folder: Path) -> list[list[str]]:
    """The words that a program prints, in each of two processes that have caches in `folder`."""
    environ = {
        **os.environ,
        "LITZ_CACHE_DIR": str(folder),
        "LITZ_GRAPH_CACHE": "1",
        "LITZ_CPP_QUALIFY": "0",  # the cache is empty, and the compiler would be tested again
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),
    }
    said = []
    for _ in range(2):
        done = run_warm(["-c", code, str(Path(__file__).parents[1])], environ, imported=True)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.split())
    return said


def run_together(
    several: Sequence[Sequence[str]],
    environ: Mapping[str, str] | None = None,
    timeout: float = 300,
    stderr: str | None = None,
    imported: bool = False,
) -> list[subprocess.CompletedProcess[str]]:
    """As `run_warm`, for several processes at a time, by the arguments of each."""
    return _asked(several, os.environ if environ is None else environ, timeout, stderr, {"imported": imported})


def listening(place: Path, environ: Mapping[str, str], imported: bool) -> None:
    """Has a copy of the waiting process answer the clients of `support.warm_children` at the socket `place`."""
    _asked([], environ, 60, None, {"listen": str(place), "imported": imported})


def _asked(
    several: Sequence[Sequence[str]],
    environ: Mapping[str, str],
    timeout: float,
    stderr: str | None,
    more: Mapping[str, Any] | None = None,
) -> list[subprocess.CompletedProcess[str]]:
    with _lock, tempfile.TemporaryDirectory() as folder:
        requests: list[dict[str, Any]] = []
        for number, arguments in enumerate(several):
            files = {name: str(Path(folder, f"{number}.{name}")) for name in ("stdout", "stderr")}
            if stderr is not None:
                files["stderr"] = stderr
            requests.append({"arguments": list(arguments), "environ": dict(environ), "cwd": os.getcwd(), **files})
        process = _started(environ.get("TRITON_INTERPRET", ""))
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"requests": requests, "timeout": timeout, **(more or {})}) + "\n")
        process.stdin.flush()
        statuses = json.loads(process.stdout.readline())
        found = [
            subprocess.CompletedProcess(
                request["arguments"],
                status,
                Path(request["stdout"]).read_text(),
                "" if stderr is not None else Path(request["stderr"]).read_text(),
            )
            for request, status in zip(requests, statuses, strict=True)
        ]
    for done in found:
        if done.returncode is None:
            raise subprocess.TimeoutExpired(done.args, timeout, done.stdout, done.stderr)
    return found


def _started(interpret: str) -> subprocess.Popen[str]:
    """The process that waits. interpret: its TRITON_INTERPRET; one that interprets has a single thread, as its tensors
    are small, and threads that wait for work take processors from other tests."""
    process = _processes.get(interpret)
    if process is None or process.poll() is not None:
        pipe = subprocess.PIPE
        own = {"TRITON_INTERPRET": interpret, "OMP_NUM_THREADS": "1"} if interpret else {}
        # torch would import litz for the artifacts of `torch.compiler.load_cache_artifacts`.
        environ = {**os.environ, **own, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        # -u: copies have no buffer in front of what they write, so that nothing is lost where they abort.
        process = subprocess.Popen([sys.executable, "-u", __file__], stdin=pipe, stdout=pipe, text=True, env=environ)
        atexit.register(process.kill)
        _processes[interpret] = process
    return process


def leave_unread_unmade() -> None:
    """Has torch, where it is loaded, make nothing of each compile that only its metrics, its logs and a message of its
    own have, nor a state that its own backend alone asks for: a tenth of a small compile for the times of guards, and a
    fiftieth or two for settings as JSON, for the stack where fake tensors began, for what is asked of symbolic sizes,
    for the names of all functions of a test's file, for texts of graphs, and for tensors of a state of random
    numbers."""
    for name, less in UNREAD.items():
        module, _, function = name.rpartition(".")
        if module in sys.modules:
            setattr(sys.modules[module], function, less)


def serve() -> None:
    """Answer requests until standard input ends."""
    for module in MODULES:
        importlib.import_module(module)  # children find it imported
    leave_unread_unmade()
    gc.freeze()  # and look for no garbage in it, which would copy the memory that they share
    gc.set_threshold(*GC_THRESHOLDS)
    with_litz: tuple[TextIO, TextIO] | None = None
    for line in sys.stdin:
        if json.loads(line).get("imported"):
            with_litz = with_litz or _copy_with_litz()
            with_litz[0].write(line)
            with_litz[0].flush()
            answer = with_litz[1].readline()
            if not answer:
                sys.exit("the copy that has imported litz has ended")  # who waits for an answer fails, and hangs not
            print(answer, end="", flush=True)
        else:
            _answer(line, sys.stdout)


def _copy_with_litz() -> tuple[TextIO, TextIO]:
    """A copy of this process that imports what a first compile imports and answers requests: where to write these, and
    where to read the answers."""
    (asked, asks), (answer, answers) = os.pipe(), os.pipe()
    if os.fork():
        os.close(asked)
        os.close(answers)
        return open(asks, "w"), open(answer)
    os.close(asks)
    os.close(answer)
    folder = tempfile.mkdtemp()  # a TemporaryDirectory would be removed by the child, as that ends
    names = Path(folder, "names")
    files = {name: str(Path(folder, name)) for name in ("stdout", "stderr")}
    caches = {"LITZ_CACHE_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder}  # empty, for else nothing is compiled
    environ = {**os.environ, **caches, "LITZ_GRAPH_CACHE": "1", "LITZ_CPP_QUALIFY": "0"}
    request = {"arguments": ["-c", FIRST_COMPILE, str(names)], "environ": environ, "cwd": os.getcwd()}
    _answer(json.dumps({"requests": [{**request, **files}], "timeout": 300}), io.StringIO())
    for name in names.read_text().split() if names.exists() else ():
        with contextlib.suppress(Exception):  # made while compiling, and no file
            importlib.import_module(name)
    with contextlib.suppress(Exception):  # where litz is broken, the program itself shall say so
        importlib.import_module("litz.capture.decompositions").decompositions()  # a table of torch's rules, that stays
    shutil.rmtree(folder, ignore_errors=True)
    gc.freeze()
    with open(asked) as requests, open(answers, "w") as out:
        for line in requests:
            _answer(line, out)
    os._exit(0)


def _answer(line: str, out: TextIO) -> None:
    """Does what a request asks for, and writes the exit statuses."""
    asked = json.loads(line)
    if "listen" in asked:
        warm_children.listen(asked["listen"], become)
    children = []
    for request in asked["requests"]:
        child = os.fork()
        if child == 0:
            _redirect(request)
            become(request)
        children.append(child)
    print(json.dumps([_wait(child, asked["timeout"]) for child in children]), file=out, flush=True)


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


def _redirect(request: Mapping[str, Any]) -> None:
    """Give this process the request's streams."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_NOCTTY), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def become(request: Mapping[str, Any]) -> None:
    """Run the request in this process, and end it."""
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["cwd"])
    given = [entry for entry in request["environ"].get("PYTHONPATH", "").split(os.pathsep) if entry]
    inherited = [entry for entry in sys.path[1:] if entry not in given]
    first, *rest = request["arguments"]
    home = "" if first in ("-c", "-m") else str(Path(first).resolve().parent)
    sys.path[:] = [home, *given, *inherited]
    sys.executable = request["environ"].get("WARM_PYTHON", sys.executable)
    sys.orig_argv[:] = [sys.executable, *request["arguments"]]
    status: Any = 0
    try:
        sys.modules.pop("sitecustomize", None)  # that of the test that started this process
        if importlib.util.find_spec("sitecustomize") is not None:
            importlib.import_module("sitecustomize")
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
    import warm_children  # from tests/support

    sys.path.pop(0)  # which is no place to import from
    serve()

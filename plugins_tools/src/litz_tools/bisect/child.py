"""One run of a user's script, watched. In: a request as JSON, of `run.Runner`. Out: what happened, as JSON.

Run by path, as `python child.py REQUEST`, in a process of its own. torch.compile is wrapped: what the script compiles
with litz is compiled as the request says (other options, Inductor, not at all), and each call of it is timed or its
results are compared. Imports nothing of litz but the reports, where it has them: the litz that is measured may be
another commit's.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import json
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PROFILED = range(3, 23)
"""Calls of a function of which kernels are timed: the first ones compile, and a profile of each takes a while."""


class Watch:
    """A record of the calls of the script's compiled functions. times: seconds of each call, by site; None for a call
    that was not timed. modules: those that were compiled. dropped: options that TorchInductor was not given. options:
    the script's own. inside: whether a watched call is running."""

    def __init__(self, request: dict[str, Any], values: Any) -> None:
        self.request, self.values = request, values
        self.times: dict[str, list[float | None]] = {}
        self.modules: list[Any] = []
        self.inside = False
        self.dropped: set[str] = set()
        self.options: dict[str, Any] = {}

    def site(self, name: str) -> str:
        """Registers one compiled function and returns its name, with a number added where the name is taken."""
        found = name if name not in self.times else f"{name} ({len(self.times) + 1})"
        self.times[found] = []
        return found

    def call(self, site: str, run: Callable[..., Any], eager: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs one call of the script's: repeated, timed, its results compared. Calls inside of it are part of it."""
        self.inside = True
        try:
            exact = self.values.exact(site, eager, args, kwargs) if self.values is not None else None
            times = self.times[site]
            for _ in range(self.request["repeat"]):
                seconds, result = self.timed(len(times), lambda: run(*args, **kwargs))
                times.append(seconds)
        finally:
            self.inside = False
        if self.values is not None:
            self.values.take(site, result, exact)
        return result

    def timed(self, number: int, run: Callable[[], Any]) -> tuple[float | None, Any]:
        """Calls `run` and returns (seconds, result). With the clock "kernels", the seconds are those of the device's
        kernels, and None for calls that are not profiled; else they are wall time, with the device idle before and
        after."""
        if self.request["clock"] == "kernels":
            return _kernel_seconds(run) if number in PROFILED else (None, run())
        _wait()
        start = time.perf_counter()
        result = run()
        _wait()
        return time.perf_counter() - start, result

    def gradients(self) -> dict[str, Any]:
        """Returns the gradients of the modules that were compiled, by name."""
        return {
            f"{number}.{name}": parameter.grad
            for number, module in enumerate(self.modules)
            for name, parameter in module.named_parameters()
            if parameter.grad is not None
        }


def _wait() -> None:
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _kernel_seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    """Returns the sum of the kernels' times, in seconds, and the result."""
    from torch.profiler import ProfilerActivity, profile

    _wait()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        result = run()
        _wait()
    return sum(event.self_device_time_total for event in found.key_averages()) * 1e-6, result


def patched_compile(real: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    """Returns a function to take torch.compile's place: it compiles for litz as the request says, and watches each
    call. Other backends go to `real`."""
    import torch

    side = watch.request["side"]

    @functools.wraps(real)
    def compile(model: Any = None, **given: Any) -> Any:
        if not _is_litz(given.get("backend", "inductor")):
            return real(model, **given)
        if model is None:
            return lambda function: compile(function, **given)
        made = _compiled(model, real, given, side, watch)
        site = watch.site(getattr(model, "__qualname__", None) or type(model).__name__)
        if not isinstance(model, torch.nn.Module):

            @functools.wraps(model)
            def call(*args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling() or watch.inside:
                    return made(*args, **kwargs)
                return watch.call(site, made, model, args, kwargs)

            return call
        watch.modules.append(model)
        kind = type(made)

        def call_module(self: Any, *args: Any, **kwargs: Any) -> Any:
            own = functools.partial(kind.__call__, self)
            if torch.compiler.is_compiling() or watch.inside:
                return own(*args, **kwargs)
            return watch.call(site, own, model, args, kwargs)

        # Calls look __call__ up in the class. Class and module keep their names, by which scripts may save weights.
        made.__class__ = type(kind.__name__, (kind,), {"__call__": call_module, "__module__": kind.__module__})
        return made

    return compile


def _is_litz(backend: Any) -> bool:
    backend = getattr(backend, "func", backend)  # a functools.partial
    return backend == "litz" or str(getattr(backend, "__module__", "")).partition(".")[0] == "litz"


def _compiled(model: Any, real: Callable[..., Any], given: dict[str, Any], side: dict[str, Any], watch: Watch) -> Any:
    import torch

    options, mode = dict(given.pop("options", None) or {}), given.pop("mode", None)
    watch.options |= options
    if side["backend"] == "eager":
        return copy.copy(model) if isinstance(model, torch.nn.Module) else model
    if side["backend"] == "inductor":
        watch.dropped.update(options)  # they are litz's
        return real(model, **{**given, "backend": "inductor"}, mode=mode)
    options |= side["options"]
    if mode is not None:
        options.setdefault("mode", mode)
    if side["veto"]:
        own = options.get("veto", ())
        options["veto"] = (*((own,) if isinstance(own, str) else own), *side["veto"])
    return real(model, **given, options=options)


@contextlib.contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Watches torch.compile, and the backward of what it makes, while the context is entered."""
    import torch

    compile, backward = torch.compile, torch.autograd.backward

    @functools.wraps(backward)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or watch.inside or not watch.times:
            return backward(*args, **kwargs)
        watch.times.setdefault("backward", [])
        seconds, result = watch.timed(len(watch.times["backward"]), lambda: backward(*args, **kwargs))
        watch.times["backward"].append(seconds)
        if watch.values is not None:
            watch.values.take("backward", watch.gradients(), None)
        return result

    torch.compile, torch.autograd.backward = patched_compile(compile, watch), watched
    try:
        yield
    finally:
        torch.compile, torch.autograd.backward = compile, backward


def run_script(script: str, args: list[str], module: bool) -> tuple[int, str]:
    """Runs the script as `python SCRIPT ARGS` would and returns (exit status, text): what went wrong and the traceback
    from the script on; '' if nothing did. module: `script` is a module's name."""
    sys.argv = [script, *args]
    sys.path.insert(0, str(Path.cwd()) if module else str(Path(script).resolve().parent))
    try:
        run: Any = functools.partial(runpy.run_module, alter_sys=True) if module else runpy.run_path
        run(script, run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return code, str(end.code) if isinstance(end.code, str) else ""
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
            trace = trace.tb_next
        text = " ".join(f"{type(error).__name__}: {str(error).strip()}".splitlines()[:2])
        return 1, "\n".join([text, *traceback.format_exception(type(error), error, trace)])
    return 0, ""


def describe(report: Any) -> dict[str, Any]:
    """Returns a compile's name, decisions and kernels from its report, as JSON holds them. Reports of an older litz
    have no keys of decisions."""
    decisions = [each for each in report.decisions if getattr(each, "key", "")]
    return {
        "graph": report.name,
        "taken": list(getattr(report, "taken", ())),
        "decisions": {
            each.key: [each.subject, each.chosen, each.reason, [list(pair) for pair in each.considered], each.plugin]
            for each in decisions
        },
        "kernels": {
            step.name: [" + ".join(step.origins[:4]), list(step.fused), _digest(report.kernel_sources.get(step.name))]
            for step in report.steps
            if step.kind == "kernel"
        },
    }


def _digest(text: str | None) -> str:
    return "" if text is None else hashlib.sha256(text.encode()).hexdigest()[:16]


@contextlib.contextmanager
def collecting(wanted: bool) -> Iterator[list[Any]]:
    """Yields the list of litz's reports, which stays empty where nothing is compiled with litz."""
    if not wanted:
        yield []
        return
    from litz import report

    with report.collect() as reports:
        yield reports


def main() -> None:
    """Runs the script as the request file (first argument) says, and writes the result as JSON to the file that the
    request names in "out"."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [*request["path"], *(item for item in sys.path if item != here)]
    import torch

    values = None
    if request["values"]:
        space: dict[str, Any] = runpy.run_path(str(Path(__file__).with_name("values.py")))
        values = space["Values"](request["values"], request["tolerance"])
    watch = Watch(request, values)
    torch.manual_seed(0)  # every run draws the same weights and inputs, unless the script sees to that
    with collecting(request["side"]["backend"] == "litz") as reports, watching(watch):
        status, trace = run_script(request["script"], request["args"], request["module"])
    result = {
        "status": status,
        "trace": trace,
        "times": watch.times,
        "reports": [describe(report) for report in reports],
        "differences": [] if values is None else values.finish(),
        "dropped": sorted(watch.dropped),
        "options": watch.options,
    }
    Path(request["out"]).write_text(json.dumps(result, default=str), encoding="utf-8")


if __name__ == "__main__":
    main()

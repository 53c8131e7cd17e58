"""A wrapper alone: in, a compiled graph; out, a JSON file beside its wrapper.py in a report, and from both its times.

`python wrapper.py` in a report's folder makes inputs of the sizes that were seen, runs the graph, looks at what comes
out, and times the call and each step of it. The wrapper and the kernels are read from their files, so that they can be
changed and timed again. What the file holds are numbers and names: what a wrapper needs that is neither (a subgraph, a
script object) cannot be run alone, and is said to be missing.
"""

from __future__ import annotations

import contextlib
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sympy
import torch

from litz.driver.compiler import Compiler, make_compiler
from litz.execution import ExecutionPlan
from litz.ir import Buffer, Node, Opaque, Program
from litz.ir.node import walk
from litz.options import Options
from litz.runtime.compiled_graph import Entry, load_wrapper
from litz.runtime.pool import pool_for
from litz.runtime.wrapper_support import support
from litz_plugins import KernelSource, Target
from litz_plugins.errors import describe
from litz_tools.clock import median_seconds
from litz_tools.errors import WrapperFileError
from litz_tools.kernel_bench import buffer_data, build_kernel, kernel_data

FORMAT, VERSION = "litz-wrapper", 1
FILE = "wrapper.json"
LISTED = 4096
"""Elements of a constant that are written out; one with more gets others."""
ROWS = 40
"""Steps in the table; those that take longest."""
RUNS = 20
AHEAD = 20_000_000
"""Cycles that a GPU waits for before a run whose steps are timed: about 10 ms."""
_OF_AN_INPUT = re.compile(r"# \w+: .*, \w+\[.*\]$")
"""The comment of an input: "# primals_1: layers.0.weight, f32[768]"."""


# ------------------------------------------------------------------------------------------------------- what it needs


def wrapper_data(
    plan: ExecutionPlan,
    sources: Mapping[str, KernelSource],
    places: Mapping[str, str],
    objects: Mapping[str, Any],
    options: Options,
) -> str:
    """Returns the JSON text. places: of the kernels' sources, from the folder of the wrapper. objects: those of its
    WrapperSource."""
    program = plan.program
    steps = [(step, variant) for variant in plan.variants for step in variant.launched]
    kernels = [
        json.loads(kernel_data(step, sources[step.name], places[step.name], own, options)) for step, own in steps
    ]
    data = {
        "format": FORMAT,
        "version": VERSION,
        "name": program.name,
        "inputs": [_input_data(item, program) for item in program.inputs],
        "outputs": [_output_data(item, program) for item in program.outputs],
        "objects": {name: _object_data(value) for name, value in objects.items()},
        "kernels": kernels,
        "devices": sorted({str(buffer.device) for buffer in program.buffers.values()}),
        "options": {row.name: value for row, value in options.changed() if row.affects_code and row.name != "mode"},
    }
    return json.dumps(data, indent=1) + "\n"


def _input_data(item: Any, program: Program) -> dict[str, Any]:
    if isinstance(item, str):
        buffer = program.buffers[item]
        known = program.provenance.inputs.get(item, "")
        return _tensor_data(buffer, program) | {"below": _below(item, program), "known_as": known}
    if isinstance(item, Opaque):
        return {"opaque": item.name}
    return {"number": program.hint(item)}


def _output_data(item: Any, program: Program) -> dict[str, Any] | None:
    """The sizes and the type of a tensor that is returned, None for anything else and for sizes that a run finds
    out."""
    layout = getattr(item, "layout", None)
    if layout is None or any(symbol not in program.hints for size in layout.size for symbol in size.free_symbols):
        return None
    return {"dtype": _type_name(program.buffers[item.buffer].dtype), "size": [program.hint(n) for n in layout.size]}


def _tensor_data(buffer: Buffer, program: Program) -> dict[str, Any]:
    return buffer_data(buffer, program) | {"device": str(buffer.device)}


def _below(name: str, program: Program) -> int | None:
    """Returns the number that an input's elements have to be below, where they are positions; None otherwise."""
    limits = [
        program.hint(size)
        for loop in program.loops
        for bound in loop.nodes
        if bound.op == "bounded" and isinstance(size := bound.attrs[0], sympy.Expr) and _reads(bound.args[0], name)
    ]
    return min(limits, default=None)


def _reads(position: Node, name: str) -> bool:
    return any(node.op == "load" and name in node.attrs for node in walk(position))


def _object_data(value: Any) -> dict[str, Any]:
    """A tensor by its geometry, and its elements where they are few; a function by where to import it from."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        listed = value.numel() <= LISTED and not value.dtype.is_complex and value.dtype != torch.bfloat16
        shape = {"dtype": _type_name(value.dtype), "size": list(value.shape), "stride": list(value.stride())}
        span = 1 + sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True))
        elements = span if value.numel() else 0
        values = {"values": value.detach().cpu().tolist()} if listed else {}
        return shape | {"elements": elements, "device": str(value.device), **values}
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    return {"import": f"{module}:{name}"} if module and name.isidentifier() else {"missing": type(value).__name__}


def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


_RUNS_ALONE = """

if __name__ == "__main__":  # makes inputs, runs, and times each step: needs wrapper.json and kernels/ beside it
    from litz_tools.wrapper_bench import main  # of litz-tools: pip install ./plugins_tools, in a checkout of litz

    raise SystemExit(main(__file__))
"""
"""The end of a report's wrapper.py."""


def runs_alone(text: str) -> str:
    """Returns a wrapper's text as a script: with what it finds in its globals where litz runs it, and an end that runs
    it."""
    docstring, quotes, rest = text.partition('"""\n\n')
    return f"{docstring}{quotes}import torch\n\n{rest}{_RUNS_ALONE}"


# ----------------------------------------------------------------------------------------------------------- running it


@dataclass(frozen=True)
class Row:
    """One kernel or call: the line of the wrapper, what is called there, the median of its times in microseconds, and
    where it comes from."""

    line: int
    step: str
    us: float
    origin: str


@dataclass(frozen=True)
class Times:
    """The time of a wrapper. us: of a call. outputs: how many came back as planned. note: what is to be known of the
    inputs."""

    name: str
    device: str
    us: float
    outputs: int
    rows: tuple[Row, ...]
    note: str = ""


@dataclass
class Clock:
    """Seconds of a wrapper's steps by line, a list of runs each. Functions from `timed` add to them."""

    target: Target
    seconds: dict[int, list[float]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    _open: list[tuple[int, Any, Any]] = field(default_factory=list)

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that calls `function` and times each call by the line that the call is in."""

        def call(*args: Any, **kwargs: Any) -> Any:
            line = sys._getframe(1).f_lineno
            self.names[line] = name
            begin = self._now()
            result = function(*args, **kwargs)
            self._open.append((line, begin, self._now()))
            return result

        return call

    def _now(self) -> Any:
        if not self.target.asynchronous:
            return time.perf_counter()
        event = torch.get_device_module(self.target.type).Event(enable_timing=True)
        event.record()
        return event

    def begin_run(self) -> None:
        """Makes the device wait a little, where it can, so that the host is ahead of it and no step waits for the
        host."""
        wait = getattr(torch.get_device_module(self.target.type), "_sleep", None) if self.target.asynchronous else None
        if wait is not None:
            wait(AHEAD)

    def end_run(self) -> None:
        """Takes the times of a run that is over, in seconds by line."""
        if self.target.asynchronous:
            torch.get_device_module(self.target.type).synchronize(self.target.index)
        run: dict[int, float] = {}
        for line, begin, end in self._open:
            took = begin.elapsed_time(end) / 1e3 if self.target.asynchronous else end - begin
            run[line] = run.get(line, 0.0) + took
        self._open.clear()
        for line, seconds in run.items():
            self.seconds.setdefault(line, []).append(seconds)


def time_wrapper(path: Path, seconds: float = 1.0) -> Times:
    """Runs and times the wrapper in a file. Raises WrapperFileError, and what its kernels' builds and steps raise."""
    data = _read(path.with_name(FILE))
    text = path.read_text(encoding="utf-8")
    compiler = make_compiler(None, data["options"])
    targets = [compiler.target_of(torch.device(device)) for device in data["devices"]]
    absent = [str(target) for target in targets if target.assumed]
    if absent:
        raise WrapperFileError(f"it runs on {', '.join(absent)}, which is not here", path=str(path))
    target = next((target for target in targets if target.type != "cpu"), targets[0] if targets else None)
    if target is None:
        raise WrapperFileError("it has no tensors", path=str(path))
    objects = {name: _object(name, item, path) for name, item in data["objects"].items()}
    kernels = {item["name"]: _built(item, path.parent, compiler) for item in data["kernels"]}
    entry = load_wrapper(text, path, {**support(pool_for(compiler.options, compiler.cache)), **objects, **kernels})

    with torch.no_grad():
        inputs, note = _fitting(entry, data["inputs"])
        returned = _look_at(entry(list(inputs)), data["outputs"], path)
        us = median_seconds(lambda: entry(list(inputs)), target, RUNS) * 1e6
        clock = Clock(target)
        _time_steps(entry, kernels, clock)
        end = time.monotonic() + seconds
        for run in range(RUNS):
            clock.begin_run()
            entry(list(inputs))
            clock.end_run()
            if run >= 3 and time.monotonic() > end:
                break
    lines = text.split("\n")
    rows = (
        Row(line, clock.names[line], statistics.median(times) * 1e6, _origin(lines, line))
        for line, times in sorted(clock.seconds.items())
    )
    return Times(data["name"], str(target.name or target), us, returned, tuple(rows), note)


def _built(item: Mapping[str, Any], folder: Path, compiler: Compiler) -> Callable[..., Any]:
    return build_kernel(item, folder, torch.device(item["device"]), compiler)


def _time_steps(entry: Entry, kernels: Mapping[str, Any], clock: Clock) -> None:
    """Have kernels and library calls timed: functions look globals up when they are called."""
    scope = entry.__globals__
    for name, value in list(scope.items()):
        if name in kernels:
            scope[name] = clock.timed(name, value)
        elif callable(value) and not name.startswith("_") and name not in ("call", "torch", "math"):
            if not name.startswith("call_"):
                scope[name] = clock.timed(_op_name(name), value)


def _op_name(name: str) -> str:
    """Returns an op's short name: "addmm" for aten_addmm_out."""
    return name.removeprefix("aten_").removesuffix("_default").removesuffix("_out")


def _origin(lines: Sequence[str], line: int) -> str:
    """The comment before a line of the wrapper that says where it comes from."""
    for text in reversed(lines[: line - 1]):
        text = text.strip()
        if text.startswith("# in the arena"):
            continue
        if text.startswith(("# ", "def ")):
            return "" if text.startswith("def ") or _OF_AN_INPUT.match(text) else text.removeprefix("# ")
    return ""


def _fitting(entry: Entry, items: Sequence[Mapping[str, Any]]) -> tuple[list[Any], str]:
    """Inputs that the graph runs with. Integers are random where that can be: positions are less than what they count,
    others 0 or 1; all are 0 where a step refuses these."""
    torch.manual_seed(0)
    inputs = [_made(item) for item in items]
    try:
        entry(list(inputs))
        return inputs, ""
    except (IndexError, RuntimeError) as error:
        zeros = [value.zero_() if _is_whole(value) else value for value in inputs]
        try:
            entry(list(zeros))
        except Exception:
            raise error from None
        return zeros, f"integers are all 0: with others, {describe(error)}"


def _is_whole(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.dtype.is_floating_point and not value.dtype.is_complex


def _made(item: Mapping[str, Any]) -> Any:
    """An input."""
    if "number" in item:
        return item["number"]
    return None if "opaque" in item else _tensor(item)


def _tensor(item: Mapping[str, Any]) -> torch.Tensor:
    """Any tensor of this geometry, with elements of a range that suits its type and its use."""
    dtype: torch.dtype = getattr(torch, item["dtype"])
    count, device = item["elements"], torch.device(item["device"])
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.randn(count, dtype=dtype if dtype.is_complex else torch.float32, device=device)
        flat = wide.to(dtype)
    else:
        flat = torch.randint(0, max(1, item.get("below") or 2), (count,), device=device).to(dtype)
    return flat.as_strided(item["size"], item["stride"])


def _object(name: str, item: Mapping[str, Any], path: Path) -> Any:
    """A constant, or a function that the wrapper calls."""
    if "values" in item:
        given = torch.tensor(item["values"], dtype=getattr(torch, item["dtype"]), device=item["device"])
        return torch.empty_strided(item["size"], item["stride"], dtype=given.dtype, device=given.device).copy_(given)
    if "dtype" in item:
        return _tensor(item)
    with contextlib.suppress(ImportError, AttributeError, KeyError):
        module, _, function = item["import"].partition(":")
        __import__(module)
        return getattr(sys.modules[module], function)
    kind = item.get("missing") or item["import"]
    raise WrapperFileError(f"it calls {name}, a {kind}, which a file cannot hold", path=str(path))


def _look_at(outputs: Sequence[Any], planned: Sequence[Any], path: Path) -> int:
    """Returns how many tensors came back; WrapperFileError if one is not as planned."""
    count = 0
    for at, (value, wanted) in enumerate(zip(outputs, planned, strict=True)):
        if wanted is None or not isinstance(value, torch.Tensor):
            continue
        found = (_type_name(value.dtype), list(value.shape))
        if found != (wanted["dtype"], wanted["size"]):
            problem = f"output {at} is {found[0]} {found[1]}, not {wanted['dtype']} {wanted['size']}"
            raise WrapperFileError(problem, path=str(path))
        count += 1
    return count


def _read(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WrapperFileError(describe(error), path=str(path)) from error
    if not isinstance(data, dict) or (data.get("format"), data.get("version")) != (FORMAT, VERSION):
        raise WrapperFileError(f"it is not of the format {FORMAT} {VERSION}", path=str(path))
    return data


# ------------------------------------------------------------------------------------------------------------- printing


def main(file: str) -> int:
    """Prints the times of `python wrapper.py` as a table. Returns the exit status, 1 after an error."""
    from litz_plugins.errors import LitzError

    try:
        times = time_wrapper(Path(file).resolve())
    except LitzError as error:
        print(error, file=sys.stderr)
        return 1
    from rich.console import Console

    console = Console(highlight=False)
    for part in parts(times):
        console.print(part)
    return 0


def parts(times: Times) -> Iterator[Any]:
    """Yields the table and the words around it, for a rich console."""
    from rich.table import Table
    from rich.text import Text

    total = sum(row.us for row in times.rows)
    yield Text(f"{times.name} on {times.device}: ran, {times.outputs} outputs as planned")
    yield Text(f"a call takes {times.us:.1f} µs, its steps {total:.1f} µs together")
    if times.note:
        yield Text(times.note, style="dim")
    costliest = sorted(times.rows, key=lambda row: -row.us)[:ROWS]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, right in (("line", True), ("step", False), ("µs", True), ("share", True), ("from", False)):
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=name != "from")
    for row in times.rows:
        if row in costliest:
            share = f"{row.us / total:.0%}" if total else ""
            table.add_row(*map(Text, (str(row.line), _short(row.step), f"{row.us:.1f}", share, row.origin)))
    yield Text()
    yield table
    if len(costliest) < len(times.rows):
        yield Text(f"the {ROWS} that take longest, in order, of {len(times.rows)}", style="dim")


def _short(step: str) -> str:
    return step if len(step) <= 20 else f"{step[:17]}..."

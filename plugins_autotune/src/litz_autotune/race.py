"""A race: programs that compute the same, built as litz builds them and timed on the same inputs.

In: a `Race`, which is data and can be sent to another process. Out: a `Measurement` for each entrant. What an entrant
computes is compared with the reference's result first: a kernel that is wrong is as good as one that does not run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import torch

from litz import report as reports
from litz.cache.disk import Cache
from litz.codegen.wrapper import generate_wrapper
from litz.driver.builtin import builtin_plugins
from litz.execution import plan_execution
from litz.ir import Buffer, Program
from litz.ir.node import walk
from litz.options import Options
from litz.origins.trust import make_trust
from litz.pipeline import Compiler, build, generate
from litz.schedule import make_schedule
from litz.schedule.schedule import Schedule
from litz_contractions.api import on_device
from litz_plugins.errors import describe
from litz_plugins.manager import Plugins, make_plugins

from .measurement import Measurement, failed, summarize
from .timing import Timer

TOLERANCE: Mapping[torch.dtype, float] = {
    torch.float64: 1e-9,
    torch.float32: 5e-3,  # TF32 has 10 bits of mantissa
    torch.float16: 5e-3,
    torch.bfloat16: 3e-2,
    # Half of a step, should all elements be rounded the other way.
    torch.float8_e4m3fn: 6e-2,
    torch.float8_e5m2: 0.12,
}
"""How far a result may be from the reference's, relative, in the Euclidean norm; other dtypes must be equal."""
PART = 8.0
"""How many times further a part of the result may be: all elements at one index of one dimension, a row or a column. A
user that jumps (a sign, a rounding to steps) may turn a few elements over; one row of thousands that was not written is
within the tolerance of the whole."""


@dataclass(frozen=True)
class Entrant:
    """A candidate's name, and a cut-out program (`subprogram.cut`) with the candidate in it."""

    name: str
    program: Program


@dataclass(frozen=True)
class Race:
    """key: of the problem; what is made for one race of a problem is kept for the next. reference: what is right, None
    to check nothing. seconds: for all measurements together. index: of the device, in the process that runs it.
    limit_us: what is slower is not run more than it takes to see that."""

    key: str
    entrants: tuple[Entrant, ...]
    reference: Program | None
    timer: Timer
    options: Options
    cache: str
    seconds: float = 0.05
    index: int | None = None
    limit_us: float = inf

    def run(self, state: dict[str, Any]) -> tuple[Measurement, ...]:
        """Returns the result for each entrant. state: kept between calls. Raises if the reference fails, or fatally."""
        device = self._device()
        held = state.get(self.key)
        if held is None:
            state.clear()  # the last problem's tensors
            held = state.setdefault(self.key, _Held(self._on(self.entrants[0].program, device)))
        if self.reference is not None and held.expected is None:
            held.expected = held.call(self._build(self.reference, device))()
        calls: dict[str, Callable[[], Any]] = {}
        problems: dict[str, str] = {}
        for entrant in self.entrants:
            try:
                call = held.call(self._build(entrant.program, device))
                problems[entrant.name] = mismatch(call(), held.expected)
            except Exception as error:
                problems[entrant.name] = describe(error)
                if is_fatal(error):
                    raise
            else:
                calls[entrant.name] = call
        ready = {name: call for name, call in calls.items() if not problems[name]}
        samples = self.timer.time(ready, device, self.seconds, self.limit_us) if ready else {}
        return tuple(
            failed(problems[e.name]) if problems[e.name] else summarize(samples[e.name]) for e in self.entrants
        )

    def _device(self) -> torch.device:
        device = self.entrants[0].program.operations[0].device
        if device.type != "cuda":
            return device
        return torch.device("cuda", self.index if self.index is not None else device.index or 0)

    def _on(self, program: Program, device: torch.device) -> Program:
        return on_device(program, device)

    def _build(self, program: Program, device: torch.device) -> Callable[[list[Any]], Sequence[Any]]:
        return executable(
            self._on(program, device), self.options, Cache(Path(self.cache), trust=make_trust(self.options.trust))
        )


@dataclass(frozen=True)
class Forget:
    """Lets go of what races keep: tensors on the device, for the memory of which others may wait."""

    def run(self, state: dict[str, Any]) -> None:
        """Lets go of the inputs and programs of earlier races, and returns free memory to the device."""
        state.clear()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


class _Held:
    """The inputs and the right result that the races of one problem share."""

    def __init__(self, program: Program) -> None:
        self.inputs = {str(item): value for item, value in zip(program.inputs, make_inputs(program))}
        self.names = [str(item) for item in program.inputs]
        self.expected: Sequence[torch.Tensor] | None = None

    def call(self, function: Callable[[list[Any]], Sequence[Any]]) -> Callable[[], Sequence[Any]]:
        values = [self.inputs[name] for name in self.names]
        return lambda: function(list(values))


def executable(program: Program, options: Options, cache: Cache) -> Callable[[list[Any]], Sequence[Any]]:
    """Returns the program as litz would run it: fused, generated and built, with core's own plugins only."""
    compiler = core_compiler(options, cache)
    options, plugins, target_of = compiler.options, compiler.plugins, compiler.target_of
    schedule = make_schedule(program, target_of=target_of, options=options)
    return scheduled(plugins.run_passes("schedule", schedule, options, target_of=target_of), compiler)


def executable_schedule(schedule: Schedule, options: Options, cache: Cache) -> Callable[[list[Any]], Sequence[Any]]:
    """Returns a function that runs the kernels of a schedule, without scheduling anew."""
    return scheduled(schedule, core_compiler(options, cache))


def scheduled(schedule: Schedule, compiler: Compiler) -> Callable[[list[Any]], Sequence[Any]]:
    """Returns a schedule as code that runs: a function of the list of inputs."""
    plan = plan_execution(schedule, options=compiler.options, target_of=compiler.target_of)
    sources = generate(plan, compiler)
    return build(plan, sources, generate_wrapper(plan, sources), compiler)


def core_compiler(options: Options, cache: Cache) -> Compiler:
    """Returns a compiler that measures nothing, with core's own plugins only."""
    # No workers: what runs beside a measurement spoils it.
    options = options.replace(max_autotune=False, cuda_graphs=False, report_dir=None, build_processes=0)
    return Compiler(options, core_plugins(), cache, reports.collectors())


@functools.cache
def core_plugins() -> Plugins:
    """Returns core's own plugins, made once for all races: reading their hooks takes 10 ms, as long as a screening."""
    return make_plugins(builtin_plugins(), entry_points=())


def make_inputs(program: Program, generator: torch.Generator | None = None) -> list[Any]:
    """Returns tensors with the sizes (symbolic ones by their hints), strides and dtypes of the program's inputs, and
    sizes. generator: of the program's device; None for torch's own, whose state changes."""
    within = _positions(program)
    return [
        _tensor(program.buffers[item], program.hint, within.get(item), generator)
        if isinstance(item, str)
        else program.hint(item)
        for item in program.inputs
    ]


def _positions(program: Program) -> dict[str, int]:
    """Inputs that hold positions, and how many there are to choose from: rows that are gathered come from all over."""
    found: dict[str, int] = {}
    for loop in program.loops:
        for node in loop.nodes:
            inside = list(walk(*node.args[:1])) if node.op == "bounded" else []
            names = {each.buffer for each in inside if each.op == "load"}
            if len(names) == 1 and all(each.op in _WRAPPING for each in inside):
                (name,) = names
                size = program.hint(node.attrs[0])
                found[name] = min(size, found.get(name, size))
    return found


_WRAPPING = frozenset({"load", "const", "lt", "add", "where"})
"""What a position goes through that may count from the end."""


def _tensor(
    buffer: Buffer, hint: Callable[[Any], int], positions: int | None, generator: torch.Generator | None
) -> torch.Tensor:
    """positions: the tensor's elements are positions, of so many."""
    layout = buffer.layout
    count = max(1, hint(layout.span))
    here: dict[str, Any] = {"device": buffer.device, "dtype": buffer.dtype}
    if generator is not None and generator.device.type != buffer.device.type:
        generator = torch.Generator(buffer.device).manual_seed(generator.initial_seed())
    if (buffer.dtype.is_floating_point or buffer.dtype.is_complex) and buffer.dtype.itemsize > 1:
        storage = torch.empty(count, **here).normal_(generator=generator)
    elif buffer.dtype.is_floating_point:
        storage = torch.randn(count, device=buffer.device, generator=generator).to(buffer.dtype)
    elif buffer.dtype == torch.int8:
        storage = torch.randint(-8, 8, (count,), generator=generator, **here)
    elif positions and buffer.dtype in (torch.int32, torch.int64):
        storage = torch.randint(0, positions, (count,), generator=generator, **here)
    else:
        storage = torch.zeros(count, dtype=buffer.dtype, device=buffer.device)  # a position that is in range
    return storage.as_strided([hint(size) for size in layout.size], [hint(step) for step in layout.stride])


def mismatch(outputs: Sequence[Any], expected: Sequence[Any] | None) -> str:
    """Returns how a candidate's results differ from the expected ones, '' if they agree."""
    if expected is None:
        return ""
    for output, wanted in zip(outputs, expected, strict=True):
        if output.shape != wanted.shape or output.dtype != wanted.dtype:
            return f"gives {output.dtype} {tuple(output.shape)}, should give {wanted.dtype} {tuple(wanted.shape)}"
        tolerance = TOLERANCE.get(wanted.dtype)
        if tolerance is None:
            if not torch.equal(output, wanted):
                return "gives other values than the library"
            continue
        error, part = relative_errors(output, wanted)
        if not error <= tolerance:
            return f"gives other values than the library (relative error {error:.1e})"
        if not part <= PART * tolerance:
            return f"gives other values than the library in a part of the result (relative error {part:.1e})"
    return ""


def relative_errors(output: torch.Tensor, wanted: torch.Tensor) -> tuple[float, float]:
    """Returns how far a result is from what is wanted, in the Euclidean norm: all of it, and its worst row or column.

    A part counts as large as the mean of its like at least: what is near 0 anyway is not judged by itself.
    """
    # In float32 or wider: the squares of large float16 values overflow.
    wide = torch.float64 if wanted.dtype == torch.float64 else torch.float32
    error, size = (output.to(wide) - wanted.to(wide)).square(), wanted.to(wide).square()
    total = size.sum().clamp_min(1e-60 if wide == torch.float64 else 1e-37)
    whole = (error.sum() / total).sqrt()
    parts = [whole]
    for dim, count in enumerate(wanted.shape):
        others = [other for other in range(wanted.dim()) if other != dim]
        if count > 1 and others:
            worst = error.sum(others) / size.sum(others).maximum(total / count)
            parts.append(worst.amax().sqrt())
    return float(whole), float(torch.stack(parts).amax())


def is_fatal(error: BaseException) -> bool:
    """Returns whether the error has spoilt the process's CUDA context, so that nothing runs in it any more."""
    text = str(error)
    return "CUDA error" in text and not isinstance(error, torch.OutOfMemoryError) and "out of memory" not in text

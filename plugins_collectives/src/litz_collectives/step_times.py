"""The times of steps that compute, each measured once: what collectives.cost = "benchmark" stands for.

In: a step of a schedule. Out: its time as an Estimate, from the disk cache or from a run of the step alone on made-up
tensors; or the reason why it is not measured. Equal steps have one key, whatever their buffers are called. No
communication is measured: ranks would have to do so together.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from litz import report
from litz.cache.disk import Cache, digest
from litz.capture import torch_api
from litz.codegen.wrapper import generate_wrapper
from litz.driver.builtin import builtin_plugins
from litz.driver.compiler import Compiler
from litz.execution import plan_execution
from litz.graph_cache.fingerprints import version_parts
from litz.ir import Buffer, Extern, Layout, Program, TensorRef
from litz.ir.operation import sizes_in
from litz.options import Options
from litz.origins.trust import make_trust
from litz.pipeline import build, generate
from litz.schedule.schedule import Kernel, Schedule, Step
from litz_plugins import Estimate, PassContext
from litz_plugins.manager import make_plugins

from .measure import device_us

KIND, FILE = "collectives-step-times", "time.json"
CALLS, REPLAYS = 5, 7
"""Calls of a step in a row, and how often; the median counts, and the slowest and the quickest are the interval."""


def measured_steps(steps: Sequence[Step], program: Program, context: PassContext) -> dict[str, Estimate]:
    """Returns the measured times by the names of steps, of those that can be measured; the record of the pass says how
    many these are, and why the others have litz's estimates."""
    times, refused = dict[str, Estimate](), dict[str, list[str]]()
    options = context.options
    for step in steps:
        why = _why_not(step)
        if not why and isinstance(options, Options):
            try:
                times[step.name] = _measured(step, program, options, context.target_of(step.device).name)
                continue
            except _Unmeasured as problem:
                why = str(problem)
        refused.setdefault(why or "no compile is under way", []).append(step.name)
    left = "; ".join(f"{', '.join(names[:3])}{', ...' if names[3:] else ''}: {why}" for why, names in refused.items())
    context.record("times of steps", f"{len(times)} of {len(steps)} measured", left or "every step was")
    return times


def known_time(step: Any, program: Program, options: Any, device: str) -> Estimate | None:
    """Returns the time of a step that was measured before; None for any other. device: the target's name."""
    if not isinstance(step, (Kernel, Extern)) or not isinstance(options, Options) or _why_not(step):
        return None
    try:
        return _read(_cache(options).find(KIND, _key(_alone(step, program), options, device), (FILE,)))
    except _Unmeasured:
        return None


class _Unmeasured(Exception):
    """Says why a step is not measured."""


def _why_not(step: Step) -> str:
    """Returns why a step must not be run for the sake of measuring; '' if it may."""
    if step.device.type == "cuda" and not torch.cuda.is_available():
        return "there is no CUDA device here"
    if torch_api.is_fake(torch.empty(0)):
        return "tensors are fake here, so nothing runs"
    if isinstance(step, Kernel):
        return ""
    op: Any = step.target
    if not isinstance(op, torch._ops.OpOverload) or op.namespace not in ("aten", "prims"):
        return "it communicates, or may do more than compute"
    if step.effect or step.mutates or step.aliases or step.unbacked or torch.Tag.nondeterministic_seeded in op.tags:
        return "it views or writes its arguments, draws random numbers, or finds out sizes"
    return ""


def _measured(step: Step, program: Program, options: Options, device: str) -> Estimate:
    schedule = _alone(step, program)
    key, cache, made = _key(schedule, options, device), _cache(options), list[str]()

    def make(folder: Path) -> None:
        try:
            times = _times(schedule, options, cache)
        except Exception as problem:
            raise _Unmeasured(f"its run alone failed: {type(problem).__name__}: {problem}") from problem
        made.append(json.dumps({"us": statistics.median(times), "low_us": min(times), "high_us": max(times)}))
        (folder / FILE).write_text(made[0], encoding="utf-8")

    found = _read(cache.build(KIND, key, make, (FILE,)))
    if found is None:
        raise _Unmeasured("what the cache has of it is damaged")
    return found


def _read(folder: Path | None) -> Estimate | None:
    try:
        data = {} if folder is None else json.loads((folder / FILE).read_text(encoding="utf-8"))
        us, low, high = (float(data[name]) for name in ("us", "low_us", "high_us"))
        return Estimate(us, low, high, "measured alone")
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _cache(options: Options) -> Cache:
    return Cache(options.cache_dir, options.cache, trust=make_trust(options.trust))


def _key(schedule: Schedule, options: Options, device: str) -> str:
    """The digest of a step as text, its names numbered as they come, and of what else decides how long it takes: who
    makes the kernel, for which processor, and the threads."""
    (step,) = schedule.steps
    loops = step.loops if isinstance(step, Kernel) else ()
    names = {*schedule.program.buffers, step.name, *(loop.name for loop in loops)}
    given: dict[str, str] = {}
    pattern = r"\b(" + "|".join(map(re.escape, sorted(names, key=len, reverse=True))) + r")\b"
    text = re.sub(pattern, lambda found: given.setdefault(found[0], f"n{len(given)}"), str(schedule))
    layouts = [str((given.get(name, ""), b.dtype, b.layout)) for name, b in schedule.program.buffers.items()]
    hints = sorted(f"{symbol}={value}" for symbol, value in schedule.program.hints.items())
    made_by = (*(part.text for part in version_parts()), str(options.cpp_compiler), options.cpp_march)
    return digest(text, *sorted(layouts), *hints, device, *made_by, str(torch.get_num_threads()))


def _alone(step: Step, program: Program) -> Schedule:
    """A step as a schedule of its own, whose results are what the step writes. Errors: _Unmeasured."""
    step = _bare(step)
    operations = step.loops if isinstance(step, Kernel) else (step,)
    inner = {name for loop in operations[1:] for name in loop.reads} & set(step.writes)
    given = sorted({*step.reads} - inner | {name for name in step.writes if program.buffers[name].kind == "input"})
    buffers: dict[str, Buffer] = {
        name: replace(program.buffers[name], kind="input" if name in given else "temporary")
        for name in (*given, *sorted(set(step.writes) - set(given)))
    }
    symbols = {symbol for buffer in buffers.values() for symbol in buffer.layout.free_symbols}
    for one in operations:
        symbols |= sizes_in((one.args, one.kwargs)) if isinstance(one, Extern) else one.free_symbols
    if not symbols <= program.hints.keys():
        raise _Unmeasured("it has sizes that are known only at run time")
    inputs = (*given, *sorted(symbols, key=str))
    outputs = tuple(
        TensorRef(name, Layout(buffers[name].layout.size, buffers[name].layout.stride)) for name in sorted(step.writes)
    )
    hints = {symbol: program.hint(symbol) for symbol in symbols}
    return Schedule(Program("step", inputs, buffers, operations, outputs, hints=hints), (step,))


def _bare(step: Step) -> Step:
    """A step without the names of what it was made of, and with memory of its own for what it writes."""
    if not isinstance(step, Kernel):
        return replace(step, origins=())
    loop, *finish = (replace(one, origins=()) for one in (step.loop, *step.finish))
    beside = tuple(one for kernel in step.beside for one in (_bare(kernel),) if isinstance(one, Kernel))
    return replace(step, name=loop.name, loop=loop, finish=tuple(finish), beside=beside, fused=(), inplace={})


def _times(schedule: Schedule, options: Options, cache: Cache) -> list[float]:
    """The µs of a few calls of a schedule on made-up tensors."""
    quiet = options.replace(max_autotune=False, cuda_graphs=False, report_dir=None, build_processes=0)
    compiler = Compiler(quiet, make_plugins(builtin_plugins(), entry_points=()), cache, report.collectors())
    plan = plan_execution(schedule, options=quiet, target_of=compiler.target_of)
    sources = generate(plan, compiler)
    run: Callable[[list[Any]], Any] = build(plan, sources, generate_wrapper(plan, sources), compiler)
    values = inputs_of(schedule.program)
    (step,) = schedule.steps
    return device_us(lambda: run(list(values)), CALLS, REPLAYS, step.device)


def inputs_of(program: Program) -> list[Any]:
    """Returns tensors as a program's inputs lie, and sizes by hints: zeros for integers, which are positions in range,
    and random numbers for all else, drawn by nobody else's generator."""
    buffers, hint = program.buffers, program.hint
    return [_tensor(buffers[item], program) if isinstance(item, str) else hint(item) for item in program.inputs]


def _tensor(buffer: Buffer, program: Program) -> torch.Tensor:
    layout, hint = buffer.layout, program.hint
    storage = torch.zeros(max(1, hint(layout.span)), dtype=buffer.dtype, device=buffer.device)
    if buffer.dtype.is_floating_point or buffer.dtype.is_complex:
        random = torch.randn(len(storage), generator=torch.Generator().manual_seed(0))
        storage.copy_(random)
    return storage.as_strided([hint(size) for size in layout.size], [hint(step) for step in layout.stride])


__all__ = ["inputs_of", "known_time", "measured_steps"]

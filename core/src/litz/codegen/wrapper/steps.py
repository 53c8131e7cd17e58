"""One step of a wrapper's function: tensors that come, the launch or call, tensors that go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from litz.execution.counters import Counters
from litz.execution.out_variants import out_variant
from litz.execution.plan import Allocation, Drop
from litz.ir import Check, KernelCall
from litz.schedule.schedule import Kernel
from litz_plugins import COUNTERS, KernelSource

from ..sizes import python_text, tuple_text
from .results import call_lines
from .spelling import Spelling, device_name


def step_lines(
    number: int, spelling: Spelling, sources: Mapping[str, KernelSource], counters: Counters
) -> Iterator[str]:
    """Yields one step's lines: allocations and tensors let go before it, the step itself, tensors let go after it.
    number: the step's place in the plan. sources: of kernels, by step name. counters: of split reductions."""
    plan = spelling.plan
    step, memory, tensors = plan.steps[number], plan.memory, plan.tensors[number]
    placed = [f"{name} at {memory.arena[name]}" for name in memory.allocate[number] if name in memory.arena]
    if placed:
        yield f"# in the arena: {', '.join(placed)}"
    for item in tensors.before:
        yield _drop(item.buffers) if isinstance(item, Drop) else _allocate(item, spelling)
    if isinstance(step, Check):
        yield from _check(step)
    elif isinstance(step, (Kernel, KernelCall)):
        yield from _launch(step, sources[step.name], spelling, counters)
    elif step.name in plan.results:
        yield from call_lines(step, spelling)
    else:
        yield spelling.call(step, out_variant(step, plan.program, plan.targets, memory), out=step.outputs[0])
    if tensors.after:
        yield _drop(tensors.after)


def _drop(names: tuple[str, ...]) -> str:
    return f"del {', '.join(names)}"


def _allocate(item: Allocation, spelling: Spelling) -> str:
    buffers = spelling.program.buffers
    buffer = buffers[item.buffer]
    if item.over is None:
        return f"{buffer.name} = {spelling.fresh(buffer)}"
    old, layout = buffers[item.over], buffer.layout
    if old.layout == layout and old.dtype == buffer.dtype:
        return f"{buffer.name} = {old.name}"
    return f"{buffer.name} = _reuse({old.name}, {tuple_text(layout.size)}, {tuple_text(layout.stride)}, {buffer.dtype})"


def _launch(kernel: Kernel | KernelCall, source: KernelSource, spelling: Spelling, counters: Counters) -> Iterator[str]:
    device, arguments = device_name(kernel.device), []
    for item in source.arguments:
        if item == COUNTERS:
            arguments.append(f"_counters{device} + {4 * counters.first[kernel.name]}")
        elif not isinstance(item, str):
            arguments.append(python_text(item))
        elif spelling.program.buffers[item].device == kernel.device:
            arguments.append(spelling.address(item))
        else:
            yield f"{item}_on{device} = _number_on({device}, {item})"
            arguments.append(f"{item}_on{device}.data_ptr()")
    origins = " + ".join(dict.fromkeys(kernel.origins))
    comment = f"  # {origins}" if len(origins) <= 80 else f"  # {origins[:77]}..."
    yield f"{kernel.name}({', '.join(arguments)}){comment if origins else ''}"


def _check(check: Check) -> Iterator[str]:
    names = ", ".join(map(str, check.shown))
    told = "".join(f"{', ' if number else ': '}{name} = %s" for number, name in enumerate(check.shown))
    text = repr(check.message.replace("%", "%%") + told) + f" % ({names},)" if names else repr(check.message)
    yield f"if not {python_text(check.condition)}:"
    yield f"    raise {check.error.__name__}({text})"

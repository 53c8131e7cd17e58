"""Where two schedules of one graph differ: the steps that only one of them has, as schedules of their own.

In: two Schedules of programs that were made of one. Out: for each a Schedule of what differs, both with the same inputs
and the same results, so that they can be run side by side on made-up tensors: what a decision costs is in them, and all
else is the same. Where what differs cannot be taken out, it is all of both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from litz.ir import Check, Collective, Extern, KernelCall, Layout, Operation, Program, Region, TensorRef, Wait
from litz.ir.arguments import leaves
from litz.ir.operation import sizes_in
from litz.ir.program import Opaque
from litz.schedule.schedule import Kernel, Schedule, Step


@dataclass(frozen=True)
class Difference:
    """The steps that two schedules do not share. whole: whether these are all their steps."""

    first: Schedule
    second: Schedule
    whole: bool = False

    @property
    def nbytes(self) -> int:
        """Returns the bytes of the tensors of the larger of the two schedules."""
        return max(_nbytes(each.program) for each in (self.first, self.second))


class Inseparable(ValueError):
    """Raised where the difference cannot be run alone; the message says why."""


def difference(first: Schedule, second: Schedule) -> Difference | None:
    """Returns what two schedules do not share; None if they have the same steps in the same order. Returns the whole
    schedules if their difference cannot be taken out. Errors: Inseparable if not even all of both can be run on made-up
    tensors."""
    ours, theirs = _rest(first.steps, second.steps), _rest(second.steps, first.steps)
    if not ours and not theirs:
        return None if same_steps(first, second) else whole(first, second)
    try:
        return Difference(*_taken_out(first, ours, second, theirs))
    except Inseparable:
        return whole(first, second)


def same_steps(first: Schedule, second: Schedule) -> bool:
    """Returns whether two schedules have the same steps, in the same order."""
    return list(map(_identity, first.steps)) == list(map(_identity, second.steps))


def whole(first: Schedule, second: Schedule) -> Difference:
    """Returns a Difference that has all steps of both schedules. Errors: Inseparable, as for `difference`."""
    names = tuple(dict.fromkeys(name for each in (first, second) for name in _results(each.program)))
    return Difference(_cut(first, first.steps, names), _cut(second, second.steps, names), True)


def alone(schedule: Schedule, kernel: Kernel) -> Schedule:
    """Returns a kernel of a schedule as a schedule of its own, whose results are what the others or the caller need of
    it. Errors: Inseparable, as for `difference`."""
    rest, needed = [kernel], _needed(schedule, [kernel])
    _check_apart(schedule, rest)
    if not needed:
        raise Inseparable("nothing needs what it writes")
    return _cut(schedule, rest, tuple(sorted(needed)))


def _rest(steps: Sequence[Step], others: Sequence[Step]) -> list[Step]:
    """Returns the steps that are not among the others."""
    there = Counter(map(_identity, others))
    rest = []
    for step in steps:
        if there[_identity(step)]:
            there[_identity(step)] -= 1
        else:
            rest.append(step)
    return rest


def _identity(step: Step) -> Any:
    """Returns what two steps that do the same with the same buffers have in common: names of steps aside."""
    if isinstance(step, Kernel):
        loops = tuple((loop.device, loop.ranges, loop.reduction_ranges, loop.stores) for loop in step.loops)
        settings = tuple(sorted(step.settings.items()))
        return loops, len(step.finish), tuple(len(kernel.finish) for kernel in step.beside), settings
    source = (step.source.text, str(step.source.settings)) if isinstance(step, KernelCall) else ()
    return step.target_name, str(step.args), str(dict(step.kwargs)), step.outputs, step.mutates, source


def _taken_out(
    first: Schedule, ours: Sequence[Step], second: Schedule, theirs: Sequence[Step]
) -> tuple[Schedule, Schedule]:
    """Returns the differing steps as schedules with the same inputs and results."""
    needed = _needed(first, ours)
    if needed != _needed(second, theirs) or not needed:
        raise Inseparable("the two schedules leave different buffers to the steps that they share")
    for schedule, rest in ((first, ours), (second, theirs)):
        _check_apart(schedule, rest)
    names = tuple(sorted(needed))
    return _cut(first, ours, names), _cut(second, theirs, names)


def _check_apart(schedule: Schedule, rest: Sequence[Step]) -> None:
    """Inseparable for steps that share memory which they write with the other steps."""
    mine, views = {id(step) for step in rest}, schedule.program.roots
    written = {name for step in rest for name in step.writes}
    if written & {*views, *views.values()}:
        raise Inseparable("the steps that differ write buffers that have views")
    others = {name for step in schedule.steps if id(step) not in mine for name in step.writes}
    if written & others:
        raise Inseparable("the steps that differ write buffers that other steps write too")


def _needed(schedule: Schedule, rest: Sequence[Step]) -> set[str]:
    """Returns the buffers that some steps write and others, or the caller, read."""
    program, mine = schedule.program, {id(step) for step in rest}
    written = {name for step in rest for name in step.writes}
    read = {name for step in schedule.steps if id(step) not in mine for name in step.reads}
    kept = {name for name in written if program.buffers[name].kind != "temporary"}
    return written & (read | program.output_buffers | kept)


def _results(program: Program) -> list[str]:
    """The buffers that the caller sees: those returned, and inputs that are written."""
    inputs = set(program.input_buffers)
    written = [name for op in program.operations for name in op.writes if name in inputs]
    return [*sorted(program.output_buffers), *sorted(set(written))]


def _cut(schedule: Schedule, steps: Sequence[Step], outputs: Sequence[str]) -> Schedule:
    """Some steps as a schedule of a program of their own, with inputs in the order of their names."""
    program = schedule.program
    for step in steps:
        _check(step)
    written = {name for step in steps for name in step.writes}
    first: dict[str, str] = {}
    for step in steps:
        for name in step.reads:
            first.setdefault(name, "input")
        for name in step.writes:
            # A call that writes what it is given changes it.
            first.setdefault(name, "input" if name in getattr(step, "mutates", ()) else "temporary")
    given = {name for name, kind in first.items() if kind == "input" or program.buffers[name].kind == "input"}
    inputs = sorted({*given, *(name for name in outputs if name not in written)})
    buffers = {
        name: replace(program.buffers[name], kind="input" if name in inputs else "temporary")
        for name in sorted({*first, *inputs})
    }
    operations = tuple(op for step in steps for op in _operations(step))
    symbols = sorted(_symbols(buffers, operations, program), key=lambda symbol: symbol.name)
    if any(symbol not in program.hints for symbol in symbols):
        raise Inseparable("it has sizes that are known only at run time")
    returned = tuple(
        TensorRef(name, Layout(buffers[name].layout.size, buffers[name].layout.stride)) for name in outputs
    )
    cut = Program(
        "part", (*inputs, *symbols), buffers, operations, returned, hints={s: program.hint(s) for s in symbols}
    )
    return Schedule(cut, tuple(steps))


def _check(step: Step) -> None:
    """Inseparable for a step that must not be run for the sake of measuring."""
    if isinstance(step, Kernel):
        return
    if isinstance(step, (Collective, Wait)):
        raise Inseparable("it communicates")
    op = step.target
    if any(isinstance(leaf, Region) for leaf in leaves(step.args)):
        raise Inseparable(f"{step.target_name} calls regions")
    if isinstance(step, Check) or step.unbacked:
        raise Inseparable(f"{step.target_name} depends on sizes that are known only at run time")
    if step.effect and not _draws_nothing(step):
        raise Inseparable(f"{step.target_name} has an effect")
    if not isinstance(step, KernelCall) and not _only_computes(op):
        raise Inseparable(f"{step.target_name} may do more than compute")
    if _may_draw(op) and not _draws_nothing(step):
        raise Inseparable(f"{step.target_name} draws random numbers")
    if any(isinstance(value, Opaque) for value in step.args):
        raise Inseparable(f"{step.target_name} takes an object")


def _only_computes(op: Any) -> bool:
    """Returns whether the op is torch's or a function of litz's. A user's may print, count, or write a file."""
    if isinstance(op, torch._ops.OpOverload):
        return op.namespace in ("aten", "prims")
    return str(getattr(op, "__module__", "")).startswith(("litz.", "litz_", "torch"))


def _may_draw(op: Any) -> bool:
    """Returns whether the op is one that draws random numbers."""
    return isinstance(op, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in op.tags


def _draws_nothing(step: Extern) -> bool:
    """Returns whether the call is one that could draw random numbers for dropout, with a dropout of 0."""
    if not _may_draw(step.target):
        return False
    given: dict[str, Any] = {each.name: each.default_value for each in step.target._schema.arguments}  # type: ignore[attr-defined]
    given |= dict(zip(given, step.args, strict=False)) | dict(step.kwargs)
    return given.get("dropout_p") == 0.0


def _operations(step: Step) -> tuple[Operation, ...]:
    return step.loops if isinstance(step, Kernel) else (step,)


def _symbols(buffers: Any, operations: Sequence[Operation], program: Program) -> set[Any]:
    found = {symbol for buffer in buffers.values() for symbol in buffer.layout.free_symbols}
    for op in operations:
        found |= sizes_in((op.args, op.kwargs)) if isinstance(op, Extern) else op.free_symbols
    return found


def _nbytes(program: Program) -> int:
    return sum(program.hint(buffer.nbytes) for buffer in program.buffers.values())


__all__ = ["Difference", "Inseparable", "alone", "difference", "same_steps", "whole"]

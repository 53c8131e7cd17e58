"""What a plugin's pass over a Program, or over the Schedule of one, may not change: its inputs, what is written to
them, what it returns, and the conditions that it checks.

In: the programs before and after. Out: nothing, or a ValueError that says what is not as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .buffer import TensorRef
from .operation import Check
from .pattern import copy_source
from .program import Program, ProgramOutput

Rule = Callable[[Program, Program], Iterator[str]]


def check_promises(before: Program, after: Program) -> None:
    """Checks that a new program gives its caller the same as the program that it was made of. Errors: ValueError with
    the differences."""
    complaints = [complaint for rule in RULES for complaint in rule(before, after)]
    if complaints:
        raise ValueError("it returned a program in which " + "; ".join(complaints[:3]))


def _inputs(before: Program, after: Program) -> Iterator[str]:
    if before.inputs != after.inputs:
        yield "the inputs are not as they were"
        return
    for name in before.input_buffers:
        if before.buffers[name] != after.buffers.get(name):
            yield f"the input {name} is {after.buffers.get(name)}, not {before.buffers[name]}"


def _outputs(before: Program, after: Program) -> Iterator[str]:
    if len(before.outputs) != len(after.outputs):
        yield f"there are {len(after.outputs)} outputs, not {len(before.outputs)}"
        return
    for at, (old, new) in enumerate(zip(before.outputs, after.outputs, strict=True)):
        mine, its = _described(new, after), _described(old, before)
        if mine != its:
            yield f"output {at} is {mine}, not {its}"


def _described(output: ProgramOutput, program: Program) -> str:
    """Type, device and layout of an output; what it is, of one that is no tensor."""
    if not isinstance(output, TensorRef):
        return repr(output)
    buffer = program.buffers.get(output.buffer)
    if buffer is None:
        return f"the buffer {output.buffer}, which does not exist"
    sizes = ", ".join(map(str, output.layout.size))
    return f"{buffer.dtype} [{sizes}] of strides {tuple(output.layout.stride)} on {buffer.device}"


def _writes(before: Program, after: Program) -> Iterator[str]:
    for name in before.input_buffers:
        old, new = bool(before.writers[name]), bool(after.writers.get(name))
        if old != new and not (old and _gets_its_own(name, before)):
            yield f"the input {name} is {'written' if new else 'no longer written'}"


def _gets_its_own(name: str, program: Program) -> bool:
    """Returns whether all that is written to an input is a copy of the input, put back."""
    (last, *others) = program.writers[name]
    copy = copy_source(last, name, program)
    makers = () if copy is None or others else program.writers[copy]
    return copy is not None and len(makers) == 1 and copy_source(makers[0], copy, program) == name


def _checks(before: Program, after: Program) -> Iterator[str]:
    kept = {operation.args for operation in after.operations if isinstance(operation, Check)}
    for operation in before.operations:
        if isinstance(operation, Check) and operation.args not in kept:
            yield f"nothing checks any more that {operation.args[0]}"


RULES: tuple[Rule, ...] = (_inputs, _outputs, _writes, _checks)

"""A failing program made small: whatever can go without the failure going, goes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from .inputs import InputSpec
from .program import NAME, FuzzProgram, Statement
from .reference import Rejected, reference_of

Fails = Callable[[FuzzProgram], bool]


def shrink(program: FuzzProgram, fails: Fails, seconds: float = 60.0) -> FuzzProgram:
    """Returns the smallest program found in `seconds` that `fails` too. What `fails` raises counts as no."""
    deadline = time.monotonic() + seconds

    def holds(candidate: FuzzProgram) -> bool:
        try:
            return fails(candidate)
        except Exception:
            return False

    changed = True
    while changed:
        changed = False
        for candidate in _smaller(program):
            if time.monotonic() > deadline:
                return program
            if holds(candidate):
                program, changed = candidate, True
                break
    return program


def _smaller(program: FuzzProgram) -> Iterator[FuzzProgram]:
    """Simpler programs, the boldest steps first."""
    if len(program.outputs) > 1:
        yield from (replace(program, outputs=(name,)).without_dead_code() for name in program.outputs)
    count = len(program.statements)
    for size in (count // 2, count // 4, 1):
        if size:
            for start in range(count - size, -1, -size):
                yield _without(program, set(range(start, start + size)))
    pruned = _without_unused_inputs(program.without_dead_code())
    if len(pruned.inputs) + len(pruned.statements) < len(program.inputs) + count:
        yield pruned
    for number, statement in enumerate(program.statements):
        if not statement.target:
            continue
        # Its uses read an operand of it instead, or an input made for the purpose.
        for name in sorted(statement.uses):
            yield _without(_renamed(program, number, statement.target, name), {number})
        yield from _as_input(program, number)
    for name in [s.target for s in program.statements if s.target]:
        if program.outputs != (name,):
            yield replace(program, outputs=(name,)).without_dead_code()
    for number, spec in enumerate(program.inputs):
        if spec.steps or spec.expanded or spec.offset or spec.order or spec.alias:
            simple = replace(spec, steps=(), expanded=(), offset=0, order=(), alias="")
            yield replace(program, inputs=_at(program.inputs, number, simple))
        if spec.kind == "special":
            yield replace(program, inputs=_at(program.inputs, number, replace(spec, kind="plain")))
    if program.sizes:
        yield replace(program, sizes=())
    if program.shift is not None:
        yield replace(program, shift=None)
    if program.together:
        yield replace(program, together=False)
    if program.nests:
        yield replace(program, nests=False)
    if program.grad:
        yield replace(program, grad=False)
    yield from _resized(program)


def _without(program: FuzzProgram, dropped: set[int]) -> FuzzProgram:
    """Less some statements, and what depends on them."""
    gone: set[str] = set()
    kept: list[Statement] = []
    for number, statement in enumerate(program.statements):
        if number in dropped or statement.uses & gone:
            if statement.target:
                gone.add(statement.target)
        else:
            kept.append(statement)
    outputs = tuple(name for name in program.outputs if name not in gone)
    if not outputs:
        outputs = next(((s.target,) for s in reversed(kept) if s.target), ("x0",))
    return replace(program, statements=tuple(kept), outputs=outputs)


def _renamed(program: FuzzProgram, after: int, old: str, new: str) -> FuzzProgram:
    def change(name: re.Match[str]) -> str:
        return new if name[0] == old else name[0]

    statements = [
        s if n <= after else replace(s, text=NAME.sub(change, s.text), writes=new if s.writes == old else s.writes)
        for n, s in enumerate(program.statements)
    ]
    return replace(
        program, statements=tuple(statements), outputs=tuple(new if n == old else n for n in program.outputs)
    )


def _as_input(program: FuzzProgram, number: int) -> Iterator[FuzzProgram]:
    """A statement's result comes in from outside (its values are then others)."""
    try:
        value = reference_of(program).eager.get(program.statements[number].target)
    except Rejected:
        return
    if value is not None and value.dtype.is_floating_point and value.numel() < 5000:
        name = f"x{len(program.inputs)}"
        spec = InputSpec(tuple(value.shape), value.dtype, number + 1)
        changed = _renamed(program, number, program.statements[number].target, name)
        yield _without(replace(changed, inputs=(*program.inputs, spec)), {number})


def _without_unused_inputs(program: FuzzProgram) -> FuzzProgram:
    text = " ".join([*(s.text for s in program.statements), *program.outputs, *(i.alias for i in program.inputs)])
    used = [n for n in range(len(program.inputs)) if re.search(rf"\bx{n}\b", text)] or [0]
    order = {f"x{old}": f"x{new}" for new, old in enumerate(used)}

    def change(name: re.Match[str]) -> str:
        return order.get(name[0], name[0])

    return replace(
        program,
        inputs=tuple(replace(program.inputs[n], alias=NAME.sub(change, program.inputs[n].alias)) for n in used),
        statements=tuple(
            replace(s, text=NAME.sub(change, s.text), writes=order.get(s.writes, s.writes)) for s in program.statements
        ),
        outputs=tuple(order.get(name, name) for name in program.outputs),
    )


def _resized(program: FuzzProgram) -> Iterator[FuzzProgram]:
    """An extent made smaller everywhere."""
    extents = sorted({n for spec in program.inputs for n in spec.size if n > 1}, reverse=True)
    for old in extents:
        for new in (1, 2, 3, old // 2, old - 1):
            if not 0 < new < old:
                continue

            def change(number: re.Match[str], old: int = old, new: int = new) -> str:
                return str(new) if number[0] == str(old) else number[0]

            mapping = {old: new}
            yield replace(
                program,
                inputs=tuple(spec.resized(mapping) for spec in program.inputs),
                statements=tuple(
                    replace(s, text=re.sub(r"(?<![\w.])\d+(?![\w.])", change, s.text)) for s in program.statements
                ),
                sizes=tuple((mapping.get(a, a), b) for a, b in program.sizes),
            )


def _at(inputs: tuple[InputSpec, ...], number: int, spec: InputSpec) -> tuple[InputSpec, ...]:
    return (*inputs[:number], spec, *inputs[number + 1 :])

"""A random program, from a label: the same label gives the same program."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

import torch

from .inputs import REAL, SCALED, SCALES, InputSpec
from .operations import FLOATS, INTS, Draw, Row, load_table
from .program import FuzzProgram, Statement
from .reference import Raised, Reference, Rejected, reference_of

DTYPES = (
    *(torch.float32,) * 7, *FLOATS, torch.bfloat16, torch.float16, *INTS[:2], torch.int64, torch.uint8, torch.int8,
    torch.int16, torch.uint8, torch.int8,
)  # fmt: skip
MOST_INPUT_ELEMENTS = 20_000
BY_DYNAMO, RAISING = 0.1, 0.04
"""How many programs dynamo captures, and how many of all end with what eager refuses: these take longer than others."""
NESTED, NESTED_GRAD = 0.03, 0.7
"""How many have statements with a graph inside, and how many of these have gradients."""
TINY_OR_HUGE = 0.04
"""How many have inputs of tiny or of huge numbers."""
OWNING = 0.25
"""How many run with their reductions nested."""
SHARED_FIRST, SHARED_BY_DYNAMO = 0.3, 0.25
"""How many of the static ones that run with shared memory and without are compiled for the former, and by dynamo."""


def generate(label: str, dynamic: bool | None = None, grad: bool | None = None) -> tuple[FuzzProgram, Reference]:
    """Returns the program and its values. dynamic, grad: drawn at random if None."""
    rng = random.Random(label)
    drawn_dynamic, drawn_grad, roll = rng.random() < 0.2, rng.random() < 0.12, rng.random()
    dynamic, grad = drawn_dynamic if dynamic is None else dynamic, drawn_grad if grad is None else grad
    nested = roll >= 1 - NESTED
    if nested and not grad:
        grad = random.Random(f"{label} nested").random() < NESTED_GRAD
    by_dynamo = nested or (not grad and roll < BY_DYNAMO)
    raises = by_dynamo and roll < RAISING
    pool = _pool(rng, dynamic)
    inputs = tuple(_input(rng, pool, grad) for _ in range(rng.randint(1, 3)))
    scales = random.Random(f"{label} scale")
    if scales.random() < TINY_OR_HUGE:
        inputs = _scaled(scales, inputs)
    if not dynamic and not grad and rng.random() < 0.08:
        inputs = (*inputs, _alias(rng, inputs))
    sizes = _resized(rng, pool) if dynamic and not by_dynamo else ()
    program = FuzzProgram(inputs, (), (), dynamic, grad, sizes, label, by_dynamo)
    program, reference = _statements(rng, program, pool, ("plain", "nested") if nested else ())
    if raises:
        program, reference = _refused(rng, program, reference, pool)
    nests = random.Random(f"{label} nests").random() < OWNING
    # Nested, a reduction may be made again for each element of a result: no work for large inputs.
    together = program.dynamic and not by_dynamo and not nests
    program = replace(program, outputs=_outputs(rng, program, reference), together=together, nests=nests)
    return _meeting(random.Random(f"{label} shared"), program, reference)


def _meeting(rng: random.Random, program: FuzzProgram, reference: Reference) -> tuple[FuzzProgram, Reference]:
    """Returns a program that writes to an input with another input that it reads after all writes, to be run with the
    two in one memory and in their own, of which either may be first; some by dynamo, which has guards of its own."""
    written = {reference.eager[s.writes].untyped_storage().data_ptr() for s in program.statements if s.writes}
    targets = [
        spec
        for number, spec in enumerate(program.inputs)
        if spec.kind == "plain" and not spec.alias
        if reference.eager[f"x{number}"].untyped_storage().data_ptr() in written
    ]
    if program.grad or program.raises or not targets:
        return program, reference
    target, number = rng.choice(targets), len(program.inputs)
    partner = replace(target, seed=target.seed + 1)
    reference.add_input(f"x{number}", partner)
    read = Statement(f"v{len(program.statements)}", f"x{number}.clone()")
    reference.step(read)
    program = replace(
        program,
        inputs=(*program.inputs, partner),
        statements=(*program.statements, read),
        outputs=(*program.outputs, read.target),
        shift=rng.choice([0, 1, 1, 2, 3, 5, target.storage_size]),
        by_dynamo=program.by_dynamo or (not program.dynamic and rng.random() < SHARED_BY_DYNAMO),
    )
    if not program.dynamic and rng.random() < SHARED_FIRST:
        together = replace(program, inputs=program.other_inputs["shared memory"])
        with suppress(Rejected):
            return together, reference_of(together)
    return program, reference


def _pool(rng: random.Random, dynamic: bool) -> tuple[int, ...]:
    small = [2, 3, 4, 5, 6, 7, 8, 9, 10, 12]
    pool = rng.sample(small, rng.randint(2, 3))
    roll = rng.random()
    if rng.random() < 0.4:
        pool.append(rng.choice([n for n in range(2, 34) if n not in pool]))
    elif roll < 0.25:
        pool.append(rng.choice([64, 65, 100, 130]))
    elif roll < 0.3:
        pool.append(rng.choice([513, 1025, 3000]))
    if rng.random() < (0.15 if dynamic else 0.35):
        pool.append(1)
    if rng.random() < 0.04:
        pool.append(0)
    return tuple(pool)


def _resized(rng: random.Random, pool: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Other extents for those that are symbols; equal ones stay equal."""
    old = [n for n in dict.fromkeys(pool) if n > 1]
    new = rng.sample([n for n in range(2, 34) if n not in old], len(old))
    return tuple(zip(old, new, strict=True))


def _input(rng: random.Random, pool: tuple[int, ...], grad: bool) -> InputSpec:
    rank = rng.choice([0, 1, 1, 2, 2, 2, 2, 3, 3, 4])
    size = [rng.choice(pool) for _ in range(rank)]
    while _count(size) > MOST_INPUT_ELEMENTS:
        size.pop()
    size = [1 if rng.random() < 0.06 else n for n in size]
    dtype = torch.bool if rng.random() < 0.06 else rng.choice(DTYPES)
    if grad and rng.random() < 0.8:
        dtype = rng.choice(FLOATS)
    elif not grad and rng.random() < 0.04:
        dtype = rng.choice(tuple(REAL))
    kind = "special" if dtype.is_floating_point and not grad and rng.random() < 0.06 else "plain"
    if dtype in REAL.values() and not grad and rng.random() < 0.02:
        kind = "negated"
    spec = InputSpec(tuple(size), dtype, rng.randrange(10**6), kind)
    return _strided(rng, spec) if rng.random() < 0.45 else spec


def _strided(rng: random.Random, spec: InputSpec) -> InputSpec:
    """Returns an input with strides other than the dense ones."""
    rank = len(spec.size)
    order = list(range(rank))
    if rng.random() < 0.6:
        rng.shuffle(order)
    steps = tuple(rng.choice([1, 1, 1, 2, 3]) for _ in range(rank)) if rng.random() < 0.4 else ()
    expanded = (rng.randrange(rank),) if rank and rng.random() < 0.2 else ()
    offset = rng.choice([0, 0, 1, 5]) if rng.random() < 0.4 else 0
    windows = rank > 1 and not expanded and rng.random() < 0.05
    return replace(spec, order=tuple(order), steps=steps, expanded=expanded, offset=offset, windows=windows)


def _scaled(rng: random.Random, inputs: tuple[InputSpec, ...]) -> tuple[InputSpec, ...]:
    """Returns inputs, most of those that can of tiny or of huge numbers."""
    kind = rng.choice(tuple(SCALES))
    able = [spec.kind == "plain" and spec.dtype in SCALED and rng.random() < 0.8 for spec in inputs]
    return tuple(replace(spec, kind=kind) if yes else spec for spec, yes in zip(inputs, able, strict=True))


def _alias(rng: random.Random, inputs: tuple[InputSpec, ...]) -> InputSpec:
    """A view of an earlier input."""
    number = rng.randrange(len(inputs))
    texts = ["x{}", "x{}.detach()"]
    if inputs[number].size:
        texts += ["x{}[1:]", "x{}[::2]", "x{}[:1]"]
    if len(inputs[number].size) > 1:
        texts += ["x{}.mT", "x{}.mT"]
    return replace(inputs[number], alias=rng.choice(texts).format(number))


def _statements(
    rng: random.Random, program: FuzzProgram, pool: tuple[int, ...], kinds: tuple[str, ...]
) -> tuple[FuzzProgram, Reference]:
    """The program with statements of these kinds, or of those that suit who captures the program."""
    symbolic = program.dynamic or program.by_dynamo
    kinds = kinds or (("plain", "data") if program.by_dynamo else ("plain",))
    rows = [row for row in load_table() if row.kind in kinds and not (row.static and symbolic)]
    rows = [row for row in rows if not (row.mutates and program.grad)]
    weights = [row.weight for row in rows]
    reference = Reference(program.inputs)
    wanted = rng.choice([2, 3, 4, 6] if program.by_dynamo else [2, 4, 6, 8, 10, 14])
    for _ in range(4 * wanted):
        if len(program.statements) == wanted:
            break
        row: Row = rng.choices(rows, weights)[0]
        drawn = _draw(rng, row, program, reference, pool)
        if drawn is None:
            continue
        larger, statement = drawn
        try:
            reference.step(statement)
        except Rejected:
            _undo(program, larger, reference)
            if statement.writes:  # half done: start over
                reference = reference_of(program)
            continue
        program = replace(larger, statements=(*program.statements, statement))
    return program, reference


def _draw(
    rng: random.Random, row: Row, program: FuzzProgram, reference: Reference, pool: tuple[int, ...]
) -> tuple[FuzzProgram, Statement] | None:
    """The program with the inputs that a statement of the row's kind needs, which the reference has too, and that
    statement."""
    symbolic = program.dynamic or program.by_dynamo
    draw = Draw(rng, reference, pool, symbolic, input_count=len(program.inputs))
    try:
        draft = row.maker(draw)
    except RuntimeError:  # eager computes what a maker asks, and has no kernel for some types
        return None
    if draft is None:
        return None
    for number, spec in enumerate(draw.new_inputs, len(program.inputs)):
        reference.add_input(f"x{number}", spec)
    target = "" if draft.writes or draft.effect else f"v{len(program.statements)}"
    flags = (draft.exact, draft.rough, draft.unsized, draft.centred, draft.deep)
    statement = Statement(target, draft.text, draft.writes, *flags)
    return replace(program, inputs=(*program.inputs, *draw.new_inputs)), statement


def _undo(program: FuzzProgram, larger: FuzzProgram, reference: Reference) -> None:
    """Less the inputs that `_draw` added."""
    for number in range(len(program.inputs), len(larger.inputs)):
        for run in (reference.eager, reference.exact, reference.noisy):
            run.pop(f"x{number}")


def _refused(
    rng: random.Random, program: FuzzProgram, reference: Reference, pool: tuple[int, ...]
) -> tuple[FuzzProgram, Reference]:
    """Returns the program with a last statement that eager refuses; unchanged if none is found."""
    rows = [row for row in load_table() if row.kind == "raising"]
    weights = [row.weight for row in rows]
    for _ in range(10):
        drawn = _draw(rng, rng.choices(rows, weights)[0], program, reference, pool)
        if drawn is None:
            continue
        larger, statement = drawn
        try:
            reference.step(statement)
        except Raised as refusal:
            reference.raised = type(refusal.error)
            return replace(larger, statements=(*program.statements, statement), raises=True), reference
        except Rejected:
            pass
        reference = reference_of(program)
    return program, reference


def _outputs(rng: random.Random, program: FuzzProgram, reference: Reference) -> tuple[str, ...]:
    made = [s.target for s in program.statements if s.target in reference.eager]
    if program.raises:  # what is refused is asked for, too
        return tuple(dict.fromkeys([*made[-2:], program.statements[-1].target or "x0"]))
    if program.grad:
        made = [name for name in made if reference.eager[name].dtype.is_floating_point] or made
    if not made:
        return ("x0",)
    chosen = [made[-1], *rng.sample(made, min(len(made), rng.randint(0, 3)))]
    if rng.random() < 0.1 and not program.grad:
        chosen.append(f"x{rng.randrange(len(program.inputs))}")
    return tuple(dict.fromkeys(chosen))


def _count(size: list[int]) -> int:
    count = 1
    for n in size:
        count *= n
    return count

"""A random program, from a label: the same label gives the same program."""

from __future__ import annotations

import random
from dataclasses import replace

import torch

from .inputs import InputSpec
from .operations import FLOATS, INTS, Draw, Row, load_table
from .program import FuzzProgram, Statement
from .reference import Reference, Rejected, reference_of

DTYPES = (*(torch.float32,) * 8, *FLOATS, torch.bfloat16, *INTS[:2], torch.int64, torch.uint8, torch.int8, torch.int16)
MOST_INPUT_ELEMENTS = 20_000


def generate(label: str, dynamic: bool | None = None, grad: bool | None = None) -> tuple[FuzzProgram, Reference]:
    """The program and its values. dynamic, grad: as drawn if None."""
    rng = random.Random(label)
    drawn_dynamic, drawn_grad = rng.random() < 0.2, rng.random() < 0.12
    dynamic, grad = drawn_dynamic if dynamic is None else dynamic, drawn_grad if grad is None else grad
    pool = _pool(rng, dynamic)
    inputs = tuple(_input(rng, pool, grad) for _ in range(rng.randint(1, 3)))
    if not dynamic and not grad and rng.random() < 0.08:
        inputs = (*inputs, _alias(rng, inputs))
    program = FuzzProgram(inputs, dynamic=dynamic, grad=grad, sizes=_resized(rng, pool) if dynamic else (), label=label)
    program, reference = _statements(rng, program, pool)
    return replace(program, outputs=_outputs(rng, program, reference)), reference


def _pool(rng: random.Random, dynamic: bool) -> tuple[int, ...]:
    small = [2, 3, 4, 5, 6, 7, 8, 9, 10, 12]
    pool = rng.sample(small, rng.randint(2, 3))
    roll = rng.random()
    if roll < 0.25:
        pool.append(rng.choice([16, 17, 31, 33, 64, 65, 100, 130]))
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
    new = rng.sample([n for n in range(2, 20) if n not in old], len(old))
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
    kind = "special" if dtype.is_floating_point and not grad and rng.random() < 0.06 else "plain"
    spec = InputSpec(tuple(size), dtype, rng.randrange(10**6), kind)
    return _strided(rng, spec) if rng.random() < 0.45 else spec


def _strided(rng: random.Random, spec: InputSpec) -> InputSpec:
    """With strides other than the dense ones."""
    rank = len(spec.size)
    order = list(range(rank))
    if rng.random() < 0.6:
        rng.shuffle(order)
    steps = tuple(rng.choice([1, 1, 1, 2, 3]) for _ in range(rank)) if rng.random() < 0.4 else ()
    expanded = (rng.randrange(rank),) if rank and rng.random() < 0.2 else ()
    offset = rng.choice([0, 0, 1, 5]) if rng.random() < 0.4 else 0
    return replace(spec, order=tuple(order), steps=steps, expanded=expanded, offset=offset)


def _alias(rng: random.Random, inputs: tuple[InputSpec, ...]) -> InputSpec:
    """A view of an earlier input."""
    number = rng.randrange(len(inputs))
    texts = ["x{}", "x{}.detach()"]
    if inputs[number].size:
        texts += ["x{}[1:]", "x{}[::2]", "x{}[:1]"]
    if len(inputs[number].size) > 1:
        texts += ["x{}.mT", "x{}.mT"]
    return replace(inputs[number], alias=rng.choice(texts).format(number))


def _statements(rng: random.Random, program: FuzzProgram, pool: tuple[int, ...]) -> tuple[FuzzProgram, Reference]:
    rows = [row for row in load_table() if not (row.static and program.dynamic) and not (row.mutates and program.grad)]
    weights = [row.weight for row in rows]
    reference = Reference(program.inputs)
    wanted = rng.choice([2, 4, 6, 8, 10, 14])
    for _ in range(4 * wanted):
        if len(program.statements) == wanted:
            break
        row: Row = rng.choices(rows, weights)[0]
        draw = Draw(rng, reference, pool, program.dynamic, input_count=len(program.inputs))
        draft = row.maker(draw)
        if draft is None:
            continue
        for number, spec in enumerate(draw.new_inputs, len(program.inputs)):
            reference.add_input(f"x{number}", spec)
        target = "" if draft.writes else f"v{len(program.statements)}"
        statement = Statement(target, draft.text, draft.writes, draft.exact, draft.rough)
        larger = replace(program, inputs=(*program.inputs, *draw.new_inputs))
        try:
            reference.step(statement)
        except Rejected:
            for number in range(len(program.inputs), len(larger.inputs)):
                for run in (reference.eager, reference.exact, reference.noisy):
                    run.pop(f"x{number}")
            if draft.writes:  # half done: start over
                reference = reference_of(program)
            continue
        program = replace(larger, statements=(*program.statements, statement))
    return program, reference


def _outputs(rng: random.Random, program: FuzzProgram, reference: Reference) -> tuple[str, ...]:
    made = [s.target for s in program.statements if s.target]
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

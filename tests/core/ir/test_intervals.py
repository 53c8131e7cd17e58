"""Positions that are computed: the verifier takes those that ranges, clamps, checks and masks keep inside."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from core.ir.harness import CPU, F32, I0, I1, S0, n, program
from litz.ir import Buffer, Layout, Program, Store, build
from litz.ir.index import FloorDiv, PythonMod, placeholder
from litz.ir.interpret import interpret
from litz.ir.intervals import Intervals
from litz.ir.verify import IllegalProgram, verify


def judge(prog: Program, legal: bool, complaint: str = "computed from data") -> None:
    """The verifier takes a legal program, and says what is wrong with another."""
    if legal:
        verify(prog)
    else:
        with pytest.raises(IllegalProgram, match=complaint):
            verify(prog)


def test_a_mask_over_a_shifted_position_keeps_it_inside() -> None:
    """What a gather from a padded tensor becomes: the position is not what the mask compares, but that less 2."""
    row = build.bounded(build.load("at", (I0,), torch.int64), 8)
    shifted = build.call("add", row, build.const(-2, torch.int64))
    low = build.call("ge", shifted, build.const(0, torch.int64))
    both = build.logical_and(low, build.call("lt", shifted, build.const(4, torch.int64)))
    for mask, legal in ((both, True), (low, False)):
        value = build.load("x", (placeholder(0) - 2,), F32, (row,), mask)
        inputs = {"x": ((4,), F32), "at": ((3,), torch.int64)}
        prog = program((Store("out", (I0,), value),), {I0: 3}, {}, inputs, {"out": ((3,), F32)})
        judge(prog, legal)


def test_a_mask_over_a_position_that_is_counted_down_keeps_it_inside() -> None:
    """What a gather from a stack of a tensor and its flip becomes: a number less what the mask compares."""
    row = build.bounded(build.load("at", (I0,), torch.int64), 2)
    place = build.call("add", build.index(I0), build.call("mul", build.const(5, torch.int64), row))
    second = build.call("ge", place, build.const(5, torch.int64))
    for last, mask, legal in ((9, second, True), (10, second, False), (9, None, False)):
        value = build.load("x", (last - 5 * placeholder(0) - I0,), F32, (row,), mask)
        inputs = {"x": ((5,), F32), "at": ((5,), torch.int64)}
        prog = program((Store("out", (I0,), value),), {I0: 5}, {}, inputs, {"out": ((5,), F32)})
        judge(prog, legal)


def _sum(a: object, b: object, factor: int = 1, more: int = 0) -> object:
    product = build.call("mul", build.const(factor, torch.int64), b)
    return build.call("add", build.call("add", build.const(more, torch.int64), a), product)


def _number(kind: str, of: object, number: int) -> object:
    return build.call(kind, of, build.const(number, torch.int64))


A, B = (build.bounded(build.load(name, (I0,), torch.int64), 2) for name in ("at", "to"))
P0, P1 = placeholder(0), placeholder(1)
PLACE = _sum(A, B, 2, 1)
PLACED = P0 + 2 * P1 + 1


@pytest.mark.parametrize(
    ("position", "mask", "legal"),
    [
        # Both halves of a tensor's stack or concatenation with itself, read at an index into all of it.
        (FloorDiv(PLACED, n(2)) - 1, _number("ge", _number("floordiv", PLACE, 2), 1), True),
        (FloorDiv(PLACED, n(2)) - 1, _number("ge", _number("floordiv", PLACE, 2), 0), False),
        (PythonMod(PLACED, n(4)) - 2, _number("ge", _number("remainder", PLACE, 4), 2), True),
        (PythonMod(PLACED, n(4)) - 2, _number("ge", _number("remainder", PLACE, 4), 1), False),
        (PythonMod(PLACED, n(4)), _number("lt", _number("remainder", PLACE, 4), 2), True),
        (PythonMod(PLACED, n(4)), None, False),
        # The first part of a concatenation, of two dimensions itself.
        (FloorDiv(PLACED, n(2)), _number("lt", PLACE, 4), True),
        (FloorDiv(PLACED, n(2)), _number("le", PLACE, 4), False),
        (FloorDiv(PLACED - 2, n(2)), _number("ge", PLACE, 2), True),
        (FloorDiv(PLACED - 2, n(2)), None, False),
        # The same memory under other sizes.
        (PLACED, _number("lt", _number("floordiv", PLACE, 2), 1), True),
        (PLACED, _number("lt", _number("floordiv", PLACE, 3), 1), False),
        (FloorDiv(PLACED + 2, n(2)) - 2, _number("ge", _number("floordiv", PLACE, 2), 1), True),
        (FloorDiv(PLACED + 2, n(2)) - 2, _number("ge", _number("floordiv", PLACE, 2), 0), False),
        # Two positions that are compared with each other.
        (P0 - P1 - 1, build.call("gt", A, B), True),
        (P0 - P1 - 1, build.call("ge", A, B), False),
        (P0 + P1, build.call("lt", A, B), True),
        (P0 + P1, build.call("le", A, B), False),
        (P0 + P1, _number("eq", _sum(A, B), 1), True),
        (P0 + P1, _number("eq", _sum(A, B), 2), False),
        # A loop variable beside them.
        (2 * P0 + I0 - 3, _number("ge", _sum(build.index(I0), A, 2), 3), True),
        (2 * P0 + I0 - 3, _number("ge", _sum(build.index(I0), A, 2), 2), False),
        (2 * P0 + 2 * I0 - 3, build.logical_and(_number("ge", A, 1), _number("eq", build.index(I0), 1)), True),
        (2 * P0 + 2 * I0 - 3, build.logical_and(_number("ge", A, 1), _number("ge", build.index(I0), 1)), False),
    ],
)  # fmt: skip
def test_a_mask_over_what_is_computed_from_positions_keeps_it_inside(
    position: object, mask: object, legal: bool
) -> None:
    value = build.load("x", (position,), F32, (A, B), mask)
    inputs = {"x": ((2,), F32), "at": ((3,), torch.int64), "to": ((3,), torch.int64)}
    prog = program((Store("out", (I0,), value),), {I0: 3}, {}, inputs, {"out": ((3,), F32)})
    judge(prog, legal)


@pytest.mark.parametrize(("limit", "legal"), [(2 * S0, True), (2 * S0 * S0, True), (None, False)])
def test_a_position_in_a_dimension_whose_neighbours_are_symbols(limit: object, legal: bool) -> None:
    """The dimension's own size is a number, but what the position is divided by is none."""
    given = build.load("at", (I0,), torch.int64)
    row = given if limit is None else build.bounded(given, limit)
    value = build.load("x", (FloorDiv(P0, S0), PythonMod(P0, S0)), F32, (row,))
    inputs = {"x": ((2, S0), F32), "at": ((3,), torch.int64)}
    prog = program((Store("out", (I0,), value),), {I0: 3}, {}, inputs, {"out": ((3,), F32)})
    judge(prog, legal)


GIVEN = build.load("at", (I0,), torch.int64)
HERE = build.const(0, torch.int64)
NEAR = build.call("maximum", build.call("minimum", GIVEN, build.const(3, torch.int64)), build.const(-4, torch.int64))


@pytest.mark.parametrize(
    ("position", "mask", "legal"),
    [
        (GIVEN, None, False),
        (build.bounded(GIVEN, 4), None, True),
        (build.bounded(GIVEN, 5), None, False),
        (build.call("minimum", build.call("maximum", GIVEN, HERE), build.const(3, torch.int64)), None, True),
        (build.call("minimum", GIVEN, build.const(3, torch.int64)), None, False),
        (build.call("remainder", GIVEN, build.const(4, torch.int64)), None, True),
        (build.call("add", build.bounded(GIVEN, 3), build.const(1, torch.int64)), None, True),
        (build.call("add", build.bounded(GIVEN, 4), build.const(1, torch.int64)), None, False),
        (build.cast(build.load("small", (I0,), torch.uint8), torch.int64), None, False),
        (build.cast(build.cast(build.load("y", (I0,), torch.float32), torch.int64), torch.int64), None, False),
        (
            GIVEN,
            build.logical_and(
                build.call("ge", GIVEN, HERE), build.call("lt", GIVEN, build.index(n(4)))
            ),
            True,
        ),
        (GIVEN, build.call("ge", GIVEN, HERE), False),
        # Negative positions count from the end.
        (build.call("where", build.call("lt", NEAR, HERE), build.call("add", NEAR, build.const(4, torch.int64)), NEAR), None, True),  # noqa: E501
        (build.call("where", build.call("lt", NEAR, HERE), build.call("add", NEAR, build.const(5, torch.int64)), NEAR), None, False),  # noqa: E501
    ],
)  # fmt: skip
def test_positions_computed_from_data_are_kept_inside(position: object, mask: object, legal: bool) -> None:
    value = build.load("x", (placeholder(0),), torch.float32, (position,), mask)
    inputs = {
        "x": ((4,), torch.float32),
        "at": ((3,), torch.int64),
        "small": ((3,), torch.uint8),
        "y": ((3,), torch.float32),
    }
    prog = program((Store("out", (I0,), value),), {I0: 3}, {}, inputs, {"out": ((3,), torch.float32)})
    judge(prog, legal, "reads x of 4 elements along dimension 0 at a position computed")


def test_what_a_temporary_holds_is_known() -> None:
    """A clamp in one loop, and the read at what it stored in another: as lowerings make them."""
    clamped = build.call("minimum", build.call("maximum", GIVEN, HERE), build.const(3, torch.int64))
    prog = program(
        (Store("t", (I0,), clamped),), {I0: 3}, {}, {"x": ((4,), F32), "at": ((3,), torch.int64)},
        {"t": ((3,), torch.int64)},
    )  # fmt: skip
    value = build.load("x", (placeholder(0),), F32, (build.load("t", (I0,), torch.int64),))
    reader = replace(prog.loops[0], name="loop1", stores=(Store("out", (I0,), value),))
    out = Buffer("out", F32, CPU, Layout.contiguous((n(3),)))
    buffers = {**prog.buffers, "out": out}
    verify(replace(prog, buffers=buffers, operations=(prog.loops[0], reader)))
    plain = replace(prog.loops[0], stores=(Store("t", (I0,), GIVEN),))
    with pytest.raises(IllegalProgram, match="computed from data"):
        verify(replace(prog, buffers=buffers, operations=(plain, reader)))


def _half(value: object) -> object:
    """What `interpolate` reads: a float, rounded towards 0."""
    return build.cast(build.call("mul", build.cast(value, F32), build.const(0.5, F32)), torch.int64)


HERE_I0 = build.index(I0)
FIRST, REST = _number("lt", HERE_I0, 4), _number("ge", HERE_I0, 4)
MIDDLE = build.logical_and(_number("ge", HERE_I0, 2), _number("lt", HERE_I0, 6))
DOUBLE = _number("mul", HERE_I0, 2)
NONE = build.const(0, torch.int64)
FROM_1 = build.call("ge", build.index(I0 - 1), NONE)
SHORTER = {5: Layout.contiguous((n(0),)), 3: Layout.contiguous((n(2),))}


@pytest.mark.parametrize(
    ("position", "mask", "size", "legal"),
    [
        # A part of a concatenation, whose loop was inlined: the mask is about the variable, the position made of it.
        (_half(HERE_I0), FIRST, 2, True),
        (_half(HERE_I0), FIRST, 1, False),
        (_half(HERE_I0), _number("le", HERE_I0, 4), 2, False),
        (_half(HERE_I0), None, 2, False),
        (_half(build.index(I0 - 4)), REST, 2, True),
        (_half(build.index(I0 - 4)), _number("ge", HERE_I0, 1), 2, False),
        (_half(build.index(I0 - 2)), MIDDLE, 2, True),
        (_half(build.index(I0 - 2)), MIDDLE, 1, False),
        (_number("sub", build.call("abs", build.index(I0 - 5)), 0), REST, 3, True),
        (_number("sub", build.call("abs", build.index(I0 - 5)), 0), REST, 2, False),
        # An index that is itself a concatenation.
        (build.call("where", FIRST, DOUBLE, NONE), None, 7, True),
        (build.call("where", FIRST, DOUBLE, NONE), None, 6, False),
        (build.call("where", FIRST, NONE, DOUBLE), None, 7, False),
        (build.call("where", FIRST, DOUBLE, build.call("where", MIDDLE, HERE_I0, NONE)), None, 7, True),
        (build.call("where", FIRST, build.call("where", MIDDLE, DOUBLE, NONE), NONE), None, 7, True),
        (build.call("where", FIRST, build.call("where", MIDDLE, DOUBLE, NONE), NONE), None, 6, False),
        (build.call("where", FIRST, DOUBLE, build.index(n(9))), FIRST, 7, True),
        (build.call("where", FIRST, DOUBLE, build.index(n(9))), MIDDLE, 7, False),
    ],
)
def test_a_mask_over_a_variable_keeps_inside_what_is_computed_from_it(
    position: object, mask: object, size: int, legal: bool
) -> None:
    value = build.load("x", (placeholder(0),), F32, (position,), mask)
    prog = program((Store("out", (I0,), value),), {I0: 8}, {}, {"x": ((size,), F32)}, {"out": ((8,), F32)})
    judge(prog, legal)
    if legal:
        interpret(prog, [torch.zeros(size)])


@pytest.mark.parametrize("other", [5, 3])
def test_a_mask_compares_what_is_made_of_the_position_that_it_narrows(other: int) -> None:
    """What a gather from a concatenation at padded positions becomes: the number that the mask compares the position
    with is a part of the position as well."""
    row = build.call("remainder", build.load("at", (I0 - 1,), torch.int64, mask=FROM_1), build.const(5, torch.int64))
    padded = build.call("where", FROM_1, row, NONE)
    mask = _number("ge", _number("add", padded, 1), other)
    value = build.load("x", (placeholder(0) + 1 - other,), F32, (padded,), mask)
    inputs = {"x": ((6 - other,), F32), "at": ((3,), torch.int64)}
    prog = program((Store("out", (I0,), value),), {I0: 4}, {}, inputs, {"out": ((4,), F32)})
    judge(prog, True)
    judge(replace(prog, buffers={**prog.buffers, "x": replace(prog.buffers["x"], layout=SHORTER[other])}), False)


def test_a_masked_load_has_what_the_buffer_has_where_the_mask_holds() -> None:
    """Elsewhere the load is 0, which is no position once 1 is taken from it."""
    kept = program(
        (Store("t", (I0,), build.call("add", build.bounded(GIVEN, 3), build.const(1, torch.int64))),),
        {I0: 4}, {}, {"x": ((3,), F32), "at": ((4,), torch.int64)}, {"t": ((4,), torch.int64)},
    )  # fmt: skip
    out = Buffer("out", F32, CPU, Layout.contiguous((n(8),)))
    wider = replace(kept.loops[0].ranges[0], size=n(8))
    for mask, legal in ((FIRST, True), (build.logical_and(FIRST, MIDDLE), True), (MIDDLE, False)):
        position = _number("sub", build.load("t", (I0,), torch.int64, (), FIRST), 1)
        value = build.load("x", (placeholder(0),), F32, (position,), mask)
        reader = replace(kept.loops[0], name="loop1", ranges=(wider,), stores=(Store("out", (I0,), value),))
        prog = replace(kept, buffers={**kept.buffers, "out": out}, operations=(kept.loops[0], reader))
        judge(prog, legal)


@pytest.mark.parametrize(("least", "legal"), [(1, True), (0, True), (-1, False)])
def test_a_minimum_of_a_number_and_a_size_is_no_less_than_0(least: int, legal: bool) -> None:
    """The windows of an adaptive pooling: which of 1 and s0 - 1 is smaller is not known."""
    position = build.call("minimum", build.index(I0 + least), build.index(S0 - 1))
    value = build.load("x", (placeholder(0),), F32, (position,))
    prog = program((Store("out", (I0,), value),), {I0: 3}, {}, {"x": ((S0,), F32)}, {"out": ((3,), F32)})
    judge(prog, legal)


@pytest.mark.parametrize("seed", range(40))
def test_intervals_hold_every_value_where_a_mask_holds(seed: int) -> None:
    rng = random.Random(seed)
    extents = {I0: n(rng.choice([1, 4, 7])), I1: n(rng.choice([2, 5]))}
    leaves = [HERE_I0, build.index(I1), build.index(I0 - 3), build.index(2 * I0 - I1), build.index(FloorDiv(I0, n(2)))]
    leaves += [build.index(PythonMod(I0 + I1, n(3))), build.load("at", (I0, I1), torch.int64)]
    kinds = ["add", "sub", "mul", "minimum", "maximum", "abs", "remainder", "where", "small"]

    def condition(depth: int) -> object:
        kind = rng.choice(["lt", "le", "gt", "ge", "eq"])
        found = build.call(kind, number(depth), build.const(rng.randrange(-3, 7), torch.int64))
        return build.logical_and(found, condition(depth)) if rng.random() < 0.4 else found

    def number(depth: int) -> object:
        if depth == 0:
            return rng.choice(leaves)
        kind, first = rng.choice(kinds), number(depth - 1)
        if kind == "abs":
            return build.call("abs", first)
        if kind == "remainder":
            return _number(kind, first, rng.choice([2, 3, 5]))
        if kind == "small":
            return build.cast(build.cast(first, torch.int8), torch.int64)
        if kind == "where":
            return build.call("where", condition(rng.choice([0, depth - 1])), first, number(depth - 1))
        return build.call(kind, first, number(rng.randrange(depth)))

    for _ in range(5):
        value, mask = number(3), condition(rng.choice([0, 0, 1, 2]))
        found = Intervals(extents).where(value, mask)
        shape = tuple(map(int, extents.values()))
        prog = program(
            (Store("v", (I0, I1), value), Store("m", (I0, I1), mask)), {v: int(e) for v, e in extents.items()}, {},
            {"at": (shape, torch.int64)}, {"v": (shape, torch.int64), "m": (shape, torch.bool)},
        )  # fmt: skip
        at = torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(seed))
        values, held = interpret(prog, [at])
        chosen = values[held].tolist()
        assert not chosen or found.low is None or int(found.low) <= min(chosen)
        assert not chosen or found.high is None or max(chosen) <= int(found.high)

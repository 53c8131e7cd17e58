"""Nests of C++ kernels of each kind: verified, read back of their texts, run with torch, and what is wrong with wrong
ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import torch

from litz.codegen.kernel_plan import plan_kernel
from litz.ir import Store, build
from litz.ir.index import placeholder
from litz.ir.interpret import interpret
from litz.schedule.schedule import Kernel
from litz.target import target_of
from litz.targets.cpp.generate import make_nest
from litz.tiles import program as tile
from litz.tiles.program import Each, Line, Nest
from litz_testing.parse.tiles import parse_tiles
from litz_testing.tiles.interpret import TileError, interpret_tiles
from litz_testing.tiles.nest import TooLong, interpret_nest
from litz_testing.tiles.rules import verify_tiles
from litz_tools.nest_text import nest_text
from support.cpp_kernels import Case, I, R, like, load

F32, F16 = torch.float32, torch.float16


def of_rows(columns: int = 300, rows: int = 5) -> Case:
    x = torch.randn(rows, columns)
    row = build.load("x", (I[0], R[0]), F32)
    e = build.call("exp", build.call("sub", row, build.reduce("max", row)))
    store = Store("o", (I[0], R[0]), build.call("div", e, build.reduce("sum", e)))
    return Case([rows], [store], {"x": x}, {"o": torch.empty(rows, columns)}, [columns])


def of_columns(kind: str, rows: int = 70, columns: int = 40) -> Case:
    x = torch.randn(rows, columns)
    store = Store("o", (I[0],), build.reduce(kind, build.load("x", (R[0], I[0]), F32)))
    out = torch.empty(columns, dtype=store.value.dtype)
    return Case([columns], [store], {"x": x}, {"o": out}, [rows])


def of_points(dtype: torch.dtype = F32) -> Case:
    a, b = torch.randn(4, 1100).to(dtype), torch.randn(1100)
    value = build.call("add", build.cast(load("x", a), F32), load("bias", b, I[1]))
    return Case(
        [4, 1100], [Store("o", (I[0], I[1]), build.cast(value, dtype))], {"x": a, "bias": b}, {"o": torch.empty_like(a)}
    )


def transposed() -> Case:
    x = torch.randn(33, 40)
    store = Store("o", (I[0], I[1]), build.call("exp", build.load("x", (I[1], I[0]), F32)))
    return Case([40, 33], [store], {"x": x}, {"o": torch.empty(40, 33)})


def several_rows() -> Case:
    x, w = torch.randn(7, 90), torch.randn(3, 90)
    value = build.reduce("dot", build.load("x", (I[0], R[0]), F32), build.load("w", (I[1], R[0]), F32))
    return Case([7, 3], [Store("o", (I[0], I[1]), value)], {"x": x, "w": w}, {"o": torch.empty(7, 3)}, [90])


def scanned() -> Case:
    x = torch.randn(3, 50)
    value = build.scan("sum", build.load("x", (I[0], R[0]), F32))
    return Case([3], [Store("o", (I[0], R[0]), value)], {"x": x}, {"o": torch.empty(3, 50)}, [50])


def scattered() -> Case:
    x, index = torch.randn(30, 8), torch.randint(0, 5, (30,))
    at = build.bounded(load("index", index, I[0]), 5)
    store, o = Store("o", (placeholder(0), I[1]), load("x", x), (at,), "add"), torch.zeros(5, 8)
    return Case([30, 8], [store], {"x": x, "index": index, "o": o}, {"o": o})


def scattered_and_summed() -> Case:
    """Columns' sums have lanes, and what is scattered beside them goes one by one."""
    x, index = torch.randint(-9, 9, (30, 8)), torch.randint(0, 5, (30,))
    at = build.bounded(load("index", index, R[0]), 5)
    value = build.load("x", (R[0], I[0]), torch.int64)
    stores = [Store("o", (placeholder(0), I[0]), value, (at,), "add"), Store("s", (I[0],), build.reduce("sum", value))]
    o, total = torch.zeros(5, 8, dtype=torch.int64), torch.empty(8, dtype=torch.int64)
    return Case([8], stores, {"x": x, "index": index, "o": o}, {"o": o, "s": total}, [30])


def sums_scattered() -> Case:
    """Columns' sums, which have lanes, are themselves scattered: one by one, after the walk."""
    x, index, o = torch.randn(30, 8), torch.randint(0, 5, (8,)), torch.zeros(5)
    at = build.bounded(load("index", index, I[0]), 5)
    value = build.reduce("sum", build.load("x", (R[0], I[0]), F32))
    store = Store("o", (placeholder(0),), value, (at,), "add")
    return Case([8], [store], {"x": x, "index": index, "o": o}, {"o": o}, [30])


def small(kind: str = "sum") -> Case:
    x = torch.randn(200, 4)
    store = Store("o", (I[0],), build.reduce(kind, build.load("x", (I[0], R[0]), F32)))
    return Case([200], [store], {"x": x}, {"o": torch.empty(200)}, [4])


def padded(dtype: torch.dtype = F16) -> Case:
    """In segments, three of which share their outer loops."""
    x = torch.randn(12, 20, 33).to(dtype)
    mask = None
    for position, size in ((I[1] - 1, 20), (I[2] - 2, 33)):
        for kind, end in (("ge", 0), ("lt", size)):
            mask = build.logical_and(mask, build.call(kind, build.index(position), build.const(end, torch.int64)))
    value = load("x", x, I[0], I[1] - 1, I[2] - 2, mask=mask)
    return Case([12, 22, 37], [Store("o", tuple(I[:3]), value)], {"x": x}, {"o": torch.empty(12, 22, 37, dtype=dtype)})


def resampled() -> Case:
    """Positions that are made once for all rows, and such of which a compiler must not know that they are bools."""
    x = torch.randn(40, 9)
    half = build.call("mul", build.cast(build.index(I[1]), F32), build.const(0.5, F32))
    at = build.cast(
        build.call("minimum", build.call("add", half, build.const(0.25, F32)), build.const(8, F32)), torch.int64
    )
    row = build.cast(build.call("lt", build.index(I[0]), build.const(30, torch.int64)), torch.int64)
    value = build.load("x", (placeholder(0), placeholder(1)), F32, (row, at))
    return Case([64, 18], [Store("o", (I[0], I[1]), value)], {"x": x}, {"o": torch.empty(64, 18)})


def repeated() -> Case:
    """A row of integers that is made once for all rows, in 32 bits, and stored in 64."""
    x = torch.randint(-100, 100, (8,), dtype=torch.int16)
    value = build.cast(build.load("x", (I[1],), torch.int16), torch.int64)
    value = build.call("remainder", value, build.const(3, torch.int64))
    return Case([16, 8], [Store("o", (I[0], I[1]), value)], {"x": x}, {"o": torch.empty(16, 8, dtype=torch.int64)})


def group_norm() -> Case:
    """A block of several short rows."""
    x = torch.randn(2, 300, 3, 20)
    value = build.load("x", (I[0], R[0], I[1], R[1]), F32)
    store = Store("o", (I[0], R[0], I[1], R[1]), build.call("sub", value, build.reduce("welford_mean", value)))
    return Case([2, 3], [store], {"x": x}, {"o": torch.empty(2, 300, 3, 20)}, [300, 20])


CASES: Mapping[str, Callable[[], Case]] = {
    "points": of_points,
    "halves": lambda: of_points(F16),
    "bfloat16": lambda: of_points(torch.bfloat16),
    "transposed": transposed,
    "padded": padded,
    "group norm": group_norm,
    "resampled": resampled,
    "repeated": repeated,
    "rows": of_rows,
    "long rows": lambda: of_rows(5000, 2),
    "row of one": lambda: of_rows(1, 2),
    "no rows": lambda: of_rows(3, 0),
    "several rows": several_rows,
    "small": small,
    "scan": scanned,
    "scatter": scattered,
    "scatter and sum": scattered_and_summed,
    "scatter of sums": sums_scattered,
    **{f"columns of {kind}": (lambda kind=kind: of_columns(kind)) for kind in ("sum", "argmax", "welford_m2", "max")},
    "long columns": lambda: of_columns("sum", 1100, 3),
    "parts of columns": lambda: of_columns("welford_mean", 130, 17),
    "small moments": lambda: small("welford_m2"),
}


def nest_of(case: Case) -> Nest:
    program = case.program()
    loop = program.operations[0]
    plan = plan_kernel(Kernel(case.name, loop, (case.name,), case.inplace), program)
    return make_nest(plan, target_of("cpu"))[1]


def check(case: Case, nest: Nest, order: int = 0) -> None:
    """The nest stores what the interpreter says."""
    memory = {name: like(t) for name, t in {**case.outputs, **case.inputs}.items()}
    expected = interpret(case.program(), [like(t) for t in case.inputs.values()])
    interpret_tiles(nest, memory, dict(case.sizes), order)
    for name, wanted in zip(case.outputs, expected, strict=True):
        torch.testing.assert_close(memory[name], wanted, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_a_nest_stores_what_its_loop_does(name: str) -> None:
    case = CASES[name]()
    nest = nest_of(case)
    assert list(verify_tiles(nest)) == []
    assert parse_tiles(nest_text(nest)) == nest
    for order in (0, 1):
        check(case, nest, order)


# Wrong ones: each is a nest with some lines changed.

Change = Callable[[Line], "Line | None"]


def changed(lines: Sequence[Line], change: Change) -> tuple[Line, ...]:
    found: list[Line] = []
    for line in lines:
        if isinstance(line, (Each, tile.If)):
            line = replace(line, body=changed(line.body, change))
        new = change(line)
        found += [] if new is None else [new]
    return tuple(found)


def by_line(nest: Nest, change: Change) -> Nest:
    return replace(nest, lines=changed(nest.lines, change))


def shared(line: Line) -> Line:
    """Threads share the outermost loop."""
    return replace(line, shared=1) if isinstance(line, Each) and line.axis == "i0" else line


def in_one_place(line: Line) -> Line:
    if not isinstance(line, tile.Store):
        return line
    return replace(line, access=replace(line.access, offset=0 * line.access.offset))


def with_dtype(line: Line) -> Line:
    return replace(line, value=replace(line.value, dtype=torch.int32)) if isinstance(line, tile.Load) else line


def without_loads(line: Line) -> Line | None:
    return None if isinstance(line, tile.Load) else line


def without_made(line: Line) -> Line | None:
    return None if isinstance(line, tile.Fold) and line.step == "make" else line


def without_rooms(line: Line) -> Line | None:
    return None if isinstance(line, tile.Room) else line


def all_in_lanes(line: Line) -> Line:
    return replace(line, vector=True) if isinstance(line, Each) else line


def without_merging(line: Line) -> Line:
    return replace(line, merged=()) if isinstance(line, Each) else line


def without_folds(line: Line) -> Line | None:
    return None if isinstance(line, tile.Fold) and line.step != "make" else line


def along_another_loop(line: Line) -> Line:
    if not isinstance(line, tile.Op) or line.op != "add":
        return line
    return replace(line, args=tuple(replace(arg, axes=frozenset({"i7"})) for arg in line.args))  # type: ignore


WRONG: Mapping[str, tuple[str, Change, str]] = {
    "one place": ("points", lambda line: shared(in_one_place(line)), "at one place"),
    "another type": ("points", with_dtype, "is loaded or stored"),
    "values too few": ("points", without_loads, "is used, and is not there"),
    "nothing held": ("rows", without_made, "holds nothing"),
    "no room": ("rows", without_rooms, "the room"),
    "another loop": ("points", along_another_loop, "which no loop around it does"),
    "lanes in lanes": ("points", all_in_lanes, "lanes within lanes"),
    "branch in lanes": ("parts of columns", all_in_lanes, "decided about within the lanes"),
    "losses of one lane": ("parts of columns", without_merging, "no loop of lanes merges"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_rule_complains_of(name: str) -> None:
    case, change, said = WRONG[name]
    good = nest_of(CASES[case]())
    assert list(verify_tiles(good)) == []
    complaints = list(verify_tiles(by_line(good, change)))
    assert any(said in complaint for complaint in complaints), complaints


def test_a_rule_complains_of_a_combination_that_is_not_one_step_of_memory() -> None:
    def combined(line: Line) -> Line:
        return shared(replace(in_one_place(line), mode="add") if isinstance(line, tile.Store) else line)  # type: ignore

    nest = by_line(nest_of(CASES["points"]()), combined)
    assert any("at one place" in said for said in verify_tiles(replace(nest, atomic=False)))
    assert not any("at one place" in said for said in verify_tiles(replace(nest, atomic=True)))


def test_the_interpreter_sees_two_shares_that_store_at_one_place() -> None:
    case = CASES["points"]()
    with pytest.raises(TileError, match="stored by two shares"):
        check(case, by_line(nest_of(case), lambda line: shared(in_one_place(line))))


@pytest.mark.each_value
@pytest.mark.parametrize("lost", [True, False], ids=["lost", "kept"])
@pytest.mark.parametrize("name", ["columns of welford_m2", "parts of columns"])
def test_the_interpreter_runs_what_is_done_where_values_are_lost_and_where_none_is(name: str, lost: bool) -> None:
    case = CASES[name]()
    nest = nest_of(case)

    def empty(line: Line) -> Line:
        if not isinstance(line, tile.If) or line.lost != lost:
            return line
        return replace(line, body=changed(line.body, without_folds))

    orders = range(6)
    for order in orders:
        check(case, nest, order)
    with pytest.raises(AssertionError):
        for order in orders:
            check(case, by_line(nest, empty), order)


def test_the_interpreter_sees_an_access_outside_of_a_buffer() -> None:
    def beyond(line: Line) -> Line:
        if not isinstance(line, tile.Load):
            return line
        return replace(line, access=replace(line.access, offset=line.access.offset + 10**6))

    case = CASES["rows"]()
    with pytest.raises(TileError, match="lies outside of its"):
        check(case, by_line(nest_of(case), beyond))


def test_what_is_not_put_in_a_room_is_poison() -> None:
    case = CASES["rows"]()
    with pytest.raises(AssertionError, match="nan"):
        check(case, by_line(nest_of(case), lambda line: None if isinstance(line, tile.Put) else line))


def test_a_long_nest_is_given_up() -> None:
    case = CASES["rows"]()
    memory = {name: like(t) for name, t in {**case.outputs, **case.inputs}.items()}
    with pytest.raises(TooLong):
        interpret_nest(nest_of(case), memory, most_lines=10)


def test_texts_are_printed_from_what_the_nest_says() -> None:
    """A nest with another op is another text, and nothing else of the text changes."""
    from litz.targets.cpp.print import Lines, Printer

    def text(nest: Nest) -> list[str]:
        lines = Lines()
        Printer(nest, lines, 100).whole()
        return lines.text

    def other(line: Line) -> Line:
        return replace(line, op="mul") if isinstance(line, tile.Op) and line.op == "sub" else line

    nest = nest_of(CASES["rows"]())
    differ = [
        (old.strip(), new.strip())
        for old, new in zip(text(nest), text(by_line(nest, other)), strict=True)
        if old != new
    ]
    assert differ and all(old.replace(" - ", " * ") == new for old, new in differ)

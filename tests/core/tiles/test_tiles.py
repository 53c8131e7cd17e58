"""TilePrograms of the cases that the Triton code generator is tested with: verified, read back of their texts, run with
torch, and what is wrong with wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from litz.ir.interpret import evaluate
from litz.targets.triton.codegen import TritonCodegen
from litz.tiles import program as tile
from litz.tiles.program import Line, TileProgram
from litz_testing.parse.tiles import parse_tiles
from litz_testing.tiles.interpret import TileError, interpret_tiles
from litz_testing.tiles.rules import verify_tiles
from litz_tools.tile_text import program_text
from support.triton_cases import CASES, Case

SHORT = (
    "finish-columns-apart", "gather-of-one-row", "rows-alike-norm", "rows-in-place", "rows-in-place-long", "symbolic",
    "reduce-row-float32", "reduce-row-bfloat16",
)  # fmt: skip
"""Cases of a kind each, which CI runs beside every ninth."""
MOST_ELEMENTS = 400_000


def tiles_of(case: Case) -> TileProgram:
    return TritonCodegen().tiles(case.plan, case.context)


def run(case: Case, program: TileProgram, order: int = 0) -> dict[str, torch.Tensor]:
    plan, memory = case.plan, case.tensors()
    sizes = {size: int(evaluate(value, case.sizes)) for size, value in zip(plan.sizes, plan.values(plan.sizes))}
    interpret_tiles(program, memory, sizes, order)
    return memory


def check_cases(names: Sequence[str]) -> None:
    assert len(names) > 0
    for name in names:
        case = CASES[name]()
        program = tiles_of(case)
        assert list(verify_tiles(program)) == [], name
        assert parse_tiles(program_text(program)) == program, name
        if max(tensor.numel() for tensor in case.tensors().values()) <= MOST_ELEMENTS:
            case.check(run(case, tiles_of(case)))


@pytest.mark.parametrize("name", [name for name in SHORT if name in CASES])
def test_a_tile_program_stores_what_its_loop_does(name: str) -> None:
    check_cases([name])


def test_every_ninth_tile_program_stores_what_its_loop_does() -> None:
    check_cases(list(CASES)[::9])


@pytest.mark.nightly
@pytest.mark.slow
def test_every_tile_program_stores_what_its_loop_does() -> None:
    check_cases(list(CASES))


def test_the_names_of_short_cases_are_those_of_cases() -> None:
    assert set(SHORT) <= set(CASES)


def test_programs_run_in_any_order() -> None:
    case = CASES["finish-columns-apart"]()
    for order in (1, 2):
        case.check(run(case, tiles_of(case), order))


# Wrong ones: each is a case's program with one line changed.

Change = Callable[[Line], "Line | None"]


def changed(lines: Sequence[Line], change: Change) -> tuple[Line, ...]:
    found: list[Line] = []
    for line in lines:
        if isinstance(line, tile.Walk):
            line = replace(line, body=changed(line.body, change))
        new = change(line)
        found += [] if new is None else [new]
    return tuple(found)


def without_masks(line: Line) -> Line:
    return replace(line, masks=()) if isinstance(line, (tile.Load, tile.Store)) else line


def unfilled(line: Line) -> Line:
    if isinstance(line, (tile.Reduce, tile.Join)):
        return replace(line, args=tuple(arg.of if isinstance(arg, tile.Filled) else arg for arg in line.args))
    return line


def without_first(program: TileProgram) -> TileProgram:
    return replace(program, lines=program.lines[1:])


def by_line(change: Change) -> Callable[[TileProgram], TileProgram]:
    return lambda program: replace(program, lines=changed(program.lines, change))


def at_one_place(line: Line) -> Line:
    zero: Any = 0 * line.access.offset if isinstance(line, tile.Store) else None
    return replace(line, access=replace(line.access, offset=zero)) if isinstance(line, tile.Store) else line


def beyond(line: Line) -> Line:
    if not isinstance(line, tile.Load):
        return line
    return replace(line, access=replace(line.access, offset=line.access.offset + 10**6))


def loaded_as_int(line: Line) -> Line:
    return replace(line, value=replace(line.value, dtype=torch.int32)) if isinstance(line, tile.Load) else line


def stored_first(program: TileProgram) -> TileProgram:
    stores = [line for line in program.lines if isinstance(line, tile.Store)]
    loads = [line for line in program.lines if isinstance(line, tile.Load)]
    late = replace(loads[0], value=replace(loads[0].value, text="late"), access=stores[0].access)
    return replace(program, lines=(*program.lines, replace(late, value=replace(late.value, axes=late.access.axes))))


WRONG: Mapping[str, tuple[Callable[[TileProgram], TileProgram], str]] = {
    "no masks": (by_line(without_masks), "without the mask of"),
    "lanes outside reduced": (by_line(unfilled), "places outside of the row"),
    "a value too few": (without_first, "is used, and is not there"),
    "one place": (by_line(at_one_place), "at one place"),
    "beyond": (by_line(beyond), "elements"),
    "another type": (by_line(loaded_as_int), "is loaded or stored"),
    "loaded late": (stored_first, "is loaded after it was stored"),
}


def rows(columns: int = 19) -> Case:
    """Rows of 19, in a block of 32: their sum, and what is left of each element."""
    from litz.ir import Store, build
    from support.triton_cases import make, output
    from support.triton_cases.case import f32, i0, r0, random

    x = build.load("a", (i0, r0), f32)
    left = build.call("sub", x, build.reduce("sum", x))
    stores = [Store("o", (i0, r0), left), Store("total", (i0,), build.reduce("sum", x))]
    outputs = [output("o", (5, columns), f32), output("total", (5,), f32)]
    return make({"a": random(5, columns, dtype=f32)}, outputs, (5,), (columns,), stores)


@pytest.mark.parametrize("name", WRONG)
def test_a_rule_complains_of(name: str) -> None:
    change, said = WRONG[name]
    good = tiles_of(rows())
    assert list(verify_tiles(good)) == []
    complaints = list(verify_tiles(change(good)))
    assert any(said in complaint for complaint in complaints), complaints


def test_the_interpreter_sees_a_read_outside_of_a_buffer() -> None:
    case = rows()
    with pytest.raises(TileError, match="lies outside of its"):
        run(case, by_line(beyond)(tiles_of(case)))


def test_the_interpreter_sees_two_programs_that_store_at_one_place() -> None:
    case = rows()
    program = tiles_of(case)
    single = tuple(replace(axis, block=1) if axis.name == "x" else axis for axis in program.tiling.axes)
    alone = replace(program, tiling=replace(program.tiling, axes=single))
    with pytest.raises(TileError, match="stored by two programs"):
        run(case, by_line(at_one_place)(alone))


def test_what_a_mask_leaves_out_reaches_the_result_where_it_is_not_left_out_of_the_sum() -> None:
    case = rows()
    case.check(run(case, tiles_of(case)))
    with pytest.raises(AssertionError, match="nan"):
        case.check(run(case, by_line(unfilled)(tiles_of(case))))


def test_texts_are_printed_from_what_the_tile_program_says() -> None:
    """A TileProgram with another op is another text, and nothing else of the text changes."""
    from litz.targets.triton.print import print_program

    program = tiles_of(rows())

    def added(line: Line) -> Line:
        return replace(line, op="add") if isinstance(line, tile.Op) and line.op == "sub" else line

    before, after = (print_program(each).lines for each in (program, by_line(added)(program)))
    differ = [(old.strip(), new.strip()) for old, new in zip(before, after, strict=True) if old != new]
    assert differ == [("tmp2 = tmp0 - tmp1", "tmp2 = tmp0 + tmp1")]

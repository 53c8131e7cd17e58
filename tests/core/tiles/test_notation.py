"""The notation of TilePrograms and Nests: rules as text in, complaint out; texts that run; errors of texts; a line of a
plugin; the table of rows against core's records and against docs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import torch

from litz.tiles import program as tile
from litz.tiles.program import Line, Nest, Other, TileProgram, Value
from litz_testing.parse.cursor import ParseError
from litz_testing.parse.tile_records import READ
from litz_testing.parse.tiles import parse_tiles
from litz_testing.tiles.interpret import TileError, interpret_tiles
from litz_testing.tiles.products import verify_product
from litz_testing.tiles.rules import verify_tiles
from litz_tools import notation
from litz_tools.nest_text import tiles_text
from litz_tools.tile_text import FORMS

ROWS = """\
tiles on i32, 1 warps
  input p0 = a: f32 [5, 19] cpu
  buffer p1 = total: f32 [5] cpu
  buffer p2 = left: f32 [5, 19] cpu
  axis x = i0<5 as x0 in blocks of 1 over programs
  axis r = r0<19 in blocks of 32 whole
  tmp0: f32[x, r] = load p0[r0 + 19*x0] if in r
  tmp1: f32[x] = reduce sum plain filled(tmp0, 0.0:f32)
  tmp2: f32[x, r] = sub tmp0, tmp1
  store set p1[x0] = tmp1
  store set p2[r0 + 19*x0] = tmp2 if in r"""
"""The sum of each row, and what is left of its elements."""

LANES = """\
nest for threads
  input p0 = x: f32 [64, 300] cpu
  buffer p1 = o: f32 [64] cpu
  variables i0<64, r0<300
  work 19200
  each i0<64 shared by threads
    sum0 = reduce sum of f32
    each r0<300 in lanes merges sum0
      v1: f32[i0, r0] = load p0[300*i0 + r0]
      sum0 join v1 at (r0)
    v2: f32[i0] = same sum(sum0):f32[i0]
    store set p1[i0] = v2"""

PRODUCT = """\
tiles on i32, 4 warps
  input p0 = a: f32 [37, 45] cuda:0
  input p1 = b: f32 [45, 29] cuda:0
  buffer p2 = o: f32 [37, 29] cuda:0
  axis y = i0<37 as y0 in blocks of 32 over programs
  axis x = i1<29 as x0 in blocks of 32 over programs
  variables part<1, k0<45
  blocks group 8 split 1 units 1
    accumulator: f32[y, x] = steps ranges k0<45 block 32
      side name a tiling y = i0<37 as y0 by 32 and k = k0<45 as ak0 by 32 opens
        a: f32[y, k] = load p0[ak0 + 45*y0] if in y, in k else 0
      side name b tiling k = k0<45 as bk0 by 32 and x = i1<29 as x0 by 32 opens
        b: f32[x, k] = load p1[29*bk0 + x0] if in x, in k else 0
      accumulator = dot of a, b in ieee into it
    store set p2[x0 + 29*y0] = accumulator if in y, in x"""

SIZES = """\
tiles on INDEX, 1 warps
  size s0 = s24
  size s1 = s99
  input p0 = x: f64 [1, s24 + s99 - 1] stride (Max(1, s24 + s99 - 1), 1) cuda:0
  buffer p1 = o: f64 [1, 4, s24 + s99 - 1] cuda:0
  axis x = i0<4 as x0, i1<s0 + s1 - 1 as x1 in blocks of 32 over programs
  limit s0 + s1 - 1
  limit 4*s0 + 4*s1 - 4
  tmp0: f64[x] = load p0[x1] if in x
  store set p1[s0*x0 + s1*x0 - x0 + x1] = tmp0 if in x"""
"""A bound of what is stored is -3, for sizes of which there are no places."""

TEXTS = {"rows": ROWS, "lanes": LANES, "product": PRODUCT, "sizes": SIZES}
SAID = {
    "a load without its mask": ("rows", "p0[r0 + 19*x0] if in r", "p0[r0 + 19*x0]", "without the mask of r"),
    "a store without its mask": ("rows", "= tmp2 if in r", "= tmp2", "left is accessed without the mask of r"),
    "poison is summed": ("rows", "filled(tmp0, 0.0:f32)", "tmp0", "places outside of the row"),
    "another neutral value": ("rows", "filled(tmp0, 0.0:f32)", "filled(tmp0, 1.0:f32)", "where 1.0 is, not 0.0"),
    "a race of programs": ("rows", "set p1[x0]", "set p1[0] along [x]", "differ in i0 store total at one place"),
    "what was stored is loaded": (
        "rows", "  store set p2", "  tmp3: f32[x] = load p1[x0]\n  store set p2", "total is loaded after it was stored",
    ),
    "beyond the buffer": ("rows", "load p0[r0 + 19*x0]", "load p0[r0 + 19*x0 + 1]", "a is accessed at 95, and has 95"),
    "before the buffer": ("rows", "load p0[r0 + 19*x0]", "load p0[r0 + 19*x0 - 1]", "a is accessed at -1"),
    "another type": ("rows", "a: f32 [5, 19]", "a: bf16 [5, 19]", "a is torch.bfloat16, and torch.float32 is loaded"),
    "no such value": ("rows", "sub tmp0, tmp1", "sub tmp0, tmp9 as f32[x]", "tmp9 is used, and is not there"),
    "another by the same name": (
        "rows", "  store set p2", "  tmp2: f32[x, r] = exp tmp0\n  store set p2", "tmp2 is made twice",
    ),
    "no such op": ("rows", "= sub tmp0", "= subtract tmp0", "subtract is no op"),
    "a race of threads": ("lanes", "p1[i0]", "p1[0]", "shares that differ in i0 store o at one place"),
    "lanes in lanes": ("lanes", "each i0<64 shared by threads", "each i0<64 in lanes", "lanes within lanes"),
    "nothing made it": ("lanes", "sum0 join v1", "sum0 join v3 as f32[i0, r0]", "v3 is used, and is not there"),
    "poison is multiplied": ("product", "in y, in k else 0", "in y, in k", "a is multiplied outside of the depth"),
    "all is multiplied": ("product", "if in y, in k else 0", "if in y else 0", "a is multiplied outside of the depth"),
    "a product's race": ("product", "p2[x0 + 29*y0]", "p2[x0][y, x]", "differ in i0 store o at one place"),
    "a product beyond": ("product", "p1[29*bk0 + x0]", "p1[30*bk0 + x0]", "b is accessed at 1348, and has 1305"),
}  # fmt: skip


def complaints(program: TileProgram | Nest) -> list[str]:
    own = isinstance(program, TileProgram) and program.lines and isinstance(program.lines[0], Other)
    return list(verify_product(program) if own else verify_tiles(program))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_without_a_fault(name: str) -> None:
    found = parse_tiles(TEXTS[name])
    assert complaints(found) == [] and tiles_text(found) == TEXTS[name]


@pytest.mark.parametrize("name", SAID)
def test_what_is_wrong_in_a_text_is_said(name: str) -> None:
    text, old, new, said = SAID[name]
    text = TEXTS[text]
    assert text.count(old) == 1
    wrong = text.replace(old, new).replace(
        "sum0 join v1", "sum0 join v1 as f32[i0, r0]" if "v3:" in new else "sum0 join v1"
    )
    assert any(said in complaint for complaint in complaints(parse_tiles(wrong))), complaints(parse_tiles(wrong))


def test_an_op_may_change_a_tile_in_place() -> None:
    changed = ROWS.replace("  store set p2", "  tmp2: f32[x, r] = neg tmp2\n  store set p2")
    assert complaints(parse_tiles(changed)) == []


def memory() -> dict[str, torch.Tensor]:
    x = torch.arange(95, dtype=torch.float32).reshape(5, 19)
    return {"a": x, "total": torch.zeros(5), "left": torch.zeros(5, 19)}


def test_a_text_runs() -> None:
    found = memory()
    interpret_tiles(parse_tiles(ROWS), found)
    assert found["total"].equal(found["a"].sum(1)) and found["left"].equal(found["a"] - found["a"].sum(1, keepdim=True))


def test_a_text_with_another_op_gives_something_else() -> None:
    found = memory()
    interpret_tiles(parse_tiles(ROWS.replace("= sub tmp0", "= add tmp0")), found)
    assert found["left"].equal(found["a"] + found["a"].sum(1, keepdim=True))


def test_two_programs_of_a_text_that_store_one_element_are_found_when_it_runs() -> None:
    with pytest.raises(TileError, match="stored by two programs"):
        interpret_tiles(parse_tiles(ROWS.replace("set p1[x0]", "set p1[0] along [x]")), memory())


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "expected"),
    [
        ("tiles on i32", "tiles on f32", 1, 10, "a type of positions"),
        ("sub tmp0, tmp1", "sub tmp0, tmp7", 9, 31, "a value of an earlier line"),
        ("load p0", "load p7", 7, 26, "an argument of the kernel"),
        ("19*x0] if", "19*z0] if", 7, 37, "a loop's variable"),
        ("whole", "often", 6, 34, "'whole' or 'walked'"),
        ("tmp1: f32[x] = reduce", "tmp1: f99[x] = reduce", 8, 9, "a type"),
        ("set p1[x0] = tmp1", "set p1[x0] = tmp1 else", 10, 27, "the end of the line"),
    ],
)
def test_errors_name_the_place(old: str, new: str, line: int, column: int, expected: str) -> None:
    assert ROWS.count(old) == 1
    with pytest.raises(ParseError) as caught:
        parse_tiles(ROWS.replace(old, new))
    found = caught.value
    assert (found.line, found.column) == (line, column) and found.expected.startswith(expected), str(found)


# A plugin's lines.


@dataclass(frozen=True)
class Pair:
    """A record that is part of a line."""

    of: Value
    times: float = 1.0


@dataclass(frozen=True)
class Folded(Other):
    """A line without a row: its fields say how it is written."""

    value: Value
    pairs: tuple[Pair, ...]
    by: Value | None = None
    counts: tuple[str | int, ...] = ()
    exact: bool = False
    before: tuple[Line, ...] = ()
    body: tuple[Line, ...] = ()


@dataclass(frozen=True)
class Swapped(Other):
    """A line with a pattern of its own."""

    notation = "{value:new} = {of:value} with its axes swapped[ {times:int} times]"
    value: Value
    of: Value
    times: int = 1


def test_a_plugins_line_has_a_row_without_asking() -> None:
    text = "\n".join([
        *ROWS.splitlines()[:7],
        "  tmp8: f32[r, x] = tmp0 with its axes swapped 3 times",
        "  tmp9: f32[x, r] = folded pairs (pair of tmp0 times 2.0), (pair of tmp8) by tmp0 counts `('x', 3)` exact",
        "    before",
        "      tmp10: f32[x, r] = exp tmp0",
        "    tmp11: f32[x, r] = exp tmp10",
    ])  # fmt: skip
    found = parse_tiles(text.replace("[r, x]", "[x, r]"))
    _, swapped, folded = found.lines
    load = found.lines[0]
    assert isinstance(load, tile.Load) and isinstance(swapped, Swapped) and isinstance(folded, Folded)
    assert (swapped.of, swapped.times, folded.counts, folded.exact) == (load.value, 3, ("x", 3), True)
    assert folded.pairs == (Pair(load.value, 2.0), Pair(swapped.value)) and folded.by == load.value
    assert (len(folded.before), len(folded.body)) == (1, 1)
    assert tiles_text(found) == text.replace("[r, x]", "[x, r]")


# The table.


def named(pieces: tuple[notation.Piece, ...]) -> Iterator[str]:
    for piece in pieces:
        if not isinstance(piece, str):
            yield piece.name


def test_a_row_has_every_field_of_its_record() -> None:
    for kind, rows in notation.ROWS.items():
        for row in rows:
            said = {*named(row.pieces), *row.where, *(name for name, _ in row.bodies)}
            made = kind is tile.Fold and row.where.get("step") == "make"
            assert said >= {"held", "step"} if made else said == {each.name for each in fields(kind)}, row


def test_what_one_table_of_forms_prints_the_other_reads() -> None:
    assert READ.keys() == FORMS.keys()
    used = {
        piece.form
        for rows in notation.ROWS.values()
        for row in rows
        for piece in row.pieces
        if not isinstance(piece, str)
    }
    assert used - {""} <= FORMS.keys() | notation.LISTS.keys()
    assert {*notation.LISTS.values()} <= FORMS.keys()


def patterns() -> list[str]:
    """The rows as docs/tiles.md shows them."""
    rows = (*notation.LINES, *notation.OPERANDS, *notation.MASKS, notation.ACCESS, *notation.HELD)
    return [row.pattern for row in rows]


def test_docs_show_the_patterns_of_all_rows() -> None:
    docs = (Path(__file__).parents[3] / "docs/tiles.md").read_text()
    assert "".join(f"    {pattern}\n" for pattern in patterns()) in docs

"""TilePrograms of products: verified, run with torch against float64, printed; and what is wrong with wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from litz.ir import KernelCall
from litz.tiles.program import Line, TileProgram
from litz_contractions.products.kernel import PART
from litz_contractions.products.lines import Blocks, Panel
from litz_testing.tiles.products import verify_product
from litz_tools.tile_text import program_text
from litz_tools.tiles import tile_lines
from support import gemm_matrix, many_rows_cases, rows_cases
from support.figures import figures_set
from support.kernel_programs import run
from support.wrong_lines import at_one_place, beyond, changed, not_zero, swapped, unmasked

pytest.importorskip("triton")

GEMM = gemm_matrix.CASES
FIRST = (
    "mm-dynamic", "mm-three-users", "mm-rows-gathered", "bmm-split", "bmm-dynamic", "tma-batch", "linear-of-int8",
    "mm-mm-bf16", "int-mm-scaled", "mm-softmax", "linear-of-int4-split", "scaled-mm-f8-out", "scaled-mm-1x128-1x128",
    "conv-grouped-last", "conv-transposed-odd-taps",
)  # fmt: skip
"""Of each kind of line one, with lengths that no tile divides."""
SIZES = tuple(
    next(name for name in GEMM if name.startswith("row-") and length in name)
    for length in ("one-row", "one-column", "one-deep", "nothing-deep")
)
ROWS = ("unsigned", "batch", "float8-split", "normed-int4", "normed-split", "swiglu", "experts-of-one-token")
MANY = ("relu", "apart-of-a-batch")


def checked(module: str, cases: Mapping[str, object], name: str) -> str:
    """ "" or how what TilePrograms store differs from what float64 gives."""
    with mock.patch(f"support.{module}.run", partial(run, tiles=True)):
        return cases[name].check()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("name", [name for name in (*FIRST, *SIZES) if name not in gemm_matrix.UNSUPPORTED])
def test_a_products_tile_program_stores_what_float64_gives(name: str) -> None:
    assert checked("gemm_problem", GEMM, name) == ""


@pytest.mark.parametrize("name", ROWS)
def test_a_tile_program_of_few_rows_stores_what_float64_gives(name: str) -> None:
    assert checked("rows_cases", rows_cases.CASES, name) == ""


@pytest.mark.parametrize("name", MANY)
def test_a_tile_program_of_many_rows_stores_what_float64_gives(name: str) -> None:
    tiles = {"many_rows__tiles": (many_rows_cases.SMALL,), "many_rows__unaligned_tiles": many_rows_cases.UNALIGNED}
    with figures_set(**tiles, many_rows__least_filled_share=0.0):
        assert checked("many_rows_cases", many_rows_cases.CASES, name) == ""


@pytest.mark.nightly
@pytest.mark.slow
def test_every_products_tile_program_stores_what_float64_gives() -> None:
    for name in GEMM.keys() - gemm_matrix.UNSUPPORTED.keys():
        assert checked("gemm_problem", GEMM, name) == "", name
    for name in rows_cases.CASES:
        assert checked("rows_cases", rows_cases.CASES, name) == "", name


def made(name: str) -> TileProgram:
    _, program = GEMM[name].programs()
    (call,) = (op for op in program.operations if isinstance(op, KernelCall))
    (found,) = call.source.tiles
    assert isinstance(found, TileProgram)
    return found


def unfilled(line: Line) -> Line:
    return replace(line, masked=False) if isinstance(line, Panel) else line


def shared(line: Line) -> Line:
    return replace(line, body=(*line.body[:-1], *line.body[-1].body)) if isinstance(line, Blocks) else line  # type: ignore[attr-defined]


WRONG: Mapping[str, tuple[str, Callable[[Line], Line], str]] = {
    "no masks": ("row-plain", unmasked, "without the mask of"),
    "poison multiplied": ("row-plain", not_zero, "is multiplied outside of the depth"),
    "made and not filled": ("mm-rows-gathered", unfilled, "is multiplied outside of the depth"),
    "beyond": ("row-plain", beyond, "elements"),
    "two left tiles": ("row-plain", swapped, "along k"),
    "parts at one place": ("bmm-split", shared, "programs of one block store"),
    "a batch at one place": ("bmm-split", at_one_place, "at one place"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name: str) -> None:
    case, change, complaint = WRONG[name]
    program = made(case)
    assert list(verify_product(program)) == []
    wrong = changed(program, change)
    assert any(complaint in said for said in verify_product(wrong)), list(verify_product(wrong))


def test_a_partial_sum_has_its_part_in_its_place() -> None:
    (blocks,) = made("mm-dynamic-split").lines
    assert isinstance(blocks, Blocks) and blocks.split == 4
    assert PART in blocks.body[-1].access.offset.free_symbols  # type: ignore[union-attr]


TEXT = """\
  axis y = i0<37 as y0 in blocks of 32 over programs
  axis x = i1<29 as x0 in blocks of 32 over programs
  variables part<1, k0<45
  blocks group 8 split 1 units 1
    accumulator: f32[y, x] = steps ranges k0<45 block 32
      side name a tiling y = i0<37 as y0 by 32 and k = k0<45 as ak0 by 32 opens lane 0
        a: f32[y, k] = load p0[ak0 + 45*y0] if in y, in k else 0
      side name b tiling k = k0<45 as bk0 by 32 and x = i1<29 as x0 by 32 opens lane 0
        b: f32[x, k] = load p1[29*bk0 + x0] if in x, in k else 0
      accumulator = dot of a, b in ieee into it
    store set p2[x0 + 29*y0] = accumulator if in y, in x"""


def test_explain_shows_the_tile_programs_of_products() -> None:
    _, program = GEMM["row-plain"].programs()
    report = SimpleNamespace(name="graph", plan=SimpleNamespace(program=program, kernels=(), targets={}))
    name, kernel, *lines = tile_lines([report])  # type: ignore[list-item]
    assert (name, kernel.startswith("  ")) == ("graph:", True)
    assert [line.strip() for line in lines[-len(TEXT.splitlines()) :]] == [line.strip() for line in TEXT.splitlines()]


def test_a_products_tile_program_is_the_text_that_docs_show() -> None:
    assert program_text(made("row-plain")).endswith(TEXT)
    docs = (Path(__file__).parents[2] / "docs/tiles.md").read_text()
    assert "".join(f"    {line}\n" for line in TEXT.splitlines()) in docs

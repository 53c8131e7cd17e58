"""TilePrograms of attention: verified, run with torch against float64, printed; and what is wrong with wrong ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from litz.ir import KernelCall, Program
from litz.tiles import program as tile
from litz.tiles.program import Line, TileProgram
from litz_contractions.attention import lines as own
from litz_testing.tiles.attention import interpret_attention, verify_attention
from litz_tools.tile_text import program_text
from litz_tools.tiles import tile_lines
from support import attention_backward_matrix as backward_cases
from support import attention_matrix, kernel_programs, masked_call_cases, split_cases, written_out_cases
from support.wrong_lines import at_one_place, beyond, changed, not_zero, swapped, unmasked

pytest.importorskip("triton")

FORWARD = (
    "nearly-narrow-far-bounded-lse", "no-bounds", "cut-blocks-score", "dynamic-cut-blocks", "odd-widths-alibi",
    "blocks-longer-than-the-keys", "one-key-one-head-near-soft-cap-negative-scale-uneven-blocks-maxima",
)  # fmt: skip
"""Each line of the judge runs, after each that may come before it. Triton's interpreter runs more cases of the kernels'
makers (test_attention_kernel.py and others), and `make test-nightly` all of them here."""
SPLIT = ("no-key", "bias-least", "float8-bf16-m3fn")
BACKWARD = ("odd", "group", "one-key-for-all", "bf16", "lse-only")
MASKED, WRITTEN_OUT = ("causal-more-queries",), ("causal-padded-odd", "in-float32", "filled-low-rows-bf16")


def checked(module: str, cases: Mapping[str, object], name: str) -> str:
    """ "" or how what TilePrograms store differs from what float64 gives."""
    run = backward_cases.run if module == "attention_backward_matrix" else kernel_programs.run
    with mock.patch(f"support.{module}.run", partial(run, tiles=True)):
        return cases[name].check()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("name", FORWARD)
def test_a_tile_program_stores_what_float64_gives(name: str) -> None:
    assert checked("attention_matrix", attention_matrix.CASES, name) == ""


@pytest.mark.parametrize("name", SPLIT)
def test_a_tile_program_of_few_queries_stores_what_float64_gives(name: str) -> None:
    assert checked("kernel_programs", split_cases.CASES, name) == ""


@pytest.mark.parametrize("name", MASKED)
def test_a_tile_program_of_a_masked_call_stores_what_float64_gives(name: str) -> None:
    assert checked("kernel_programs", masked_call_cases.CASES, name) == ""


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_a_tile_program_of_what_is_written_out_stores_what_float64_gives(name: str) -> None:
    assert checked("written_out_cases", written_out_cases.CASES, name) == ""


@pytest.mark.parametrize("name", BACKWARD)
def test_tile_programs_of_the_backward_store_what_float64_gives(name: str) -> None:
    assert checked("attention_backward_matrix", backward_cases.CASES, name) == ""


@pytest.mark.nightly
@pytest.mark.slow
def test_every_tile_program_of_attention_stores_what_float64_gives() -> None:
    for name in attention_matrix.CASES:
        assert checked("attention_matrix", attention_matrix.CASES, name) == "", name
    for name in split_cases.CASES:
        assert checked("kernel_programs", split_cases.CASES, name) == "", name
    for name in masked_call_cases.CASES:
        assert checked("kernel_programs", masked_call_cases.CASES, name) == "", name
    for name in written_out_cases.CASES:
        assert checked("written_out_cases", written_out_cases.CASES, name) == "", name
    for name, case in backward_cases.CASES.items():
        if not case.unfit:
            assert checked("attention_backward_matrix", backward_cases.CASES, name) == "", name


def programs() -> Mapping[str, Callable[[], Program]]:
    return {
        "forward": lambda: attention_matrix.Case(attention_matrix.operands(1, 1, 20, 24)).programs()[1],
        "few": split_cases.CASES["bias"].compiled,
        "backward": backward_cases.CASES["cut-blocks"].kernels,
    }


@functools.cache
def made(name: str) -> TileProgram:
    call = next(op for op in programs()[name]().operations if isinstance(op, KernelCall))
    found = call.source.tiles[0]
    assert isinstance(found, TileProgram)
    return found


WRONG: Mapping[str, tuple[str, Callable[[Line], Line], str]] = {
    "no masks": ("forward", unmasked, "without the mask of"),
    "no masks of few queries": ("few", unmasked, "without the mask of"),
    "no masks in the backward": ("backward", unmasked, "without the mask of"),
    "poison multiplied": ("forward", not_zero, "is multiplied outside of x"),
    "beyond": ("forward", beyond, "elements"),
    "two left tiles": ("backward", swapped, "do not make"),
    "a head at one place": ("backward", at_one_place, "at one place"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name: str) -> None:
    case, change, complaint = WRONG[name]
    program = made(case)
    assert list(verify_attention(program)) == []
    wrong = changed(program, change)
    assert any(complaint in said for said in verify_attention(wrong)), list(verify_attention(wrong))


def all_shown(line: Line) -> Line:
    """Keys beyond the last count."""
    if isinstance(line, own.Hidden):
        return replace(line, number=replace(line.number, value=0.0))
    return line


def whole_alone(line: Line) -> Line:
    """The keys behind the last whole tile are not walked."""
    return replace(line, which="whole") if isinstance(line, own.Over) else line


def unscaled(line: Line) -> Line:
    """Sums keep their scale when a greater score comes."""
    if isinstance(line, tile.Op) and line.near == "times_row":
        return replace(line, args=(line.args[0], tile.Const(1.0, torch.float32)))
    return line


def forgotten(line: Line) -> Line:
    """The first maximum stays."""
    return replace(line, of=line.into) if isinstance(line, own.Next) else line


@pytest.mark.parametrize("change", [all_shown, whole_alone, unscaled, forgotten])
def test_a_wrong_mask_walk_or_sum_gives_something_else(change: Callable[[Line], Line]) -> None:
    case = attention_matrix.Case(attention_matrix.operands(1, 2, 20, 24))

    def wrong(program: TileProgram, *args: object) -> None:
        made_wrong = changed(program, change)
        assert made_wrong != program
        interpret_attention(made_wrong, *args)  # type: ignore[arg-type]

    assert checked("attention_matrix", {"right": case}, "right") == ""
    with mock.patch("litz_testing.tiles.attention.interpret_attention", wrong):
        assert "error" in checked("attention_matrix", {"wrong": case}, "wrong")


def test_explain_shows_the_tile_programs_of_attention() -> None:
    program = programs()["forward"]()
    report = SimpleNamespace(name="graph", plan=SimpleNamespace(program=program, kernels=(), targets={}))
    name, kernel, *lines = tile_lines([report])  # type: ignore[list-item]
    assert (name, kernel.startswith("  ")) == ("graph:", True)
    assert "\n".join(line.removeprefix("    ") for line in lines) == program_text(made("forward"))


def test_a_tile_program_of_attention_is_the_text_that_docs_show() -> None:
    text = program_text(made("forward"))
    shown = text[text.index("  axis y") :]
    docs = (Path(__file__).parents[2] / "docs/tiles.md").read_text()
    assert "".join(f"    {line}\n" for line in shown.splitlines()) in docs

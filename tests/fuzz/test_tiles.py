"""The fuzzer verifies, reads back and runs the TilePrograms that its programs have, on a GPU and on a processor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any
from unittest.mock import patch

import pytest
import torch

from litz.targets.cpp.generate import make_nest
from litz.targets.triton.codegen import TritonCodegen
from litz.tiles import program as tile
from litz.tiles.program import Nest, TileProgram
from litz_testing.fuzz.check import Checker, Failure
from litz_testing.fuzz.execute import FuzzCompiler
from litz_testing.fuzz.generate import generate
from litz_testing.fuzz.inputs import InputSpec
from litz_testing.fuzz.program import FuzzProgram, Statement
from litz_tools.nest_text import tiles_text

SEEDS = range(3, 9)


@cache
def programs() -> list[FuzzProgram]:
    return [generate(f"tiles:{seed}")[0] for seed in SEEDS]


def first_failures(checker: Checker) -> list[Failure]:
    """Returns the failures of the first two programs that have one."""
    return list(islice((failure for program in programs() if (failure := checker.check(program)) is not None), 2))


def test_the_tile_programs_of_random_programs_store_what_their_loops_do() -> None:
    checker = Checker(FuzzCompiler(compiled=False))
    assert checker.compiler.tiles is not None
    failures = [checker.check(program) for program in programs()]
    assert failures == [None] * len(SEEDS)
    counts = checker.compiler.tiles.counts
    assert counts["verified"] >= counts["run"] >= 2 * len(SEEDS)
    assert counts["run"] > counts["cpu run"] >= len(SEEDS)


def without_masks(program: TileProgram) -> TileProgram:
    def bare(line: tile.Line) -> tile.Line:
        return replace(line, masks=()) if isinstance(line, (tile.Load, tile.Store)) else line

    return replace(program, lines=tuple(map(bare, program.lines)))


tiles: Any = TritonCodegen.tiles


def with_zeros(program: TileProgram) -> TileProgram:
    """Returns the program with loads that give 0 where masks leave elements out."""

    def zero(line: tile.Line) -> tile.Line:
        return replace(line, zero=True) if isinstance(line, tile.Load) else line

    return replace(program, lines=tuple(map(zero, program.lines)))


def with_other_ops(program: TileProgram) -> TileProgram:
    """Sums are differences there, and products sums."""

    def wrong(line: tile.Line) -> tile.Line:
        if isinstance(line, tile.Op) and line.op in ("add", "sub", "mul", "maximum"):
            return replace(line, op="minimum" if line.op == "maximum" else {"add": "sub"}.get(line.op, "add"))
        return line

    return replace(program, lines=tuple(map(wrong, program.lines)))


def test_a_text_that_loses_something_is_a_failure() -> None:
    checker = Checker(FuzzCompiler(compiled=False))
    with patch("litz_testing.fuzz.tiles.tiles_text", lambda made: tiles_text(made).replace(" else 0", "")):
        with patch.object(TritonCodegen, "tiles", lambda self, *args: with_zeros(tiles(self, *args))):
            failures = first_failures(checker)
    assert failures and all("another TileProgram is read of the text" in str(failure) for failure in failures)


@pytest.mark.parametrize("change", [without_masks, with_other_ops])
def test_a_wrong_tile_program_is_a_failure(change: Callable[[TileProgram], TileProgram]) -> None:
    real: Any = TritonCodegen.tiles
    checker = Checker(FuzzCompiler(compiled=False))
    with patch.object(TritonCodegen, "tiles", lambda self, *args: change(real(self, *args))):
        failures = first_failures(checker)
    assert failures and {failure.kind.partition(": ")[2] for failure in failures} == {"TilesWrong TilesWrong"}


def nest_with_other_ops(nest: Nest) -> Nest:
    """The same of a kernel for a processor."""

    def wrong(line: tile.Line) -> tile.Line:
        if isinstance(line, (tile.Each, tile.If)):
            return replace(line, body=tuple(map(wrong, line.body)))
        if isinstance(line, tile.Op) and line.op in ("add", "sub", "mul"):
            return replace(line, op={"add": "sub"}.get(line.op, "add"))
        return line

    return replace(nest, lines=tuple(map(wrong, nest.lines)))


def test_a_wrong_nest_is_a_failure() -> None:
    checker = Checker(FuzzCompiler(compiled=False))
    with patch("litz_testing.fuzz.tiles.make_nest", lambda *args: (None, nest_with_other_ops(make_nest(*args)[1]))):
        failures = first_failures(checker)
    assert failures and {failure.kind.partition(": ")[2] for failure in failures} == {"TilesWrong TilesWrong"}


H16, I64 = torch.float16, torch.int64
CHECKED: dict[str, tuple[tuple[InputSpec, ...], tuple[str, ...]]] = {
    "a group of lanes that is one block (s107i:3552)": (
        (InputSpec((5, 6, 5, 60), H16, 332963),),
        ("torch.nn.functional.layer_norm(x0, (60,), eps=0.1)", "torch.mean(v0, (0, 1, 3))"),
    ),
    "halves at a computed row are widened in blocks (s107i:2349)": (
        (InputSpec((64, 17), H16, 1), InputSpec((64, 17), H16, 2), InputSpec((2, 9), I64, 3, "index", 64)),
        ("torch.logaddexp(x1, x0)", "torch.nn.functional.embedding(x2, v0)"),
    ),
}


@pytest.mark.parametrize("name", CHECKED)
def test_nests_that_are_right_are_found_right(name: str) -> None:
    inputs, texts = CHECKED[name]
    lines = tuple(Statement(f"v{n}", text, rough=True, centred=n == 0) for n, text in enumerate(texts))
    assert Checker(FuzzCompiler()).check(FuzzProgram(inputs, lines, (lines[-1].target,))) is None

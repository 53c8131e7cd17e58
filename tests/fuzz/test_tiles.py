"""The fuzzer verifies and runs the TilePrograms that its programs' kernels have on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from litz.targets.triton.codegen import TritonCodegen
from litz.tiles import program as tile
from litz.tiles.program import TileProgram
from litz_testing.fuzz.check import Checker
from litz_testing.fuzz.generate import generate
from litz_testing.fuzz.program import FuzzProgram

SEEDS = range(3, 9)


def programs() -> list[FuzzProgram]:
    return [generate(f"tiles:{seed}")[0] for seed in SEEDS]


def test_the_tile_programs_of_random_programs_store_what_their_loops_do() -> None:
    checker = Checker(compiled=False)
    assert checker.compiler.tiles is not None
    failures = [checker.check(program) for program in programs()]
    assert failures == [None] * len(SEEDS)
    counts = checker.compiler.tiles.counts
    assert counts["verified"] >= counts["run"] >= len(SEEDS)


def without_masks(program: TileProgram) -> TileProgram:
    def bare(line: tile.Line) -> tile.Line:
        return replace(line, masks=()) if isinstance(line, (tile.Load, tile.Store)) else line

    return replace(program, lines=tuple(map(bare, program.lines)))


def with_other_ops(program: TileProgram) -> TileProgram:
    """Sums are differences there, and products sums."""

    def wrong(line: tile.Line) -> tile.Line:
        if isinstance(line, tile.Op) and line.op in ("add", "sub", "mul", "maximum"):
            return replace(line, op="minimum" if line.op == "maximum" else {"add": "sub"}.get(line.op, "add"))
        return line

    return replace(program, lines=tuple(map(wrong, program.lines)))


@pytest.mark.parametrize("change", [without_masks, with_other_ops])
def test_a_wrong_tile_program_is_a_failure(change: Callable[[TileProgram], TileProgram]) -> None:
    real: Any = TritonCodegen.tiles
    checker = Checker(compiled=False)
    with patch.object(TritonCodegen, "tiles", lambda self, *args: change(real(self, *args))):
        failures = [failure for program in programs() if (failure := checker.check(program)) is not None]
    assert failures and {failure.kind.partition(": ")[2] for failure in failures} == {"TilesWrong TilesWrong"}

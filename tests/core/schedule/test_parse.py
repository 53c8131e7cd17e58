"""A schedule's text is whole: what is read of it is what was printed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from core.schedule.harness import plan_of
from core.schedule.programs import EXAMPLES
from litz.codegen.kernel_plan import plan_kernel
from litz.schedule import Schedule
from litz.target import target_named, target_of
from litz_testing.fuzz.tiles import tiles_of
from litz_testing.parse.cursor import ParseError
from litz_testing.parse.kernel_plans import parse_kernel_plan
from litz_testing.parse.programs import parse_program
from litz_testing.parse.schedules import parse_schedule
from litz_testing.parse.tiles import parse_tiles
from litz_tools.nest_text import tiles_text

GOLDEN = Path(__file__).parent / "golden"
MEMORY = ("address of", "align", "allocate", "free", "look at")


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_golden_files(name: str) -> None:
    """Their plans, as schedules: with buffers that passes over the program have added."""
    text = (GOLDEN / f"{name}.txt").read_text()
    schedule = parse_schedule(text)
    _, _, printed = text.partition("\n\n")
    lines = [line for line in printed.splitlines() if not line.strip().startswith(MEMORY)]
    assert str(schedule).splitlines()[1:] == lines[1:]  # the first counts the loops of the program as passes left it
    assert parse_schedule(str(schedule), schedule.program) == schedule


@pytest.mark.parametrize("name", EXAMPLES)
def test_schedules_of_texts(name: str) -> None:
    """A program's text is as good as the program: its schedule is the same."""
    make, outputs = EXAMPLES[name]
    given = make().program(*outputs, name=name)
    first, second = (plan_of(each) for each in (given, parse_program(str(given))))
    assert (first.program, first.steps, first.memory) == (second.program, second.steps, second.memory)
    schedule = Schedule(first.program, first.steps)
    assert parse_schedule(str(schedule), first.program) == parse_schedule(str(first), first.program) == schedule


@pytest.mark.parametrize("name", EXAMPLES)
def test_plans_and_tile_programs_of_the_golden_files(name: str) -> None:
    schedule = parse_schedule((GOLDEN / f"{name}.txt").read_text())
    parts = [part for kernel in schedule.kernels for part in kernel.parts]
    for part in parts:
        plan = plan_kernel(part, schedule.program)
        assert parse_kernel_plan(str(plan)) == plan, str(plan)
        target = target_of("cpu") if part.device.type == "cpu" else target_named("H100")
        made = tiles_of(plan, target, schedule.program)
        assert parse_tiles(tiles_text(made)) == made, tiles_text(made)
    assert parts or "kernel" not in str(schedule)


TEXT = """\
program p
  size s0 about 64
  input x: f32 [8, s0] cuda:0
  loop op0 [i0<8, i1<s0] cuda:0
    v0: f32 = load x[i0, i1]
    store a[i0, i1] = v0  # f32 [8, s0]
  loop op1 [i0<8] cuda:0
    v0: f32 = load a[i0, 0]
    store b[i0] = v0  # f32 [8]
  loop op2 [i0<8] cuda:0
    v0: f32 = load a[i0, 1]
    store c[i0] = v0  # f32 [8]
  kernel op3 d = @f(c[8])  # f32 [8]
  return b[8], d[8]
schedule p: 3 loops in 1 kernels
  kernel op0 = op0 + op1, a in the memory of x, block=64, warps=4
    loop op0 [i0<8, i1<s0] cuda:0
      v0: f32 = load x[i0, i1]
      store a[i0, i1] = v0  # f32 [8, s0]
    then, by the last of the programs that have a piece of its outputs:
    loop op1 [i0<8] cuda:0
      v0: f32 = load a[i0, 0]
      store b[i0] = v0  # f32 [8]
    beside it, by other programs:
      kernel "op 2" = op2, rows=1
        loop op2 [i0<8] cuda:0
          v0: f32 = load a[i0, 1]
          store c[i0] = v0  # f32 [8]
  kernel op3 d = @f(c[8])  # f32 [8]"""
OBJECTS = {"op3": torch.neg, "op3.source": "its source"}


def test_all_that_a_kernel_has() -> None:
    schedule = parse_schedule(TEXT.replace("@f", "@neg"), objects=OBJECTS)
    assert f"{schedule.program}\n{schedule}" == TEXT.replace("@f", "@neg")
    kernel, call = schedule.steps
    assert kernel.inplace == {"a": "x"} and kernel.settings == {"block": 64, "warps": 4}  # type: ignore[union-attr]
    assert [loop.name for loop in kernel.finish] == ["op1"]  # type: ignore[union-attr]
    (beside,) = kernel.beside  # type: ignore[union-attr]
    assert (beside.name, beside.fused, beside.settings) == ("op 2", ("op2",), {"rows": 1})
    assert call == schedule.program.operations[-1] and call.source == "its source"  # type: ignore[union-attr]
    assert parse_schedule(str(schedule), schedule.program) == schedule


PLAN = """\
kernel op0 on cpu
  size size0 (integer, nonnegative) = TruncToInt(0.5*ToFloat(s58))
  size s58 about 4
  input x: f32 [s58] cpu
  buffer y: f32 [size0] cpu
  loop op0 [i0<size0] cpu
    v0: f32 = load x[i0]
    store y[i0] = v0"""


def test_a_size_may_be_computed_of_one_that_comes_later() -> None:
    """As in the program that the fuzzer makes of rev:12."""
    plan = parse_kernel_plan(PLAN)
    ((size, computed),) = plan.host.items()
    assert (size.name, [symbol.name for symbol in computed.free_symbols]) == ("size0", ["s58"])
    assert parse_kernel_plan(str(plan)) == plan


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ("schedule p", "scheduled p", 15, "'schedule'"),
        ("block=64", "block 64", 16, "'=' or 'in the memory of'"),
        ("then, by the last of", "then, by the first of", 20, "'then, by the last of"),
        (
            "a[i0, i1] = v0  # f32 [8, s0]\n    then",
            "a[i0, i1] = v0  # f32 [8]\n    then",
            19,
            "the type and layout that a",
        ),
        ('kernel "op 2" = op2, rows=1', 'loop "op 2"', 25, "'kernel'"),
    ],
)
def test_errors_name_the_place(old: str, new: str, line: int, expected: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(ParseError, match=f"line {line}, column") as caught:
        parse_schedule(TEXT.replace(old, new), objects=OBJECTS)
    assert caught.value.expected.startswith(expected), str(caught.value)

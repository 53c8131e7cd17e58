"""Nested reductions become Loops of their own, of the same meaning; programs without any stay as they are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from core.ir.test_nested import ATTENTION, LAYER_NORM, MEANINGS, MIXED, SOFTMAX_OF_PRODUCT, inputs
from core.schedule.harness import CPU, GPU, check, passed
from core.schedule.programs import EXAMPLES
from core.schedule.random_programs import Maker
from litz.ir.interpret import interpret
from litz.ir.verify import verify
from litz.schedule import check_schedule, make_schedule, unscheduled
from litz.schedule.check import IllegalSchedule
from litz.schedule.schedule import Kernel, Schedule
from litz.schedule.separate import separated
from litz_plugins import Decision
from litz_testing.fuzz.owning import nested
from litz_testing.parse import parse_program

EAGER_GPU = replace(GPU, launch_us=0.01)
"""One that splits small reductions too."""


def test_softmax_of_a_product() -> None:
    decisions: list[Decision] = []
    assert (
        passed("separate_reductions", SOFTMAX_OF_PRODUCT, decisions=decisions)
        == """program p
  input a: f64 [5, 7] cpu
  input b: f64 [7, 6] cpu
  loop op0_inner0 [i0<5, i1<6 | r0<7] cpu
    v0: f64 = load a[i0, r0]
    v1: f64 = load b[r0, i1]
    v2: f64 = reduce dot v0, v1
    store op0_inner0_0[i0, i1] = v2  # f64 [5, 6]
  loop op0_inner1 [i0<5 | r0<6] cpu
    v0: f64 = load op0_inner0_0[i0, r0]
    v1: f64 = reduce max v0
    store op0_inner1_0[i0] = v1  # f64 [5]
  loop op0_inner2 [i0<5 | r0<6] cpu
    v0: f64 = load op0_inner0_0[i0, r0]
    v1: f64 = load op0_inner1_0[i0]
    v2: f64 = sub v0, v1
    v3: f64 = exp v2
    v4: f64 = reduce sum v3
    store op0_inner2_0[i0] = v4  # f64 [5]
  loop op0 [i0<5, i1<6 | r0<7] cpu
    v0: f64 = load a[i0, r0]
    v1: f64 = load b[r0, i1]
    v2: f64 = reduce dot v0, v1
    v3: f64 = load op0_inner1_0[i0]
    v4: f64 = sub v2, v3
    v5: f64 = exp v4
    v6: f64 = load op0_inner2_0[i0]
    v7: f64 = div v5, v6
    store o[i0, i1] = v7  # f64 [5, 6]
  return o[5, 6]
"""
    )
    ((decision),) = decisions
    assert decision.subject == "op0" and "4 loops" in decision.reason


def test_the_last_reduction_stays_where_it_is_made_once_for_each_point() -> None:
    assert (
        passed("separate_reductions", ATTENTION)
        == """program p
  input a: f64 [5, 4] cpu
  input b: f64 [7, 4] cpu
  input c: f64 [7, 3] cpu
  loop op0_inner0 [i0<5, i1<7 | r0<4] cpu
    v0: f64 = load a[i0, r0]
    v1: f64 = load b[i1, r0]
    v2: f64 = reduce dot v0, v1
    store op0_inner0_0[i0, i1] = v2  # f64 [5, 7]
  loop op0 [i0<5, i1<3 | r0<7] cpu
    v0: i64 = index i0 - r0
    v1: bool = ge v0, 0:i64
    v2: f64 = load op0_inner0_0[i0, r0]
    v3: f64 = where v1, v2, -inf:f64
    v4: f64 = load c[r0, i1]
    v5: f64 = reduce weighted_softmax v3, v4
    store o[i0, i1] = v5  # f64 [5, 3]
  return o[5, 3]
"""
    )


def test_reductions_of_a_row_are_made_once_for_the_row() -> None:
    """The moments of a layer norm hang on the row alone: they are no reductions of every element's own."""
    shapes = [
        (loop.name, str(loop.numel), bool(loop.reduction_ranges)) for loop in separated(parse_program(LAYER_NORM)).loops
    ]
    assert shapes == [("op0_inner0", "s0", True), ("op0_inner1", "s0", True), ("op0", "7*s0", False)]
    plan = check(parse_program(LAYER_NORM), inputs(parse_program(LAYER_NORM)), GPU)
    assert len(plan.kernels) == 1  # fused again, as those of a lowered layer norm are


@pytest.mark.parametrize("name", MEANINGS)
@pytest.mark.parametrize("target", [CPU, EAGER_GPU], ids=["cpu", "gpu"])
def test_kernels_mean_what_the_program_does(name: str, target: object) -> None:
    program = parse_program(MEANINGS[name][0])
    check(program, inputs(program), target, element_wise=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_program_without_nested_reductions_is_the_same_object(name: str) -> None:
    make, outputs = EXAMPLES[name]
    program = make().program(*outputs, name=name)
    assert separated(program) is program


def test_names_that_are_taken() -> None:
    text = MIXED.replace("input b:", "input op0_inner0_0:").replace("load b[", "load op0_inner0_0[")
    program = parse_program(text)
    made = separated(program)
    verify(made)
    assert made.loops[0].name == "op0_inner_0" and len(made.buffers) == len(program.buffers) + 1
    torch.testing.assert_close(interpret(made, inputs(program)), interpret(program, inputs(program)))


def test_attention_over_many_keys_is_split_and_finished() -> None:
    """By the row of weighted_softmax: the parts of its state go to memory, another loop merges them."""
    program = parse_program("""program p
  input a: f32 [2, 6000] cpu
  input b: f32 [6000, 3] cpu
  loop op0 [i0<2, i1<3] cpu
    v0: f32 = load a[i0, r0]
    v1: f32 = load b[r0, i1]
    v2: f32 = reduce[r0<6000] weighted_softmax v0, v1
    store o[i0, i1] = v2  # f32 [2, 3]
  return o[2, 3]""")
    given = [x.float() for x in inputs(program)]
    plan = check(program, given, EAGER_GPU)
    first, _ = plan.kernels
    assert first.loop.name == "op0_parts" and len(first.loop.stores) == 3
    a, b = (x.double() for x in given)
    (found,) = interpret(unscheduled(plan), given)
    torch.testing.assert_close(found.double(), a.softmax(-1) @ b, rtol=1e-5, atol=1e-6)


@pytest.mark.ci_cases("0", "1")
@pytest.mark.parametrize("block", range(4))
def test_random_programs_nested_and_separated(block: int) -> None:
    """Whatever is put inside of each other, it means what it did, and kernels come of it."""
    deepest = owned = 0
    for seed in range(15 * block, 15 * block + 15):
        maker = Maker(7000 + seed)
        program = maker.program(5 + seed % 9)
        made = nested(program)
        verify(made)
        owned += sum(bool(loop.nested) for loop in made.loops)
        deepest = max(deepest, max((len(loop.nested) for loop in made.loops), default=0))
        expected, found = interpret(program, maker.args()), interpret(made, maker.args())
        torch.testing.assert_close(found, expected, equal_nan=True, msg=f"{program}\n{made}")
        assert parse_program(str(made), {op.name: op.target for op in made.externs}) == made
        check(made, maker.args(), GPU if seed % 2 else CPU)
    assert owned > 10 and deepest > 1


def test_a_schedule_has_no_nested_reductions() -> None:
    """Not even of a program that no pass has seen; what a pass makes of a schedule is refused."""
    program = parse_program(ATTENTION)
    schedule = make_schedule(program, target_of=lambda device: CPU)
    check_schedule(schedule)
    assert len(schedule.kernels) == 2
    (loop,) = program.loops
    with pytest.raises(IllegalSchedule, match="a reduction owns r1<4, r0<7; no target generates nested reductions"):
        check_schedule(Schedule(program, (Kernel(loop.name, loop, (loop.name,)),)))

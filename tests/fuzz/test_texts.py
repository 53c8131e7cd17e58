"""What random programs become is read back of its text."""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from litz.codegen.kernel_plan import plan_kernel
from litz.ir import Program
from litz.ir.printer import objects_in
from litz.schedule import unscheduled
from litz.schedule.schedule import Schedule
from litz_testing.fuzz import execute
from litz_testing.fuzz.generate import generate
from litz_testing.fuzz.inputs import make_inputs
from litz_testing.fuzz.owning import nested
from litz_testing.parse.kernel_plans import parse_kernel_plan
from litz_testing.parse.programs import parse_program
from litz_testing.parse.schedules import parse_schedule


def check(program: Program) -> None:
    found = parse_program(str(program), objects_in(program))
    assert found == program and str(found) == str(program), str(program)


def test_no_statement_names_a_device() -> None:
    """A program runs on any device; autocast regions said 'cpu' where the program ran on a GPU."""
    texts = {
        node.value
        for file in Path(execute.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "{0}" in node.value
    }
    assert len(texts) > 200
    assert not [text for text in texts if re.search(r"['\"](cpu|cuda)\b", text)]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("programs", [8, pytest.param(120, marks=pytest.mark.nightly)])
def test_random_programs_are_read_back(programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    schedules: list[Schedule] = []

    def spy(schedule: Any) -> Program:
        schedules.append(schedule)
        return unscheduled(schedule)

    monkeypatch.setattr(execute, "unscheduled", spy)
    compiler = execute.FuzzCompiler(compiled=False)
    for number in range(programs):
        program, _ = generate(f"texts:{number}", grad=False)
        if not program.by_dynamo:  # which takes most of the time, and makes the same graphs
            with suppress(Exception):  # torch refuses some; what litz gets wrong is for the fuzzer's own test
                compiler.compile(program, make_inputs(program.inputs))
    assert len(schedules) > 0.7 * programs
    for schedule in schedules:
        found = parse_schedule(f"{schedule.program}\n{schedule}", objects=objects_in(schedule.program))
        assert found == schedule and str(found) == str(schedule), str(schedule)
        check(unscheduled(schedule))
        check(nested(schedule.program))
        for plan in (plan_kernel(part, schedule.program) for kernel in schedule.kernels for part in kernel.parts):
            assert parse_kernel_plan(str(plan)) == plan, str(plan)

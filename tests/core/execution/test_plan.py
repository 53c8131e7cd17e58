"""ExecutionPlans: what is in one, when two run the same code, and what a wrong one is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from core.schedule.harness import CPU, GPU, plan_prepared
from core.schedule.programs import Writer, call
from litz.execution import ExecutionPlan, IllegalPlan, check_plan, plan_execution
from litz.execution.equal import code_key
from litz.execution.plan import Allocation, Drop
from litz.schedule import make_schedule
from litz_plugins import Estimate, KernelSource


def calls(value: float = 2.0) -> Writer:
    """A loop, a call of its result with a constant, and a loop that adds both, one of them transposed."""
    w = Writer()
    w.input("x", 32, 32)
    w.pointwise("a", (32, 32), lambda i, j: call("exp", w.load("x", i, j)))
    w.call("c", torch.ops.aten.pow.Tensor_Scalar, "a")
    (power,) = (n for n, operation in enumerate(w.operations) if operation.writes == ("c",))
    w.operations[power] = replace(w.operations[power], args=(*w.operations[power].args, value))
    w.pointwise("y", (32, 32), lambda i, j: call("add", w.load("c", j, i), w.load("a", i, j)))
    return w


def plan_of(w: Writer, *outputs: str) -> ExecutionPlan:
    return plan_prepared(w.program(*outputs))


def sources(plan: ExecutionPlan) -> dict[str, KernelSource]:
    """Stand-ins: a text for each kernel that says what it computes."""
    return {
        kernel.name: KernelSource(
            kernel.name, "cpp", str(kernel.loop.stores), "kernel", (*kernel.reads, *kernel.writes)
        )
        for kernel in plan.kernels
    }


def test_a_plan_says_all_that_the_wrapper_does() -> None:
    plan = plan_of(calls(), "y")
    assert [step.name for step in plan.steps] == ["kernel0", "op1", "kernel1"]
    assert plan.inputs.addressed == ("x",) and not plan.inputs.aligned and not plan.inputs.written
    (result,) = plan.results["op1"]
    assert (result.buffer, result.strides) == ("c", "inside"), "only a kernel reads it"
    assert plan.tensors[0].before == (Allocation("a"),) and plan.tensors[0].after == ("x",)
    assert plan.tensors[2].before == (Allocation("y"),) and plan.tensors[2].after == ("a", "c")
    assert "look at the strides of c, inside" in str(plan)


def test_an_output_is_written_over_what_a_call_made() -> None:
    """As a bias is added to a convolution: no second buffer. What a kernel made may lie in an arena."""
    w = Writer()
    w.input("x", 32, 32)
    w.call("c", torch.ops.aten.pow.Tensor_Scalar, "x")
    (power,) = w.operations
    w.operations[0] = replace(power, args=(*power.args, 2.0))
    w.pointwise("y", (32, 32), lambda i, j: call("exp", w.load("c", i, j)))
    plan = plan_of(w, "y")
    assert plan.memory.reuse == {"y": "c"} and plan.memory.peak_bytes == 32 * 32 * 4
    (result,) = plan.results["op0"]
    assert result.strides == "every", "the caller sees them"
    check_plan(plan)
    kept = plan_of(w, "y", "c")
    assert not kept.memory.reuse


def test_a_schedule_has_no_names_to_patch() -> None:
    """Kernels are called after their first operations until the plan numbers them by place."""
    schedule = make_schedule(calls().program("y"), target_of=lambda device: CPU)
    assert [step.name for step in schedule.steps] == ["op0", "op1", "op2"]
    times = plan_execution(schedule, estimate=lambda step, program: Estimate(1, 1, 1, step.name)).estimates
    assert list(times) == ["kernel0", "op1", "kernel1"]


def test_equal_code_is_equal_whatever_its_kernels_are_called() -> None:
    plan = plan_of(calls(), "y")
    steps = tuple(replace(step, name=f"{step.name}_case1") if step in plan.kernels else step for step in plan.steps)
    other = replace(plan, steps=steps, estimates={"kernel0": Estimate(1, 1, 1, "")})
    assert code_key(plan, sources(plan)) == code_key(other, sources(other))
    assert hash(code_key(plan, sources(plan)))


@pytest.mark.parametrize(("one", "other"), [(1.0, 1), (0.0, -0.0), (2.0, 3.0)])
def test_other_constants_are_other_code(one: float, other: float) -> None:
    first, second = plan_of(calls(one), "y"), plan_of(calls(other), "y")
    assert code_key(first, sources(first)) != code_key(second, sources(second))


def test_other_kernels_are_other_code() -> None:
    plan = plan_of(calls(), "y")
    changed = {name: replace(source, text=source.text + " ") for name, source in sources(plan).items()}
    assert code_key(plan, sources(plan)) != code_key(plan, changed)


def test_a_tensor_that_is_gone_is_found() -> None:
    plan = plan_prepared(calls().program("y"), GPU)
    first = replace(plan.tensors[0], after=("x", "a"))
    with pytest.raises(IllegalPlan, match="op1 reads a, of which there is no tensor"):
        check_plan(replace(plan, tensors=(first, *plan.tensors[1:])))
    twice = replace(plan.tensors[1], before=(Drop(("x",)), *plan.tensors[1].before))
    with pytest.raises(IllegalPlan, match="before op1 there is no tensor x"):
        check_plan(replace(plan, tensors=(plan.tensors[0], twice, plan.tensors[2])))


def test_two_steps_of_one_name_are_found() -> None:
    plan = plan_of(calls(), "y")
    same = replace(plan.steps[2], name="kernel0")
    with pytest.raises(IllegalPlan, match="kernel0 is the name of several steps"):
        check_plan(replace(plan, steps=(*plan.steps[:2], same)))

"""Reductions of a few values that lie apart, written out."""

from __future__ import annotations

import pytest
import torch

from core.schedule.harness import CPU, GPU, check, passed, plan_of
from core.schedule.programs import Writer, call
from litz.ir.reductions import REDUCTIONS
from litz_testing.parse.programs import parse_program

KINDS = [kind for kind, row in REDUCTIONS.items() if len(row.parts) == 1 and not row.takes_states and row.arity == 1]


def summed(values: int, kind: str = "sum", dtype: torch.dtype = torch.float32) -> Writer:
    w = Writer()
    w.input("x", 6, values, 40, dtype=dtype)
    w.reduce("y", kind, (6, 40), (values,), lambda i, j, r: w.load("x", i, r, j))
    return w


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("values", [2, 3, 8, 15])
def test_every_kind_gives_the_same(kind: str, values: int) -> None:
    writer = summed(values, kind)
    (kernel,) = check(writer.program("y"), writer.args(), GPU).kernels
    assert not kernel.loop.reduction_ranges
    assert len(kernel.loop.loads) == values


def test_half_types_are_added_up_in_float32() -> None:
    writer = summed(8, dtype=torch.bfloat16)
    (kernel,) = check(writer.program("y"), writer.args(), GPU).kernels
    assert not kernel.loop.reduction_ranges
    assert {str(node.dtype) for node in kernel.loop.nodes if node.op == "add"} == {"torch.float32"}


TWO_RANGES = """\
program few
  input x: f32 [2, 3, 64] cpu
  loop op0 [i0<64 | r0<2, r1<3] cpu
    v0: f32 = load x[r0, r1, i0]
    v1: f32 = reduce sum v0
    store y[i0] = v1  # f32 [64]
  return y[64]
"""
WRITTEN_OUT = """\
program few
  input x: f32 [2, 3, 64] cpu
  loop op0 [i0<64] cpu
    v0: f32 = load x[0, 0, i0]
    v1: f32 = load x[0, 1, i0]
    v2: f32 = add v0, v1
    v3: f32 = load x[0, 2, i0]
    v4: f32 = load x[1, 0, i0]
    v5: f32 = add v3, v4
    v6: f32 = add v2, v5
    v7: f32 = load x[1, 1, i0]
    v8: f32 = load x[1, 2, i0]
    v9: f32 = add v7, v8
    v10: f32 = add v6, v9
    store y[i0] = v10  # f32 [64]
  return y[64]
"""


def test_two_reduction_ranges() -> None:
    assert passed("write_out_few_values", TWO_RANGES, GPU) == WRITTEN_OUT
    (kernel,) = check(parse_program(TWO_RANGES), [torch.randn(2, 3, 64)], GPU).kernels
    assert not kernel.loop.reduction_ranges


def test_what_reads_the_result_is_in_the_kernel() -> None:
    writer = summed(4)
    writer.pointwise("z", (6, 40), lambda i, j: call("mul", writer.load("y", i, j), 2.0))
    schedule = check(writer.program("z"), writer.args(), GPU)
    assert len(schedule.kernels) == 1


def rows() -> Writer:
    w = Writer()
    w.input("x", 64, 4)
    w.reduce("y", "sum", (64,), (4,), lambda i, r: w.load("x", i, r))
    return w


def below_the_greatest(values: int = 4, inputs: int = 1) -> Writer:
    """Two loops over the same values, of which the second stores something for each."""
    w = summed(values, "max")
    names = ["x", "x2"][:inputs]
    w.input("x2", 6, values, 40)
    w.pointwise("z", (6, values, 40), lambda i, r, j: call("sub", w.load(names[-1], i, r, j), w.load("y", i, j)))
    return w


@pytest.mark.parametrize("output", ["z", ("y", "z")], ids=["one of them is read", "both are read"])
def test_a_kernel_that_stores_each_value_is_written_out(output: str | tuple[str, ...]) -> None:
    writer = below_the_greatest()
    outputs = (output,) if isinstance(output, str) else output
    (kernel,) = check(writer.program(*outputs), writer.args(), GPU, element_wise=True).kernels
    assert not kernel.loop.reduction_ranges
    assert len(kernel.loop.loads) == 4
    assert sorted(store.buffer for store in kernel.loop.stores) == sorted([*outputs, "z", "z", "z"])


def test_a_kernel_of_two_reductions_is_written_out() -> None:
    w = summed(4)
    w.reduce("z", "max", (6, 40), (4,), lambda i, j, r: w.load("x", i, r, j))
    w.pointwise("w", (6, 4, 40), lambda i, r, j: call("mul", w.load("y", i, j), w.load("z", i, j)))
    schedule = check(w.program("w"), w.args(), GPU)
    assert not any(kernel.loop.reduction_ranges for kernel in schedule.kernels)


@pytest.mark.parametrize(
    ("writer", "output"),
    [(rows(), "y"), (summed(17), "y"), (summed(4, "welford_mean"), "y"), (below_the_greatest(16, 2), "z")],
    ids=["side by side", "too many", "a state of parts", "too many loads to hold"],
)
def test_others_stay_reductions(writer: Writer, output: str) -> None:
    schedule = check(writer.program(output), writer.args(), GPU)
    assert any(kernel.loop.reduction_ranges for kernel in schedule.kernels)


def test_a_cpu_keeps_its_vectors_of_accumulators() -> None:
    (kernel,) = plan_of(summed(4).program("y"), CPU).kernels
    assert kernel.loop.reduction_ranges

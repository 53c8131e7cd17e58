"""Collectives that work on their argument: schedule text in, schedule text out."""

from __future__ import annotations

import pytest

from core.schedule.harness import passed

pytest.importorskip("torch.distributed._functional_collectives")

REDUCED = """\
program reduced
  input x: f32 [4] cpu
  loop op0 [i0<4] cpu
    v0: f32 = load x[i0]
    v1: f32 = exp v0
    store y[i0] = v1  # f32 [4]
  collective op1 z = _c10d_functional.all_reduce.default(y[4], "sum", "0") group "0" ranks [0, 1]  # f32 [4]
  wait op2 w = _c10d_functional.wait_tensor.default(z[4]) w aliases z  # f32 [4]
  return w[4]
schedule reduced: 1 loops in 1 kernels
  kernel op0 = op0
    loop op0 [i0<4] cpu
      v0: f32 = load x[i0]
      v1: f32 = exp v0
      store y[i0] = v1  # f32 [4]
  collective op1 z = _c10d_functional.all_reduce.default(y[4], "sum", "0") group "0" ranks [0, 1]  # f32 [4]
  wait op2 w = _c10d_functional.wait_tensor.default(z[4]) w aliases z  # f32 [4]
"""
BEFORE, _, SCHEDULE = REDUCED.partition("schedule ")
SCHEDULE = "schedule " + SCHEDULE


def test_a_temporary_that_nobody_else_reads_is_reduced_where_it_lies() -> None:
    in_place = SCHEDULE.replace("all_reduce.default", "all_reduce_.default").replace(
        "ranks [0, 1]", "ranks [0, 1] mutates y z aliases y"
    )
    assert in_place != SCHEDULE and passed("reduce_in_place", REDUCED) == in_place


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return w[4]", "return w[4], y[4]"),
        ("all_reduce.default(y[4]", "all_reduce.default(x[4]"),
        ("all_reduce.default", "all_reduce_coalesced_.default"),
    ],
    ids=["it is returned", "it is the caller's", "another op"],
)
def test_others_stay(old: str, new: str) -> None:
    text = REDUCED.replace(old, new)
    assert text != REDUCED and passed("reduce_in_place", text) == SCHEDULE.replace(old, new)

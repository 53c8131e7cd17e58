"""A part of the conformance run that fits into CI: `make conformance` runs all of it.

Every fourth operator in float32 (with its backward if it has one), and every fortieth in each other dtype; sizes
static for one half of them and dynamic for the other. Grouped, so that pytest-xdist has pieces of some seconds to deal
out. CI runs every eighth group, `make test-all` all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("expecttest", reason="torch.testing's operator table needs it")

from litz_testing.conformance.cases import DTYPES, Job, jobs
from litz_testing.conformance.check import Way
from litz_testing.conformance.edges import edge_calls, edge_jobs, edge_ops
from litz_testing.conformance.known import reason_of
from litz_testing.conformance.results import failures
from litz_testing.conformance.workers import Settings, run_job

EVERY = {torch.float32: 4}
OTHERS = 40
GROUP = 12


def _jobs() -> list[Job]:
    found: list[Job] = []
    for shift, dtype in enumerate(DTYPES):
        step = EVERY.get(dtype, OTHERS)
        found += jobs((dtype,))[shift % step :: step]
    return found


def _groups() -> list[list[tuple[Job, bool]]]:
    numbered = [(job, bool(number % 2)) for number, job in enumerate(_jobs())]
    return [numbered[start : start + GROUP] for start in range(0, len(numbered), GROUP)]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _params() -> list[Any]:
    return [
        pytest.param(group, marks=[pytest.mark.thorough] if number % 8 else [], id=str(group[0][0]))
        for number, group in enumerate(_groups())
    ]


@pytest.mark.parametrize("group", _params())
def test_operators(group: list[tuple[Job, bool]]) -> None:
    outcomes = []
    for job, dynamic in group:
        outcomes += run_job(job, Settings(samples=1, dynamic=(dynamic,), modes=("either",)))
    bad = [outcome for outcome in failures(outcomes) if not reason_of(outcome)]
    assert not bad, "\n".join(f"{outcome.case} {outcome.status}: {outcome.detail}\n{outcome.source}" for outcome in bad)


STRICT = Way(options={"numerics.mode": "strict"}, bits=True)
EXACTLY = (
    *(
        ("nn.functional.dropout", torch.float32),
        ("softmax", torch.float16),
        ("nn.functional.layer_norm", torch.float32),
    ),
    *(
        ("addcmul", torch.bfloat16),
        ("cumsum", torch.float32),
        ("index_add", torch.float32),
        ("var_mean", torch.float32),
    ),
    *(("nn.functional.hardswish", torch.bfloat16), ("nn.functional.linear", torch.float32), ("sum", torch.int8)),
)
"""Operators that are compared bit for bit in CI: random numbers, pieces that litz fuses elsewhere, sums, halves."""


def _exact_params() -> list[Any]:
    few = [[Job(name, dtype)] for name, dtype in EXACTLY]
    others = jobs((torch.float32,))[::8] + jobs((torch.bfloat16,))[1::20]
    many = [others[start : start + GROUP] for start in range(0, len(others), GROUP)]
    return [
        *(pytest.param(group, id=str(group[0])) for group in few),
        *(pytest.param(group, marks=pytest.mark.nightly, id=str(group[0])) for group in many),
    ]


@pytest.mark.parametrize("group", _exact_params())
def test_operators_have_eagers_bits_in_strict_mode(group: list[Job]) -> None:
    settings = Settings(samples=1, dynamic=(False,), modes=("either",), way=STRICT)
    outcomes = [outcome for job in group for outcome in run_job(job, settings)]
    assert any(outcome.status == "passed" for outcome in outcomes)
    bad = [outcome for outcome in failures(outcomes) if not reason_of(outcome)]
    assert not bad, "\n".join(f"{outcome.case} {outcome.status}: {outcome.detail}\n{outcome.source}" for outcome in bad)


EDGES = (
    *(("add.Tensor", torch.int8), ("sub.Scalar", torch.bool), ("masked_fill.Scalar", torch.float16)),
    *(
        ("bitwise_left_shift.Tensor", torch.int8),
        ("floor_divide", torch.int64),
        ("native_dropout_backward", torch.uint8),
    ),
)


@pytest.mark.parametrize("name, dtype", EDGES)
def test_numbers_at_the_edges(name: str, dtype: torch.dtype) -> None:
    (job,) = edge_jobs((dtype,), f"^aten::{name}$")
    outcomes = list(run_job(job, Settings(samples=2, dynamic=(False,))))
    assert len(outcomes) >= 2 and "skipped" not in {outcome.status for outcome in outcomes}
    bad = [outcome for outcome in failures(outcomes) if not reason_of(outcome)]
    assert not bad, "\n".join(f"{outcome.case} {outcome.status}: {outcome.detail}\n{outcome.source}" for outcome in bad)


def test_integers_have_tensors_of_their_edges() -> None:
    assert {"aten::abs", "aten::sum", "aten::cumsum", "aten::pow.Tensor_Tensor"} <= {*edge_ops(True)} - {*edge_ops()}
    taken, _ = edge_calls("aten::gcd", torch.int16)
    assert taken is not None
    pairs = {pair for a, b in zip(taken.tensors[::2], taken.tensors[1::2]) for pair in zip(a.view(-1), b.view(-1))}
    values = (-(2**15), 2**15 - 1, -1, 2)
    assert {(int(a), int(b)) for a, b in pairs} >= {(a, b) for a in values for b in values}
    taken, _ = edge_calls("aten::bitwise_right_shift.Tensor_Scalar", torch.uint8)
    assert taken is not None and all(f", {number})" in taken.text for number in (-1, 0, 7, 8, -8, 256))


def test_the_edges_are_found_in_the_schemas() -> None:
    assert {"aten::add.Tensor", "aten::full", "aten::clamp", "aten::masked_fill_.Scalar"} <= {*edge_ops()}
    taken, refused = edge_calls("aten::masked_fill.Scalar", torch.int8)
    assert taken is not None and "-128)" in taken.text and "-129)" not in taken.text
    assert any("-129)" in call.text for call in refused) and any("300)" in call.text for call in refused)

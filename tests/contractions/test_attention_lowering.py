"""flex_attention as an `Attention`, as products and loops, or as the library call that it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from litz.ir import Extern, KernelCall, Program, Template
from litz.pipeline import make_compiler
from litz_contractions.attention.operation import Attention
from support.attention_matrix import (
    CASES,
    Case,
    alibi,
    causal,
    near,
    operands,
    padding,
    prefix,
    relative,
    soft_cap,
    window,
)
from support.compare import check, litz
from support.interpreted import mostly
from support.retarget import cuda_schedules

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile.*"),
    pytest.mark.usefixtures("attention_untraced"),
]


def program_of(case: Case, decisions: list[Any] | None = None) -> Program:
    """For CUDA, as it was lowered: contractions stay library calls."""
    torch._dynamo.reset()
    compiler = make_compiler(None, {"disable_plugins": ("autotune", "estimate")})
    tensors, fn = case.make(), case.function()
    (schedule,) = cuda_schedules(
        lambda backend: torch.compile(fn, backend=backend, dynamic=case.dynamic)(*tensors), compiler, decisions
    )
    return schedule.program


def attention(case: Case) -> Attention:
    (found,) = (op for op in program_of(case).operations if isinstance(op, Attention))
    return found


# ------------------------------------------------------------------------------------------------- as many operations


ON_A_CPU = {
    "bf16": Case(operands(dtype=torch.bfloat16), lse=True),
    "dynamic-grouped": Case(operands(heads=4, shared=2), dynamic=True, score_mod=alibi, lse=True),
    "bounded-dynamic": Case(operands(queries=70, keys=60), dynamic=True, mask=near, lse=True),
    "two-parts-masked": Case(operands(width=130, value_width=36), lse=True),
    "negative-scale": Case(scale=-0.3, lse=True),
    "maxima": Case(operands(batch=4), mask=padding, per_batch=True, lse=True),
    "far-half": CASES["bf16-far"],  # a product of a half value and a position is rounded by nobody
    "window-blocks-of-no-tile": Case(operands(queries=64, keys=32), mask=window, block=(100, 72), lse=True),
}
"""Sizes, blocks and masks are in e2e/test_attention_on_cpu.py; what else the cases have is for the GPU's tiles."""


@pytest.mark.ci_cases("bf16", "dynamic-grouped", "two-parts-masked", "maxima", "far-half")
@pytest.mark.parametrize("name", mostly({**ON_A_CPU, **CASES}, tuple(CASES)))
def test_on_a_cpu_it_is_as_good_as_eager(name: str) -> None:
    case = {**ON_A_CPU, **CASES}[name]
    torch.manual_seed(0)
    (report,) = check(case.function(), *case.make(), dynamic=case.dynamic)
    externs = [op for op in report.program.operations if isinstance(op, Extern)]
    calls = [op for op in externs if not isinstance(op, (Template, KernelCall))]
    assert not [op.target_name for op in calls if "flex" in op.target_name]
    kernels = [op for op in externs if isinstance(op, KernelCall)]
    assert len(kernels) == 1 or [op.kind for op in externs if isinstance(op, Template)] == ["bmm", "bmm"]


def test_float64_on_a_cpu() -> None:
    check(Case(mask=causal, score_mod=soft_cap).function(), *(x.double() for x in operands()()))


def test_all_results_and_what_is_made_of_them() -> None:
    case = Case(operands(batch=4), mask=padding, per_batch=True, lse=True)
    inner = case.function()

    def f(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out, lse = inner(query * 2, key, value)
        return out.transpose(1, 2).flatten(2).relu(), lse.exp()

    check(f, *case.make())


def test_keys_that_heads_share_are_not_repeated() -> None:
    case = Case(operands(heads=4, shared=4))
    (report,) = check(case.function(), *case.make())
    made = [b for b in report.program.buffers.values() if b.kind == "temporary" and report.program.writers[b.name]]
    largest = max((math.prod(map(int, b.layout.size)) for b in made), default=0)
    assert largest <= 2 * 4 * 40 * 50  # the scores, where they are made at all


# ---------------------------------------------------------------------------------------------------- as one operation


def test_a_plain_attention_has_no_bodies() -> None:
    found = attention(Case())
    assert (found.score, found.mask, found.blocks) == (None, None, None)
    assert found.scale == 0.25 and found.kind == "flex_attention" and found.group == 1
    assert found.query.layout.size == (2, 2, 40, 16) and found.key.layout.size == (2, 2, 50, 16)


def test_a_score_mod_and_a_mask_are_bodies() -> None:
    found = attention(Case(operands(heads=4, shared=2), mask=prefix, score_mod=relative))
    assert found.score is not None and found.mask is not None and found.blocks is not None
    assert [str(r) for r in found.score.ranges] == ["i0<2", "i1<4", "i2<40", "i3<50"]
    assert found.group == 2
    assert {load.buffer for load in found.score.loads} - {"score"} <= set(found.reads)
    assert not any(node.op == "bounded" for node in found.score.nodes)  # the table is long enough
    assert found.mask.stores[0].value.dtype == torch.bool and not found.mask.loads


def test_blocks_are_of_a_constant_size() -> None:
    found = attention(Case(dynamic=True, mask=causal, lse=True))
    assert found.blocks is not None and (found.blocks.queries, found.blocks.keys) == (32, 32)
    assert found.query.layout.size[2].is_Symbol


def test_a_captured_tensor_that_is_a_view_is_read_where_it_lies() -> None:
    table = torch.randn(100, 4).t()[1:3]
    bias = lambda s, b, h, q, k: s + table[h, q + 2]
    found = attention(Case(score_mod=bias))
    assert found.score is not None
    (load,) = (load for load in found.score.loads if load.buffer != "score")
    assert load.buffer in found.reads


def test_no_kernel_for_float64() -> None:
    case = Case(operands(dtype=torch.float64))
    kinds = [op.kind for op in program_of(case).operations if isinstance(op, Template)]
    assert kinds == ["bmm", "bmm"]


# --------------------------------------------------------------------------------------------------- the library call

TOTALS = torch.ones(3, 3)

REFUSED: dict[str, Callable[..., Any]] = {
    "a product": lambda s, b, h, q, k: s + (TOTALS @ TOTALS)[h, h],
    "a sum": lambda s, b, h, q, k: s + TOTALS.sum(),
}


@pytest.mark.ci_cases("a product")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_a_body_stays_a_library_call(name: str) -> None:
    decisions: list[Any] = []
    case = Case(score_mod=REFUSED[name])
    operations = program_of(case, decisions).operations
    assert any(isinstance(op, Extern) and op.target_name == "flex_attention" for op in operations)
    assert not any(isinstance(op, Template) for op in operations)
    reasons = [d.reason for d in decisions if d.stage == "lower"]
    assert reasons[0].startswith("not lowered: aten.") and all("flex_attention" in each for each in reasons[1:])
    check(case.function(), *case.make())


def test_a_position_outside_of_a_captured_tensor_is_an_error() -> None:
    short = torch.randn(10)
    case = Case(score_mod=lambda s, b, h, q, k: s + short[k])
    with pytest.raises(IndexError):
        litz(case.function())(*case.make())

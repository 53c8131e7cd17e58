"""Attention that a model writes out: found, in Triton's interpreter against float64, compiled for sm_90, and when the
kernel is taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from litz.ir import KernelCall, Template
from litz.ir.interpret import interpret
from litz.pipeline import make_compiler
from litz.schedule.choices import Replacement, substituted
from litz.schedule.schedule import Schedule
from litz.targets.triton.compile import compile_kernel, make_target
from litz_contractions.attention.written_out import find_written_out
from litz_contractions.module import Unsuitable
from litz_plugins import Decision
from support.eager_models import MODELS, eager_model
from support.interpreted import asked_for, interpreted, mostly
from support.kernel_programs import cpu
from support.retarget import cuda_schedules
from support.triton_compiled import variants_of
from support.written_out_cases import CASES, attention_of, in_pieces_merged, plain, scores

pytestmark = pytest.mark.xdist_group("written-out interpreter")  # the cases run once
SM_90 = make_target((9, 0))


@pytest.fixture(scope="session")
def problems(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """For each case "" or what went wrong."""
    return interpreted("support.written_out_cases", asked_for(request, __name__))


LIKE_ANOTHER = (
    "plain-fp16", "filled-low-rows-bf16", "pieces-bf16", "pieces-merged-bf16", "causal-low-bf16", "causal-padded-bf16",
    "causal-where-fp16", "t5-bf16", "one-batch", "one-head", "dynamic-causal", "plain-even", "in-float32-fp16",
    "filled-rows-are-nan-bf16", "added-low-rows-fp16", "added-low-rows-bf16", "pieces-float32", "dynamic-filled",
    "plain-bf16", "unscaled", "dropout-of-nothing", "filled-low", "added-low-rows", "pieces-causal", "flat",
    "odd-widths", "causal-low-more-queries", "causal-padded-odd", "one-batch-one-head", "filled", "dynamic",
)  # fmt: skip
"""What is written out stands in another case, which has another type or more beside it; each type has cases."""


@pytest.mark.parametrize("name", mostly(CASES, LIKE_ANOTHER))
def test_is_no_worse_than_eager(name: str, problems: Mapping[str, str]) -> None:
    assert problems[name] == ""


@pytest.mark.parametrize("name", ["plain", "filled-rows-are-nan", "t5", "from-linear", "grouped"])
def test_the_meaning_of_the_kernel_is_what_it_replaces(name: str) -> None:
    before, after, given = CASES[name].programs()
    assert not any(isinstance(op, Template) and op.kind == "bmm" for op in after.operations)
    for output, wanted in zip(interpret(cpu(after), given), interpret(cpu(before), given), strict=True):
        torch.testing.assert_close(output, wanted, equal_nan=True)


@pytest.mark.ci_cases("filled-rows-are-nan", "deberta")
@pytest.mark.parametrize(
    "name", ["plain-fp16", "deberta", "t5-bf16", "filled-rows-are-nan", "dynamic-causal", "matrix", "causal-padded"]
)
def test_kernels_compile(name: str) -> None:
    source = CASES[name].kernel().source
    assert all(compile_kernel(source, SM_90, variant).asm["cubin"] for variant in variants_of(source))


# ---------------------------------------------------------------------------------------------------------------- found


def test_what_is_made_of_it() -> None:
    """The scale, a mask of -inf as a mask, one of the least number as a part of the body."""
    _, _, found, _ = CASES["filled"].found()
    assert found.attention.scale == 0.25 and found.attention.mask is not None and found.attention.score is None
    _, _, found, _ = CASES["filled-low"].found()
    assert found.attention.scale == 0.25 and found.attention.mask is None and found.attention.score is not None
    _, _, found, _ = CASES["plain"].found()
    assert found.attention.scale == 0.25 and found.attention.mask is None and found.attention.score is None
    _, _, found, _ = CASES["grouped"].found()
    assert int(found.attention.group) == 2
    assert math.isnan(found.attention.nothing)


def test_operands_are_read_where_they_come_from() -> None:
    program, _, found, _ = CASES["from-linear"].found()
    refs = (found.attention.query, found.attention.key, found.attention.value)
    (projection,) = (op for op in program.operations if isinstance(op, Template) and op.kind == "mm")
    assert {ref.buffer for ref in refs} == set(projection.outputs)
    assert len(found.absorbs) == len(found.loops) + 1 + 3  # the copies of query, key and value


@pytest.mark.parametrize("name", ["causal-low", "causal-padded", "causal-where"])
def test_masked_tiles_are_walked_only_where_nothing_was_seen(name: str) -> None:
    text = CASES[name].kernel().source.text
    assert text.count("for place in range(") == 2 and "tl.where(tl.min(maximum, 0) < -1e+37" in text


def test_float16s_least_number_is_no_mask() -> None:
    """A score of 65504 would weigh as much as another of 0: all tiles are walked."""
    text = CASES["causal-where-fp16"].kernel().source.text
    assert "tl.min(maximum, 0)" not in text


def no_softmax(query: Any, key: Any, value: Any) -> Any:
    return scores(query, key).relu() @ value


def over_queries(query: Any, key: Any, value: Any) -> Any:
    return scores(query, key).softmax(-2) @ value


def returned(query: Any, key: Any, value: Any) -> Any:
    weights = scores(query, key).softmax(-1)
    return weights @ value, weights


def used_twice(query: Any, key: Any, value: Any) -> Any:
    weights = scores(query, key).softmax(-1)
    return weights @ value, weights @ (value + 1)


def without_maximum(query: Any, key: Any, value: Any) -> Any:
    weights = scores(query, key).exp()
    return (weights / weights.sum(-1, keepdim=True)) @ value


def other_maximum(query: Any, key: Any, value: Any) -> Any:
    raw = scores(query, key)
    weights = (raw - (raw * 2).amax(-1, keepdim=True)).exp()
    return (weights / weights.sum(-1, keepdim=True)) @ value


def other_sum(query: Any, key: Any, value: Any) -> Any:
    raw = scores(query, key)
    weights = (raw - raw.amax(-1, keepdim=True)).exp()
    return (weights / (weights * 2).sum(-1, keepdim=True)) @ value


def turned(query: Any, key: Any, value: Any) -> Any:
    raw = scores(query, key)
    return (raw + raw.transpose(-1, -2)).softmax(-1) @ value


def dropped(query: Any, key: Any, value: Any) -> Any:
    return F.dropout(scores(query, key).softmax(-1), 0.5) @ value


@pytest.mark.parametrize(
    "function",
    [no_softmax, over_queries, returned, used_twice, without_maximum, other_maximum, other_sum, turned, dropped],
)
def test_what_is_no_attention(function: Callable[..., Any]) -> None:
    program, _ = replace(CASES["plain"], function=function, make=square).captured()
    products = [op for op in program.operations if isinstance(op, Template)]
    assert len(products) >= 2
    for product in products:
        with pytest.raises(Unsuitable):
            find_written_out(product, program)


def square() -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(2, 2, 48, 48) for _ in range(3))


def test_training_stays_as_it_is() -> None:
    """Someone reads the weights: the backward."""
    inputs = [torch.randn(2, 2, 48, 16, requires_grad=True) for _ in range(3)]
    torch._dynamo.reset()
    found = cuda_schedules(
        lambda backend: torch.compile(plain, backend=backend)(*inputs).sum().backward(),
        make_compiler(None, {"disable_plugins": ("autotune", "estimate")}),
    )
    assert len(found) == 2
    for schedule in found:
        with pytest.raises(Unsuitable):
            attention_of(schedule.program)


# --------------------------------------------------------------------------------------------------------------- chosen


def scheduled(
    function: Callable[..., Any], *inputs: torch.Tensor, decisions: list[Decision] | None = None, **options: Any
) -> Schedule:
    torch._dynamo.reset()

    def compiled(backend: Any) -> None:
        with torch.no_grad():
            torch.compile(function, backend=backend)(*inputs)

    (schedule,) = cuda_schedules(compiled, make_compiler(None, options), decisions)
    return schedule


def test_the_estimate_takes_it_where_scores_are_many() -> None:
    decisions: list[Decision] = []
    inputs = [torch.zeros(4, 16, 1024, 64, dtype=torch.bfloat16) for _ in range(3)]
    schedule = scheduled(plain, *inputs, decisions=decisions)
    (call,) = (step for step in schedule.steps if isinstance(step, KernelCall))
    assert not schedule.kernels and not [step for step in schedule.externs if isinstance(step, Template)]
    assert any("triton attention" in decision.chosen for decision in decisions)
    assert [step.name for step in schedule.steps] == [call.name]


def test_the_estimate_leaves_it_where_they_are_few() -> None:
    decisions: list[Decision] = []
    schedule = scheduled(plain, *(torch.zeros(1, 2, 64, 64).half() for _ in range(3)), decisions=decisions)
    assert not any(isinstance(step, KernelCall) for step in schedule.steps)
    assert any("written out it takes" in decision.reason for decision in decisions)


def test_few_queries_are_left_with_a_reason() -> None:
    decisions: list[Decision] = []
    query, key = torch.zeros(4, 16, 8, 64).half(), torch.zeros(4, 16, 1024, 64).half()
    schedule = scheduled(plain, query, key, key, decisions=decisions)
    assert not any("attention" in step.name for step in schedule.steps)
    assert any("queries" in decision.reason for decision in decisions)


@pytest.mark.ci_cases("gpt2", "t5", "deberta")
@pytest.mark.parametrize("name", MODELS)
def test_models_write_no_scores(name: str) -> None:
    """With `attn_implementation="eager"`: one kernel of attention a layer, and nothing as large as the scores."""
    model, given = eager_model(name)
    model = model.eval().to(torch.bfloat16)
    torch._dynamo.reset()

    def compiled(backend: Any) -> None:
        with torch.no_grad():
            torch.compile(model, backend=backend)(**given)

    schedules = cuda_schedules(compiled)
    written = [
        (name, int(schedule.program.buffers[name].layout.span))
        for schedule in schedules
        for step in schedule.steps
        for name in step.writes
    ]
    symbols = [step.source.symbol for s in schedules for step in s.steps if isinstance(step, KernelCall)]
    assert any(symbol.startswith("litz_attention") for symbol in symbols), symbols
    assert not [name for name, span in written if span >= 8 * 8 * 512 * 512]


def test_a_kernel_that_takes_what_its_call_does_not_name_is_refused() -> None:
    """What reads memory unseen would read it when it is someone else's."""
    before, after, _ = CASES["plain"].programs()
    (call,) = (op for op in after.operations if isinstance(op, KernelCall))
    gone = [
        op for op in before.operations if op.name not in {op.name for op in after.operations} or op.name == call.name
    ]
    first = next(op for op in gone if isinstance(op, Template))
    absorbs = tuple(op.name for op in gone if op.name != first.name)
    whole = Replacement((replace(call, name=first.name),), (), absorbs)
    assert substituted(before, first, whole)
    forgetful = replace(whole, operations=(replace(call, name=first.name, args=call.args[1:]),))
    with pytest.raises(ValueError, match="which its call does not name"):
        substituted(before, first, forgetful)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_torchs_own_pieces_are_one_kernel(dtype: torch.dtype) -> None:
    """In float32, as torch computes attention where it has no fused kernel, with heads put together after it."""
    decisions: list[Decision] = []
    given = [torch.randn(4, 12, 384, 64).to(dtype) for _ in range(3)]
    schedule = scheduled(in_pieces_merged, *given, torch.ones(384, 384).bool(), decisions=decisions)
    (call,) = schedule.steps
    assert isinstance(call, KernelCall) and "triton attention" in str(decisions)
    text = call.source.text
    assert text.count("tl.dot(rest, ") == text.count("tl.dot(rounded, ") > 0


def test_what_stays_float32_is_not_narrowed() -> None:
    program, _ = CASES["pieces-kept"].captured()
    _, found, _ = attention_of(program)
    assert not found.attention.doubled

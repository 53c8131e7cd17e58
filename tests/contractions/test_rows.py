"""Products of few rows: their kernels in Triton's interpreter against float64, how many there are, and for Hopper."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

import pytest

pytest.importorskip("triton")

import torch
import torch.nn.functional as F

from litz.ir import KernelCall, Program
from litz.ir.interpret import interpret
from litz.ir.verify import verify
from litz.targets.triton.compile import compile_kernel, make_target
from support.interpreted import asked_for, interpreted, mostly
from support.kernel_programs import cpu
from support.retarget import cuda_schedules
from support.rows_cases import CASES

pytestmark = pytest.mark.xdist_group("rows interpreter")  # the cases run once


@functools.cache
def programs(name: str) -> tuple[Program, Program]:
    """Of a case, as it was captured and with its kernels: several tests look at one."""
    return CASES[name].programs()


@pytest.fixture(scope="module")
def problems(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """For each case "" or what went wrong."""
    return interpreted("support.rows_cases", asked_for(request, __name__))


LIKE_ANOTHER = (
    "float8-bf16", "float8-e5m2-bf16", "float8-fnuz", "float8-swiglu", "gated-half", "normed-bf16", "normed-half",
    "normed-two-rows", "normed-int8", "normed-int4", "three-of-one-row", "gated-int4", "experts-of-one-token",
)  # fmt: skip
"""Of each another case has the same part of the kernel, beside another type or part."""


@pytest.mark.parametrize("name", mostly(CASES, LIKE_ANOTHER))
def test_gives_what_float64_gives(name: str, problems: Mapping[str, str]) -> None:
    assert problems[name] == ""


@pytest.mark.parametrize(
    "name", ["one", "swiglu", "gated-int4", "gate-seen", "three-of-one-row", "two-of-int4", "experts-of-tokens"]
)
def test_the_meaning_of_a_kernel_is_what_it_replaces(name: str) -> None:
    before, after = programs(name)
    given = list(CASES[name].make())
    for output, wanted in zip(interpret(cpu(after), list(given)), interpret(cpu(before), list(given)), strict=True):
        torch.testing.assert_close(output, wanted, atol=2e-2, rtol=2e-2)


@pytest.mark.ci_cases(
    "normed-int8-split",
    "two-of-int4",
    "gated-int4-blocks",
    "float8-e5m2-bf16",
    "float8-microscaled",
    "experts-of-tokens",
    "unsigned",
    "normed-pair",
)
@pytest.mark.parametrize(
    "name",
    [
        "swiglu",
        "gated-bf16",
        "gated-int4-blocks",
        "float8-swiglu",
        "three-of-one-row",
        "two-of-int4",
        "unsigned",
        "float8",
        "float8-bf16",
        "float8-blocks",
        "float8-e5m2",
        "float8-e5m2-bf16",
        "float8-fnuz",
        "float8-e5m2fnuz",
        "float8-turned",
        "float8-microscaled",
        "experts-of-tokens",
        "experts-in-int8",
        "normed-bf16",
        "normed-pair",
        "normed-int8-split",
        "normed-int4",
    ],
)
def test_the_kernels_compile_for_hopper(name: str) -> None:
    _, program = programs(name)
    for call in program.operations:
        if isinstance(call, KernelCall):
            assert compile_kernel(call.source, make_target((9, 0))).asm["cubin"]


def test_the_experts_of_a_token_are_read_where_they_lie() -> None:
    """By the estimate: only those that are chosen are read, once, and nothing is written out."""

    def run(weights: torch.Tensor, chosen: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("ti,taoi->tao", x, weights[chosen])

    weights, x = torch.zeros(8, 3584, 1024, dtype=torch.bfloat16), torch.zeros(4, 1024, dtype=torch.bfloat16)
    chosen = torch.tensor([[3, 1], [0, 7], [2, 2], [5, 6]])
    torch._dynamo.reset()
    with torch.no_grad():
        (schedule,) = cuda_schedules(lambda backend: torch.compile(run, backend=backend)(weights, chosen, x))
    (call,) = schedule.steps
    assert isinstance(call, KernelCall) and "arg0_1" in call.reads
    assert sum(int(schedule.program.buffers[name].nbytes) for name in call.writes) < 2**20


def test_rows_that_are_gathered_are_looked_up_once_a_tile() -> None:
    """Before the walk along the depth."""
    _, program = programs("experts-of-tokens")
    (call,) = (op for op in program.operations if isinstance(op, KernelCall))
    before, _, walk = call.source.text.partition("for offset in range(")
    assert "device_assert" in before and "device_assert" not in walk


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("float8", True),
        ("float8-e5m2-bf16", True),
        ("float8-swiglu", True),
        ("float8-blocks", True),
        ("float8-microscaled", True),
        ("float8-turned", False),
        ("float8-odd-depth", False),
    ],
)
def test_float8_is_converted_once_two_at_a_time_where_it_lies_along_the_depth(name: str, words: bool) -> None:
    _, program = programs(name)
    (call,) = (op for op in program.operations if isinstance(op, KernelCall))
    walk = call.source.text.partition("for offset in range(")[2]
    products, loads = walk.count("tl.dot("), walk.count("uint16")
    assert "_to_float8" not in walk and (loads > 0) == words
    assert walk.count("_word_float8(") == loads == (products // 2 if words else 0)
    halves = re.findall(r"_half_float8\(.*?, \"(\w+)\"\)", walk)
    assert len(halves) == halves.count("f8e8m0fnu") + (0 if words else products)


def test_what_follows_two_products_is_part_of_their_kernel() -> None:
    _, program = programs("gated-bf16")
    (call,) = program.operations
    assert isinstance(call, KernelCall) and call.source.text.count("a = tl.load") == 1
    assert call.source.text.count("tl.store") == 1 and "accumulator2" in call.source.text


def test_products_in_one_launch_read_nothing_of_each_other() -> None:
    """What a user of the second product writes may not be there yet when a user of the first reads it."""
    _, program = programs("gate-seen")
    (call,) = (operation for operation in program.operations if isinstance(operation, KernelCall))
    assert set(call.outputs).isdisjoint(call.reads)


@pytest.mark.parametrize(
    ("name", "operations"),
    [
        ("normed", 1),
        ("normed-split", 1),
        ("normed-bf16", 1),
        ("normed-pair", 1),
        ("normed-int8", 1),
        ("normed-int8-split", 1),
        ("normed-int4", 1),
        ("normed-two-rows", 3),
        ("normed-half", 3),
        ("norm-seen", 3),
    ],
)
def test_the_norm_of_one_row_is_part_of_the_products_that_alone_read_it(name: str, operations: int) -> None:
    _, program = programs(name)
    assert len(program.operations) == operations
    verify(program)


def test_a_row_is_read_before_the_walk_and_added_up_after_it() -> None:
    _, program = programs("normed-split")
    (call,) = program.operations
    assert isinstance(call, KernelCall)
    before, _, after = call.source.text.partition("for offset in range(")
    assert "tl.load" in before and "tl.sum" not in before and after.count("tl.sum(") == 1


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 4])
def test_a_norm_and_its_products_are_as_exact_as_eager(rows: int) -> None:
    torch.manual_seed(0)
    x, g = 30 * torch.randn(rows, 4096, device="cuda").bfloat16(), torch.randn(4096, device="cuda").bfloat16()
    weights = [(torch.randn(n, 4096, device="cuda") / 64).bfloat16() for n in (4096, 1024)]

    def fn(x: torch.Tensor, g: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
        y = F.rms_norm(x, (4096,), g, 1e-5)
        return [F.linear(y, weight) for weight in weights]

    exact = fn(x.double(), g.double(), *(weight.double() for weight in weights))
    found = torch.compile(fn, backend="litz", dynamic=False)(x, g, *weights)
    for own, wanted, eager in zip(found, exact, fn(x, g, *weights), strict=True):
        assert (own - wanted).norm() <= 1.05 * (eager - wanted).norm()


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_gate_and_up_are_as_exact_as_eager(rows: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(rows, 4096, device="cuda").bfloat16()
    gate, up = ((torch.randn(14336, 4096, device="cuda") / 64).bfloat16() for _ in range(2))
    fn = lambda x, gate, up: F.silu(F.linear(x, gate)) * F.linear(x, up)
    exact = fn(x.double(), gate.double(), up.double())
    found = torch.compile(fn, backend="litz", dynamic=False)(x, gate, up)
    assert (found - exact).norm() <= 1.05 * (fn(x, gate, up) - exact).norm()

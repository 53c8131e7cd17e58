"""Products of few rows: their kernels in Triton's interpreter against float64, how many there are, and for Hopper."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

pytest.importorskip("triton")

import torch

from litz.ir import KernelCall
from litz.ir.interpret import interpret
from litz.ir.verify import verify
from litz.runtime.triton_build import compile_kernel, make_target
from support.gemm_cases import cpu
from support.interpreted import interpreted
from support.rows_cases import CASES

pytestmark = pytest.mark.xdist_group("rows interpreter")  # the cases run once


@pytest.fixture(scope="module")
def problems() -> Mapping[str, str]:
    """For each case "" or what went wrong."""
    return interpreted("support.rows_cases")


@pytest.mark.parametrize("name", CASES)
def test_gives_what_float64_gives(name: str, problems: Mapping[str, str]) -> None:
    assert problems[name] == ""


@pytest.mark.parametrize("name", CASES)
def test_products_of_one_activation_are_one_launch(name: str) -> None:
    _, program = CASES[name].programs()
    assert sum(isinstance(op, KernelCall) for op in program.operations) == CASES[name].kernels
    verify(program)


@pytest.mark.parametrize("name", ["one", "swiglu", "three-of-one-row", "two-of-int4"])
def test_the_meaning_of_a_kernel_is_what_it_replaces(name: str) -> None:
    before, after = CASES[name].programs()
    given = list(CASES[name].make())
    for output, wanted in zip(interpret(cpu(after), list(given)), interpret(cpu(before), list(given)), strict=True):
        torch.testing.assert_close(output, wanted, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(
    "name", ["swiglu", "three-of-one-row", "two-of-int4", "unsigned", "float8", "float8-bf16", "float8-blocks"]
)
def test_the_kernels_compile_for_hopper(name: str) -> None:
    _, program = CASES[name].programs()
    for call in program.operations:
        if isinstance(call, KernelCall):
            assert compile_kernel(call.source, make_target((9, 0))).asm["cubin"]

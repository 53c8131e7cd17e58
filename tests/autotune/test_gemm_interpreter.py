"""The templates' kernels in Triton's interpreter against float64, with their users fused into them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

pytest.importorskip("triton")

from litz.ir import KernelCall
from litz.ir.interpret import interpret
from support.gemm_matrix import CASES, LIKE_ANOTHER, case_params
from support.interpreted import asked_for, interpreted
from support.kernel_programs import cpu

pytestmark = pytest.mark.xdist_group("gemm interpreter")  # the cases run once


@pytest.fixture(scope="session")
def problems(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """For each case that is asked for "" or what went wrong."""
    return interpreted("support.gemm_matrix", asked_for(request, __name__))


@pytest.mark.parametrize("name", case_params(CASES, LIKE_ANOTHER))
def test_gives_what_float64_gives(name: str, problems: Mapping[str, str]) -> None:
    assert problems[name] == ""


@pytest.mark.parametrize("name", ["mm", "mm-three-users", "addmm-view", "bmm-split", "linear-dynamic-gelu"])
def test_the_meaning_of_a_kernel_is_what_it_replaces(name: str) -> None:
    """Without Triton: passes, and the interpreter of the IR, see what the kernel computes."""
    before, after, tensors = CASES[name].captured()
    assert any(isinstance(operation, KernelCall) for operation in after.operations)
    numbers = iter(tensors)
    given = [next(numbers) if isinstance(item, str) else before.hints[item] for item in before.inputs]
    expected = interpret(cpu(before), given)
    for output, wanted in zip(interpret(cpu(after), given), expected, strict=True):
        if isinstance(wanted, torch.Tensor):
            torch.testing.assert_close(output, wanted, atol=1e-4, rtol=1e-4)

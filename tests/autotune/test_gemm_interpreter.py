"""The templates' kernels in Triton's interpreter against float64, with their users fused into them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

pytest.importorskip("triton")

from litz.ir import KernelCall
from litz.ir.interpret import interpret
from support.gemm_cases import CASES, case_params, cpu
from support.interpreted import interpreted

pytestmark = pytest.mark.xdist_group("gemm interpreter")  # the cases run once


@pytest.fixture(scope="session")
def problems() -> Mapping[str, str]:
    """For each case "" or what went wrong."""
    return interpreted("support.gemm_cases")


@pytest.mark.parametrize("name", case_params(CASES))
def test_gives_what_float64_gives(name: str, problems: Mapping[str, str]) -> None:
    assert problems[name] == ""


@pytest.mark.parametrize("name", ["mm", "mm-three-users", "addmm-view", "bmm-split", "linear-dynamic-gelu"])
def test_the_meaning_of_a_kernel_is_what_it_replaces(name: str) -> None:
    """Without Triton: passes, and the interpreter of the IR, see what the kernel computes."""
    case = CASES[name]
    before, after = case.programs()
    assert any(isinstance(operation, KernelCall) for operation in after.operations)
    tensors = iter(case.make())
    given = [next(tensors) if isinstance(item, str) else 33 for item in before.inputs]
    for symbol, value in before.hints.items():
        given = [value if item == symbol else g for item, g in zip(before.inputs, given)]
    expected = interpret(cpu(before), given)
    for output, wanted in zip(interpret(cpu(after), given), expected, strict=True):
        if isinstance(wanted, torch.Tensor):
            torch.testing.assert_close(output, wanted, atol=1e-4, rtol=1e-4)

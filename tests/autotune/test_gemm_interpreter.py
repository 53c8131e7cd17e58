"""The templates' kernels in Triton's interpreter against float64, with their users fused into them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

pytest.importorskip("triton")

from litz.ir import KernelCall
from litz.ir.interpret import interpret
from support.gemm_cases import CASES, case_params, cpu
from support.interpreted import asked_for, interpreted

pytestmark = pytest.mark.xdist_group("gemm interpreter")  # the cases run once


THOROUGH = [
    *("mm-fp16", "mm-mm-bf16", "mm-strided-bf16", "mm-rows-gathered-bf16", "addmm-bf16", "tma-linear-bf16"),
    *("mm-tall", "mm-one-deep", "mm-split-short", "mm-split-relu", "mm-dynamic-relu", "mm-transposed-user"),
    *("mm-rows-gathered-split", "mm-mm-strided", "mm-mm-relu", "addmm-matrix", "addmm-split", "linear-3d-of-silu"),
    *("linear-of-int8-split", "linear-of-int4-split", "linear-of-int4-short", "linear-3d-residual"),
    *("scaled-mm-v2", "scaled-mm-1x128-split", "scaled-mm-1x128-128x128", "tma-transposed", "tma-one-tile"),
    *("conv1d", "conv3d", "conv-transposed-3d", "conv1x1", "conv3x3-unpadded", "of-exp-whole"),
]
"""What each of these has, by type, layout, what is fused before and after, and split, pairs of other cases have."""


@pytest.fixture(scope="session")
def problems(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """For each case that is asked for "" or what went wrong."""
    return interpreted("support.gemm_cases", asked_for(request, __name__))


@pytest.mark.parametrize("name", case_params(CASES, THOROUGH))
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

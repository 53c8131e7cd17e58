"""What attention's bodies are computed with: fewer constants, positions as numbers, a tanh that is near enough."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from litz.ir import KernelCall
from litz_contractions.attention.arithmetic import EXACT
from litz_contractions.attention.near import LEAST, TANH_ERROR
from support import attention_backward_matrix as backward
from support.attention_matrix import Case, operands, soft_cap

HALF = operands(1, 2, 64, 64, 16, dtype=torch.bfloat16)


def text(**given: Any) -> str:
    return Case(HALF, **given).kernel().source.text


def cap(by: float) -> Any:
    return lambda score, b, h, q, k: torch.tanh(score / by) * by


def test_constants_meet() -> None:
    found = text(score_mod=cap(20))
    assert "scores * 0.0125\n" in found  # the scale of 1/4 and 1/20
    assert f"scores * {20 / math.log(2)!r}"[:20] in found and "* 20.0" not in found
    assert "_div(" not in text(score_mod=lambda score, b, h, q, k: score / 3)


def test_a_bias_is_one_multiply_add() -> None:
    found = text(score_mod=lambda score, b, h, q, k: score + 0.5 * h)
    assert "tl.fma(" in found and "scores * 0.25" not in found


@pytest.mark.parametrize("scale", [0.3, -0.3, 0.0])
def test_a_negative_or_zero_factor_is_not_the_exponent_s(scale: float) -> None:
    found = Case(HALF, scale=scale).kernel().source.text
    assert (f"scores = scores * {scale!r}" in found) == (scale <= 0)


def test_the_positions_of_a_distance_are_numbers_of_their_own() -> None:
    found = text(score_mod=lambda score, b, h, q, k: score + (k - q))
    assert "_exact_float(x0)" in found
    assert 2 ** (torch.finfo(torch.float32).bits - 8) == EXACT


def test_a_soft_cap_of_half_types_is_near() -> None:
    assert "_tanh_near" in text(score_mod=cap(20)) and "libdevice" not in text(score_mod=cap(20))
    most = LEAST / TANH_ERROR
    assert "_tanh_near" in text(score_mod=cap(most)) and "libdevice.tanh" in text(score_mod=cap(2 * most))


def test_a_tanh_whose_error_may_grow_stays_exact() -> None:
    assert "libdevice.tanh" in text(score_mod=lambda score, b, h, q, k: torch.exp(torch.tanh(score)))
    assert "libdevice.tanh" in text(score_mod=lambda score, b, h, q, k: torch.tanh(score) * score)
    assert "libdevice.tanh" in Case(score_mod=soft_cap).kernel().source.text  # float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_gradient_of_a_cap(dtype: torch.dtype) -> None:
    case = replace(backward.BASE, score=backward.soft_cap, mask=backward.causal, dtype=dtype)
    for operation in case.kernels().operations:
        if isinstance(operation, KernelCall):
            found = operation.source.text
            assert ("_tanh_near" in found) == (dtype == torch.bfloat16)
            assert "to(tl.bfloat16).to(tl.float32)" not in found  # nothing is rounded on its way


def test_the_error_of_the_near_tanh_is_below_its_bound() -> None:
    """With the documented errors of ex2.approx (2^-22) and rcp.approx (2^-23) in the worst direction."""
    x = np.concatenate([np.linspace(-12, 12, 400_001), [0.0, 1e-30, -1e-30, 80.0, -80.0]]).astype(np.float32)
    exact, worst = np.tanh(x.astype(np.float64)), 0.0
    exponent = (x * np.float32(2.8853900817779268)).astype(np.float32)
    for sign in (-1, 1):
        power = np.exp2(exponent.astype(np.float64)) * (1 + sign * 2.0**-22)
        total = np.minimum(power + 1, 3e38).astype(np.float32)
        inverse = ((1 / total.astype(np.float64)) * (1 - sign * 2.0**-23)).astype(np.float32)
        found = (1 - 2 * inverse.astype(np.float64)).astype(np.float32)
        worst = max(worst, float(np.abs(found - exact).max()))
    assert worst < TANH_ERROR


def test_a_cap_s_error_is_below_that_of_rounding_an_operand() -> None:
    assert torch.finfo(torch.float16).eps / 2 / 4 >= LEAST

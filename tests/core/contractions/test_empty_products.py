"""A product without elements is no kernel's work."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from litz.contractions.products.offer import Offer, offer_gemm
from litz.ir import Template
from litz.pipeline import schedule_only
from support.gemm_cases import context


def offer_for(m: int, n: int, k: int) -> Offer:
    """What is offered for a matrix of `m` by `k` times one of `k` by `n`."""
    with FakeTensorMode(), torch.no_grad():
        given = torch.empty(m, k, device="cuda"), torch.empty(k, n, device="cuda")
        (schedule,) = schedule_only(torch.mm, given, {"disable_plugins": ("autotune", "contractions")})
    (template,) = (op for op in schedule.program.operations if isinstance(op, Template))
    return offer_gemm(template, context(schedule.program, template), 4)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 32, 16), (32, 0, 16), (0, 0, 16)])
def test_no_kernel_is_offered_for_an_empty_result(m: int, n: int, k: int) -> None:
    assert offer_for(m, n, k) == Offer((), (("triton mm", "the result is empty"),))


def test_kernels_are_offered_for_others() -> None:
    assert offer_for(32, 48, 16).choices

"""A product without elements is no kernel's work."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from litz.ir import Template
from litz.pipeline import schedule_only
from litz_contractions.products.offer import Offer, offer_gemm
from support.kernel_programs import context


def offer_for(fn: Callable[..., torch.Tensor], *sizes: tuple[int, ...]) -> Offer:
    """What is offered for the contraction in a function of tensors of these sizes."""
    with FakeTensorMode(), torch.no_grad():
        given = [torch.empty(size, device="cuda") for size in sizes]
        (schedule,) = schedule_only(fn, given, {"disable_plugins": ("autotune", "contractions")})
    (template,) = (op for op in schedule.program.operations if isinstance(op, Template))
    return offer_gemm(template, context(schedule.program, template), 4)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 32, 16), (32, 0, 16), (0, 0, 16)])
def test_no_kernel_is_offered_for_an_empty_result(m: int, n: int, k: int) -> None:
    assert offer_for(torch.mm, (m, k), (k, n)) == Offer((), (("triton mm", "the result is empty"),))


def test_kernels_are_offered_for_others() -> None:
    assert offer_for(torch.mm, (32, 16), (16, 48)).choices
    assert offer_for(torch.conv2d, (2, 16, 8, 8), (32, 16, 3, 3)).choices


def test_no_kernel_is_offered_for_no_images() -> None:
    found = offer_for(torch.conv2d, (0, 16, 8, 8), (32, 16, 3, 3))
    assert found == Offer((), (("triton convolution", "the result is empty"),))

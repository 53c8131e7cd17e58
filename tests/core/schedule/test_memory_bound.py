"""Kernels that memory bounds: which loops over the same elements share a read, on a GPU that is not there."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from litz.pipeline import schedule_only


def test_sums_over_other_ranges_of_the_same_elements_are_cut_alike() -> None:
    """A sum over the tokens of each image and one over all images read the gradient once."""
    with FakeTensorMode(), torch.no_grad():
        x, grad = (torch.empty(8, 1024, 1152, device="cuda") for _ in range(2))
        gate = torch.empty(8, 1, 1152, device="cuda")

        def function(x: torch.Tensor, grad: torch.Tensor, gate: torch.Tensor) -> tuple[torch.Tensor, ...]:
            made = grad * gate
            return made, made.sum((0, 1)), (grad * x).sum(1), grad.sum(1)

        (schedule,) = schedule_only(function, (x, grad, gate), dynamic=False)
    assert sum("arg0_1" in kernel.loop.reads for kernel in schedule.kernels) == 1

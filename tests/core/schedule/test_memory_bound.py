"""Candidates of `benchmarks.gpu_variants`: what each changes in the schedule, on a GPU that is not there."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from litz.codegen.kernel_plan import plan_kernel
from litz.codegen.triton import TritonCodegen, sharing
from litz.codegen.triton.finish import choose_tilings
from litz.pipeline import schedule_only
from litz.schedule import Schedule, estimate, split
from litz.schedule.direction import walk_back
from litz.target import target_of
from litz_plugins import PassContext


def _modulation() -> Schedule:
    with FakeTensorMode(), torch.no_grad():
        x, grad = (torch.empty(8, 1024, 1152, device="cuda") for _ in range(2))
        gate = torch.empty(8, 1, 1152, device="cuda")

        def function(x: torch.Tensor, grad: torch.Tensor, gate: torch.Tensor) -> tuple[torch.Tensor, ...]:
            made = grad * gate
            return made, made.sum((0, 1)), (grad * x).sum(1), grad.sum(1)

        (schedule,) = schedule_only(function, (x, grad, gate), dynamic=False)
    return schedule


def _batch_norm(last: bool) -> Schedule:
    with FakeTensorMode(), torch.no_grad():
        x = torch.empty(64, 256, 56, 56, device="cuda")
        x = x.to(memory_format=torch.channels_last) if last else x
        scale, shift = (torch.empty(256, 1, 1, device="cuda") for _ in range(2))

        def function(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
            var, mean = torch.var_mean(x, (0, 2, 3), correction=0, keepdim=True)
            return torch.relu((x - mean) * torch.rsqrt(var + 1e-5) * scale + shift)

        (schedule,) = schedule_only(function, (x, scale, shift), dynamic=False)
    return schedule


def test_sums_over_other_ranges_of_the_same_elements_are_cut_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum over the tokens of each image and one over all images read the gradient once."""

    def readers() -> int:
        return sum("arg0_1" in kernel.loop.reads for kernel in _modulation().kernels)

    assert readers() == 2
    monkeypatch.setattr(split, "ROUNDED_ONCE", True)
    assert readers() == 1


def test_a_kernel_begins_where_the_one_before_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that are cut along their innermost range are walked from the first row to the last by all programs."""
    context = PassContext(None, "schedule", "walk_back", target_of=target_of)
    assert not any(kernel.back for kernel in walk_back(_batch_norm(True), context).kernels)
    monkeypatch.setattr(split, "INNERMOST", True)
    schedule = walk_back(_batch_norm(True), context)
    assert [kernel.back for kernel in schedule.kernels] == [False, False, True]
    (plan,) = (plan_kernel(kernel, schedule.program) for kernel in schedule.kernels if kernel.back)
    text = TritonCodegen().generate_tiled(plan, choose_tilings(plan, 132)).text
    assert "program = tl.num_programs(0) - 1 - tl.program_id(0)" in text and text.count("program_id") == 1


def test_long_rows_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one kernel, which reads a channel twice: the cache has the channels of 33 programs, not those of 264."""
    assert len(_batch_norm(False).kernels) == 2
    monkeypatch.setattr(sharing, "SHARED", True)
    monkeypatch.setattr(estimate, "SHARED", True)
    schedule = _batch_norm(False)
    (kernel,) = schedule.kernels
    (tiling,) = choose_tilings(plan_kernel(kernel, schedule.program), 132)
    assert tiling.sharing == 8

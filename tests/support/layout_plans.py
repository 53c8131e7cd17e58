"""Plans for a GPU without one: models of fake tensors, captured on the CPU and made out to be on CUDA."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from litz.pipeline import make_compiler
from litz.schedule import Schedule
from litz_plugins import Decision
from support.retarget import cuda_schedules


def cuda_plan(
    make: Callable[[], nn.Module],
    size: tuple[int, ...],
    dtype: torch.dtype = torch.bfloat16,
    train: bool = False,
    options: Mapping[str, Any] | None = None,
) -> tuple[list[Decision], list[Schedule]]:
    """(decisions, schedules) of a model on an H100 that is not there; nothing is computed, so sizes may be large."""
    torch._dynamo.reset()
    decisions: list[Decision] = []
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            model = make().train(train)
        finally:
            torch.set_default_dtype(before)
        x = torch.empty(size, dtype=dtype)

    def run(backend: Callable[..., Any]) -> None:
        with mode, torch.set_grad_enabled(train):
            out = torch.compile(model, backend=backend)(x)
            if train:
                out.sum().backward()

    schedules = cuda_schedules(run, make_compiler(None, options), decisions)
    return [decision for decision in decisions if decision.plugin == "layout"], schedules


def copies(decisions: list[Decision]) -> list[str]:
    """What is copied for what, "x for conv"."""
    return [decision.subject for decision in decisions if decision.chosen.startswith("copied")]


def summaries(decisions: list[Decision]) -> list[str]:
    """What was decided of each graph."""
    return [decision.chosen for decision in decisions if decision.chosen.startswith("layouts")]

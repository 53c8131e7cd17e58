"""torch.compile(optimizer.step) against eager, with float64 as the judge: parameters and every piece of state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from litz import report as reports
from support.compare import DEVICES, close

SHAPES = [(16, 8), (16,), (4, 16), (3, 5, 2), (1,)]
STEPS = 3

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adam": (torch.optim.Adam, {}),
    "adam_foreach": (torch.optim.Adam, {"foreach": True}),
    "adam_one_by_one": (torch.optim.Adam, {"foreach": False, "weight_decay": 0.01}),
    "adamw_amsgrad": (torch.optim.AdamW, {"foreach": True, "amsgrad": True}),
    "sgd_momentum": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "sgd_foreach": (torch.optim.SGD, {"momentum": 0.9, "foreach": True}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.9, "centered": True, "foreach": True}),
}


def parameters(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(device, dtype).requires_grad_() for shape in SHAPES]


def gradients(device: str, dtype: torch.dtype) -> Iterable[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        yield [torch.randn(shape, generator=generator).to(device, dtype) for shape in SHAPES]


def train(
    make: Callable[[list[torch.Tensor]], torch.optim.Optimizer], device: str, dtype: torch.dtype, backend: str | None
) -> list[Any]:
    """The parameters and the optimizer's state after some steps; backend: of torch.compile, None to leave that out."""
    params = parameters(device, dtype)
    optimizer = make(params)
    step = optimizer.step if backend is None else torch.compile(optimizer.step, backend=backend)
    for row in gradients(device, dtype):
        for param, gradient in zip(params, row, strict=True):
            param.grad = gradient
        step()
    state = [optimizer.state[param] for param in params]
    tensors = [s[key] for s in state for key in sorted(s) if key != "step"]
    steps = [float(s["step"]) for s in state if "step" in s]
    return [*(param.detach() for param in params), *tensors, *steps]


@pytest.mark.ci_cases("adam_foreach-cpu", "sgd_momentum-cpu")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_compiled_steps_equal_eager_ones(name: str, device: str) -> None:
    kind, settings = OPTIMIZERS[name]
    make = lambda params: kind(params, lr=0.1, **settings)
    with reports.collect() as collected:
        actual = train(make, device, torch.float32, "litz")
    # Dynamo makes tensors in float32 of the bias corrections, which are Python's numbers in a plain step.
    expected = train(make, device, torch.float32, "eager")
    close(actual, expected, train(make, device, torch.float64, None))
    assert len(collected) == 1 + name.startswith("sgd")  # SGD's first step makes the momentum
    for report in collected:
        assert not report.externs
        assert report.kernels_after <= len(SHAPES) + (device == "cuda")

"""torchao's weight-only and dynamic quantisation, and its float8 training: one graph each, no worse than eager.

torchao is not among what the tests need: they are skipped without it. `test_quantised_tensors.py` has what its
tensors are made of, without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from support.compare import device_param
from support.versions import OLD_TORCH

quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
Tensor = torch.Tensor


class Gated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate = (torch.nn.Linear(256, 512, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(512, 256)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


CONFIGS: dict[str, Callable[[], Any]] = {
    "int8": lambda: quantization.Int8WeightOnlyConfig(),
    "int4 in int8": lambda: quantization.IntxWeightOnlyConfig(
        weight_dtype=torch.int4, granularity=quantization.PerGroup(32)
    ),
    "float8": lambda: quantization.Float8WeightOnlyConfig(),
    "int8, activations too": lambda: quantization.Int8DynamicActivationInt8WeightConfig(),
    "float8, activations by rows": lambda: quantization.Float8DynamicActivationFloat8WeightConfig(
        granularity=quantization.PerRow()
    ),
    "float8, activations by tensor": lambda: quantization.Float8DynamicActivationFloat8WeightConfig(
        granularity=quantization.PerTensor()
    ),
}


def relative(y: Tensor, wanted: Tensor) -> float:
    return ((y.double() - wanted).norm() / wanted.norm()).item()


@device_param
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CONFIGS)
def test_inference(name: str, dynamic: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device == "cpu" and "float8, " in name:
        if OLD_TORCH:
            pytest.skip("torch 2.11's CPU has one scale a tensor only")
        # It asks for a GPU, which its arithmetic does not need.
        monkeypatch.setattr("torchao.quantization.quant_api._check_hardware_support", lambda *_: None)
    torch.manual_seed(0)
    logging.getLogger("torchao").setLevel(logging.ERROR)
    model = Gated().bfloat16().eval().to(device)
    exact = deepcopy(model).double()
    quantization.quantize_(model, CONFIGS[name]())
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="litz", fullgraph=True, dynamic=dynamic)
    with torch.no_grad():
        for rows in (32, 3) if device == "cpu" else (32, 48):
            x = torch.randn(rows, 256, device=device).bfloat16()
            got, eager, wanted = compiled(x), model(x), exact(x.double())
            assert relative(got, wanted) <= 1.1 * relative(eager, wanted) + 1e-3


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_float8_training(recipe: str) -> None:
    """Emulated, as it is without a GPU."""
    from dataclasses import replace

    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    torch.manual_seed(0)
    model, x = Gated().bfloat16(), torch.randn(64, 256).bfloat16()
    exact = deepcopy(model).double()
    convert_to_float8_training(model, config=replace(Float8LinearConfig.from_recipe_name(recipe), emulate=True))

    def gradients(fn: Callable[[Tensor], Tensor], owner: torch.nn.Module, x: Tensor) -> list[Tensor]:
        own = x.clone().requires_grad_()
        fn(own).square().mean().backward()
        found = [own.grad, *(p.grad for p in owner.parameters())]
        owner.zero_grad()
        return found  # type: ignore[return-value]

    torch._dynamo.reset()
    got = gradients(torch.compile(model, backend="litz", fullgraph=True), model, x)
    eager, wanted = gradients(model, model, x), gradients(exact, exact, x.double())
    for mine, theirs, right in zip(got, eager, wanted, strict=True):
        assert relative(mine, right) <= 1.1 * relative(theirs, right) + 1e-3

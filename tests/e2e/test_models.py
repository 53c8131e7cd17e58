"""The models of the demo, on small inputs: right, and nothing but library work outside generated kernels.

Whole on a GPU. On a CPU narrower, with fewer equal layers and words: the demo itself compares whole ones there, too.
"""

from __future__ import annotations

import copy

import pytest
import torch

from litz import report as reports
from support.compare import DEVICES
from support.zoo import CPUS_LIBRARY_WORK, LIBRARY_WORK

transformers = pytest.importorskip("transformers")


def only_library_work(collected: list[reports.CompileReport]) -> None:
    others = {
        name
        for report in collected
        for name in report.externs
        if not name.startswith((*LIBRARY_WORK, "random_seed", *(CPUS_LIBRARY_WORK if report.device == "cpu" else ())))
    }
    assert not others, f"in library calls, not in kernels: {others}"


def error(outputs: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    return max(float((a.double() - b).norm() / b.norm().clamp(min=1e-6)) for a, b in zip(outputs, exact, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_gpt2_inference(device: str) -> None:
    torch.manual_seed(0)
    less = {} if device == "cuda" else {"n_layer": 2, "vocab_size": 1000, "n_embd": 192, "n_head": 4}
    config = transformers.GPT2Config(use_cache=False, bos_token_id=1, eos_token_id=2, **less)
    model = transformers.GPT2LMHeadModel(config).to(device).eval()
    tokens = torch.randint(0, config.vocab_size, (2, 17), device=device)
    with torch.no_grad(), reports.collect() as collected:
        actual = torch.compile(model, backend="litz")(tokens).logits
        eager = model(tokens).logits
        exact = copy.deepcopy(model).double()(tokens).logits
    assert len(collected) == 1
    only_library_work(collected)
    assert collected[0].kernels_after < collected[0].loops_before / 2
    assert error([actual], [exact]) <= 2 * error([eager], [exact])


@pytest.mark.thorough
@pytest.mark.parametrize("device", DEVICES)
def test_resnet50_training(device: str) -> None:
    torch.manual_seed(0)
    config = transformers.ResNetConfig(num_labels=10, depths=[3, 4, 6, 3] if device == "cuda" else [1, 2, 2, 1])
    model = transformers.ResNetForImageClassification(config).to(device).train()
    pixels, labels = torch.randn(4, 3, 64, 64, device=device), torch.tensor([1, 2, 3, 4], device=device)
    double = copy.deepcopy(model).double()
    ours = copy.deepcopy(model)

    def step(m: torch.nn.Module, run: torch.nn.Module, pixels: torch.Tensor) -> list[torch.Tensor]:
        out = run(pixel_values=pixels, labels=labels)
        out.loss.backward()
        running = [b for name, b in m.named_buffers() if "running" in name]
        return [
            out.logits.detach(),
            out.loss.detach(),
            *running,
            *(p.grad for p in m.parameters() if p.grad is not None),
        ]

    with reports.collect() as collected:
        actual = step(ours, torch.compile(ours, backend="litz"), pixels)
    only_library_work(collected)
    eager, exact = step(model, model, pixels), step(double, double, pixels.double())
    assert error(actual, exact) <= 2 * error(eager, exact)

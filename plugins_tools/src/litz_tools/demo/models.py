"""The demo's workloads: a model from transformers with random weights, its inputs, and one step of work."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Workload:
    """A model and its work; `step` runs it once. title: for people. inputs: the model's arguments by name. training:
    whether a step computes gradients."""

    title: str
    model: torch.nn.Module
    inputs: dict[str, torch.Tensor]
    training: bool


def gpt2_inference(device: torch.device) -> Workload:
    """Returns GPT-2 (12 layers, 124M parameters, random weights) as a workload: logits for a batch of token
    sequences."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    batch, length = (8, 1024) if device.type == "cuda" else (1, 256)
    model = GPT2LMHeadModel(GPT2Config(use_cache=False)).to(device).eval()
    tokens = torch.randint(0, model.config.vocab_size, (batch, length), device=device)
    return Workload(f"GPT-2 inference, batch {batch}, length {length}", model, {"input_ids": tokens}, training=False)


def resnet50_training(device: torch.device) -> Workload:
    """Returns ResNet-50 as a workload: forward, loss and backward of one batch."""
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    batch, side = (64, 224) if device.type == "cuda" else (4, 160)
    model = ResNetForImageClassification(ResNetConfig(num_labels=1000)).to(device).train()
    inputs = {
        "pixel_values": torch.randn(batch, 3, side, side, device=device),
        "labels": torch.randint(0, 1000, (batch,), device=device),
    }
    return Workload(f"ResNet-50 training step, batch {batch}, {side}x{side}", model, inputs, training=True)


Outputs = dict[str, list[torch.Tensor]]
"""What a step computes, in groups that are compared as a whole."""


def step(work: Workload, model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Outputs:
    """Runs one step and returns the logits for inference; logits, loss and every gradient for training."""
    if not work.training:
        with torch.no_grad():
            return {"logits": [model(**inputs).logits]}
    model.zero_grad(set_to_none=True)
    output = model(**inputs)
    output.loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return {"logits": [output.logits.detach()], "loss": [output.loss.detach()], "gradients": gradients}

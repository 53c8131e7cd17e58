"""GPT-2 and ResNet-50 in a small size; README.md has the figures of the real one."""

from __future__ import annotations

import pytest
import torch
from running import close, compiled, double

transformers = pytest.importorskip("transformers")


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=211, n_positions=32, n_embd=48, n_layer=2, n_head=4, use_cache=False, attn_pdrop=0.0,
        resid_pdrop=0.0, embd_pdrop=0.0, loss_type="ForCausalLMLoss",
    )  # fmt: skip
    tokens = torch.randint(0, 211, (2, 19))
    return transformers.GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}


def resnet50():
    """Its blocks, thinner, and one of a stage."""
    config = transformers.ResNetConfig(
        num_labels=10, embedding_size=8, hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 1, 1]
    )
    inputs = {"pixel_values": torch.randn(3, 3, 48, 48), "labels": torch.randint(0, 10, (3,))}
    return transformers.ResNetForImageClassification(config), inputs


@pytest.mark.parametrize("make", [gpt2, resnet50])
def test_inference(make):
    torch.manual_seed(0)
    model, inputs = make()
    model.eval()
    exact = double(model)
    with torch.no_grad():
        ours, eager = compiled(model)(**inputs).logits, model(**inputs).logits
        close(ours, eager, exact(**{name: double(value) for name, value in inputs.items()}).logits)


def step(model, run, inputs):
    model.zero_grad()
    output = run(**inputs)
    output.loss.backward()
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
    return output.loss, output.logits, gradients


@pytest.mark.parametrize("make", [gpt2, resnet50])
def test_training(make):
    torch.manual_seed(0)
    model, inputs = make()
    model.train()
    exact = double(model)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    ours = step(model, compiled(model), inputs)
    model.load_state_dict(state)
    eager = step(model, model, inputs)
    close(ours, eager, step(exact, exact, {name: double(value) for name, value in inputs.items()}))

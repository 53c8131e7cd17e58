"""A decoder of Llama's shape in plain torch: its sizes, its weights, and one step over a cache of keys and values.

A step is a function of tensors alone, weights and caches included: eager runs it as it is, `torch.compile` compiles it,
and `make_fx` makes a graph of it without dynamo. Prompts and batches take the same function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Config:
    """Sizes of a model. hidden: width of the MLP. context: tokens that a request may have, its prompt included."""

    vocabulary: int
    width: int
    hidden: int
    layers: int
    heads: int
    key_heads: int
    context: int
    theta: float = 500_000.0
    epsilon: float = 1e-5

    @property
    def head(self) -> int:
        return self.width // self.heads


MODELS = {
    "tiny": Config(vocabulary=272, width=64, hidden=128, layers=2, heads=4, key_heads=2, context=128),
    "small": Config(vocabulary=4096, width=512, hidden=1408, layers=8, heads=8, key_heads=2, context=512),
    "1b": Config(vocabulary=128_256, width=2048, hidden=8192, layers=16, heads=32, key_heads=8, context=1024),
}
"""Sizes by name. 1b is the shape of Llama 3.2 1B."""
LAYER = ("norm", "qkv", "out", "mlp_norm", "gate_up", "down")
"""The weights of a layer, in the order in which a step takes them."""


def random_weights(config: Config, seed: int, device: str, dtype: torch.dtype) -> list[Tensor]:
    """Returns weights that a seed decides, in a step's order: frequencies, embedding, each layer's, norm, head."""
    generator = torch.Generator(device).manual_seed(seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> Tensor:
        made = torch.randn(rows, columns, generator=generator, device=device, dtype=dtype)
        return made.mul_(scale * columns**-0.5)

    def ones() -> Tensor:
        return torch.ones(config.width, device=device, dtype=dtype)

    heads, keys = config.heads * config.head, config.key_heads * config.head
    exponents = torch.arange(0, config.head, 2, device=device) / config.head
    weights = [config.theta**-exponents, matrix(config.vocabulary, config.width, config.width**0.5)]
    for _ in range(config.layers):
        weights += [ones(), matrix(heads + 2 * keys, config.width), matrix(config.width, heads)]
        weights += [ones(), matrix(2 * config.hidden, config.width), matrix(config.width, config.hidden)]
    return [*weights, ones(), matrix(config.vocabulary, config.width, 2.0)]


def load_llama(path: str, context: int, device: str, dtype: torch.dtype) -> tuple[Config, list[Tensor]]:
    """Returns the sizes and the weights of a Llama in a folder that transformers' `save_pretrained` has written."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(path, dtype=dtype).to(device)
    own, inner = model.config, model.model
    if own.attention_bias or own.mlp_bias or inner.rotary_emb.attention_scaling != 1.0:
        raise SystemExit(f"{path}: biases and scaled rotary embeddings (attention_scaling) are not supported")
    sizes = (own.vocab_size, own.hidden_size, own.intermediate_size, own.num_hidden_layers, own.num_attention_heads)
    config = Config(*sizes, own.num_key_value_heads, min(context, own.max_position_embeddings), 0.0, own.rms_norm_eps)
    weights = [inner.rotary_emb.inv_freq.float(), inner.embed_tokens.weight]
    for layer in inner.layers:
        attention, mlp = layer.self_attn, layer.mlp
        qkv = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
        gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
        weights += [layer.input_layernorm.weight, qkv, attention.o_proj.weight]
        weights += [layer.post_attention_layernorm.weight, gate_up, mlp.down_proj.weight]
    return config, [weight.detach() for weight in (*weights, inner.norm.weight, model.lm_head.weight)]


def make_caches(config: Config, slots: int, device: str, dtype: torch.dtype) -> list[Tensor]:
    """Returns keys and values of each layer, (slots, key heads, context, head) each, each with memory of its own."""
    size = (slots, config.key_heads, config.context, config.head)
    return [torch.zeros(size, device=device, dtype=dtype) for _ in range(2 * config.layers)]


def step(
    config: Config, tokens: Tensor, positions: Tensor, last: Tensor, weights: Sequence[Tensor], caches: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Runs tokens through the model, and writes their keys and values into the caches.

    tokens, positions: (batch, length) int64. A token sees what the caches hold up to its position.
    last: (batch,) int64, which of a row's tokens counts.
    caches: (batch, key heads, window, head) each; window: positions that are looked at.
    Returns the likeliest next token of each row, (batch,), and the logits, (batch, vocabulary) float32.
    """
    frequencies, embedding, norm, head = *weights[:2], *weights[-2:]
    window = caches[0].shape[2]
    positions = positions.clamp(0, window - 1)  # the compiler sees that no write is outside of a cache
    angles = (positions[:, :, None] * frequencies).repeat(1, 1, 2)[:, :, None]
    cos, sin = angles.cos().to(embedding.dtype), angles.sin().to(embedding.dtype)
    rows = torch.arange(tokens.shape[0], device=tokens.device)[:, None]
    group = config.heads // config.key_heads
    # Queries that share a head of the keys are queries of that head: no keys are repeated.
    limits = positions.repeat_interleave(group, 1)[:, None, :, None]
    mask = torch.arange(window, device=tokens.device) <= limits
    x = F.embedding(tokens, embedding)
    for at in range(config.layers):
        layer = dict(zip(LAYER, weights[2 + len(LAYER) * at :], strict=False))
        keys, values = caches[2 * at : 2 * at + 2]
        qkv = F.linear(_normed(x, layer["norm"], config), layer["qkv"]).unflatten(-1, (-1, config.head))
        q, k, v = qkv.split([config.heads, config.key_heads, config.key_heads], 2)
        keys[rows, :, positions] = _rotated(k, cos, sin)
        values[rows, :, positions] = v
        query = _rotated(q, cos, sin).unflatten(2, (-1, group)).transpose(1, 2).flatten(2, 3)
        seen = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        seen = seen.unflatten(2, (-1, group)).transpose(1, 2).flatten(2)
        x = x + F.linear(seen, layer["out"])
        gate, up = F.linear(_normed(x, layer["mlp_norm"], config), layer["gate_up"]).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, layer["down"])
    logits = F.linear(_normed(x[rows[:, 0], last], norm, config), head).float()
    return logits.argmax(-1), logits


def _normed(x: Tensor, weight: Tensor, config: Config) -> Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + config.epsilon)).to(x.dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin

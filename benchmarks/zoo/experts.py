"""Mixtures of experts."""

from __future__ import annotations

from typing import Any

from torch import nn

from .decoders import causal


def loop_over_experts(model: nn.Module) -> None:
    """The grouped product that transformers picks has no float64."""
    model.config._experts_implementation = "eager"


_SMALL: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip

MODELS = (
    causal(
        "mixtral", "Mixtral", 4, 512,
        {"vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 4,
         "num_attention_heads": 16, "num_key_value_heads": 4, "num_local_experts": 8, "num_experts_per_tok": 2},
        {**_SMALL, "num_local_experts": 4},
        family="mixture of experts", judge=loop_over_experts,
    ),
    causal(
        "olmoe", "Olmoe", 4, 512,
        {"vocab_size": 50304, "hidden_size": 1024, "intermediate_size": 512, "num_hidden_layers": 6,
         "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 32, "num_experts_per_tok": 4},
        {**_SMALL, "num_experts": 8, "num_experts_per_tok": 2},
        family="mixture of experts", judge=loop_over_experts,
    ),
)  # fmt: skip

"""Language models that read from left to right: attention, and state spaces."""

from __future__ import annotations

from typing import Any

from .model import Model, next_token, pretrained, text

_SMALL: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
    "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def causal(
    name: str, prefix: str, batch: int, length: int, full: dict[str, Any], small: dict[str, Any], **more: Any
) -> Model:
    """A language model of transformers'. full has its vocab_size."""
    words, kind = full["vocab_size"], more.pop("kind", f"{prefix}ForCausalLM")
    return Model(
        name,
        more.pop("family", "decoder"),
        pretrained(kind, f"{prefix}Config", full, small),
        text(words, length),
        next_token(words, length),
        batch,
        more.pop("training", batch),
        needs=("transformers",),
        **more,
    )


MODELS = (
    causal(
        "gpt2", "GPT2", 8, 512, {"vocab_size": 50257},
        {"vocab_size": 97, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32, "bos_token_id": 1,
         "eos_token_id": 2},
        kind="GPT2LMHeadModel",
    ),
    causal(
        "llama", "Llama", 4, 1024,
        {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 8,
         "num_attention_heads": 32, "num_key_value_heads": 8},
        {**_SMALL, "num_key_value_heads": 2},
    ),
    causal(
        "gemma", "Gemma", 4, 512,
        {"vocab_size": 256000, "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 6,
         "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256},
        {**_SMALL, "num_key_value_heads": 1, "head_dim": 16},
    ),
    causal(
        "qwen2", "Qwen2", 4, 512,
        {"vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 12,
         "num_attention_heads": 14, "num_key_value_heads": 2},
        {**_SMALL, "num_key_value_heads": 2},
    ),
    causal(
        "opt", "OPT", 8, 512, {"vocab_size": 50272},
        {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 96,
         "word_embed_proj_dim": 64, "max_position_embeddings": 32, "pad_token_id": 0},
    ),
    causal(
        "bloom", "Bloom", 4, 512, {"vocab_size": 250880, "hidden_size": 1024, "n_layer": 12, "n_head": 16},
        {"vocab_size": 97, "hidden_size": 64, "n_layer": 2, "n_head": 4},
    ),
    causal(
        "gpt_neox", "GPTNeoX", 8, 512,
        {"vocab_size": 50304, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
         "intermediate_size": 3072},
        _SMALL,
    ),
    causal(
        "mamba2", "Mamba2", 4, 512,
        {"vocab_size": 32000, "hidden_size": 768, "num_hidden_layers": 12, "state_size": 64, "head_dim": 64,
         "num_heads": 24, "n_groups": 1, "chunk_size": 128},
        {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 16, "head_dim": 16, "num_heads": 8,
         "chunk_size": 8, "pad_token_id": 0},
        family="state space",
    ),
)  # fmt: skip

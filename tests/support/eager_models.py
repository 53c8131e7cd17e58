"""Models of transformers with attn_implementation="eager": attention written out, in each one's own way."""

from __future__ import annotations

from typing import Any

import pytest
import torch

MODELS = ["bert", "gpt2", "llama", "t5", "deberta"]


def eager_model(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    """One layer, and what it is called with: 8 texts of 512 tokens, one of them padded."""
    transformers = pytest.importorskip("transformers")
    ids, seen = torch.randint(0, 100, (8, 512)), torch.ones(8, 512, dtype=torch.long)
    seen[1, 400:] = 0
    wide = {"vocab_size": 100, "hidden_size": 512, "num_hidden_layers": 1, "num_attention_heads": 8}
    wide |= {"intermediate_size": 64, "attn_implementation": "eager"}
    given = {"input_ids": ids, "attention_mask": seen}
    if name == "bert":
        return transformers.BertModel(transformers.BertConfig(**wide)), given
    if name == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=100, n_embd=512, n_layer=1, n_head=8, n_inner=64, attn_implementation="eager"
        )
        return transformers.GPT2Model(config), {"input_ids": ids, "use_cache": False}
    if name == "llama":
        config = transformers.LlamaConfig(**wide, num_key_value_heads=4)
        return transformers.LlamaModel(config), {**given, "use_cache": False}
    if name == "t5":
        config = transformers.T5Config(
            vocab_size=100, d_model=512, d_kv=64, d_ff=64, num_layers=1, num_heads=8, attn_implementation="eager"
        )
        return transformers.T5EncoderModel(config), given
    config = transformers.DebertaV2Config(
        **wide, relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=64, position_buckets=32
    )
    return transformers.DebertaV2Model(config), given

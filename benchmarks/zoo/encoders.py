"""Text encoders, and encoder-decoders."""

from __future__ import annotations

from typing import Any

import torch

from .model import Inputs, Model, classes, next_token, pretrained, text

_ONE_LABEL: dict[str, Any] = {"num_labels": 3, "problem_type": "single_label_classification"}
_SMALL: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
}  # fmt: skip
_NEEDS = ("transformers",)


def _encoder(name: str, prefix: str, batch: int, length: int, full: dict[str, Any], small: dict[str, Any]) -> Model:
    """A classifier of texts of transformers'."""
    return Model(
        name,
        "encoder",
        pretrained(f"{prefix}ForSequenceClassification", f"{prefix}Config", {**full, **_ONE_LABEL}, small),
        text(full.get("vocab_size", 30000), length),
        classes(3),
        batch,
        batch,
        needs=_NEEDS,
    )


_DISENTANGLED = {
    "vocab_size": 128100, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "relative_attention": True, "pos_att_type": ["c2p", "p2c"],
    "max_relative_positions": -1, "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True,
    "position_biased_input": False, "type_vocab_size": 0,
}  # fmt: skip


def _two_texts(vocabulary: int, length: int) -> Any:
    def inputs(batch: int, tiny: bool) -> Inputs:
        words, first, second = (97, 24, 16) if tiny else (vocabulary, length, length // 4)
        return {
            "input_ids": torch.randint(3, words, (batch, first)),
            "decoder_input_ids": torch.randint(3, words, (batch, second)),
        }

    return inputs


def _from_text_to_text(name: str, prefix: str, batch: int, length: int, full: dict[str, Any], small: Any) -> Model:
    words = full["vocab_size"]
    return Model(
        name,
        "encoder-decoder",
        pretrained(f"{prefix}ForConditionalGeneration", f"{prefix}Config", full, small),
        _two_texts(words, length),
        next_token(words, length // 4, (97, 16)),
        batch,
        batch,
        needs=_NEEDS,
    )


MODELS = (
    _encoder("bert", "Bert", 16, 384, {"vocab_size": 30522}, {**_SMALL, "max_position_embeddings": 32}),
    _encoder(
        "deberta_v2", "DebertaV2", 8, 512, _DISENTANGLED,
        {**_SMALL, "max_position_embeddings": 32, "position_buckets": 8},
    ),
    _encoder(
        "xlnet",
        "XLNet",
        8,
        512,
        {"vocab_size": 32000, "d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072},
        {"vocab_size": 97, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 96},
    ),
    _encoder(
        "albert",
        "Albert",
        16,
        384,
        {"vocab_size": 30000, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
        {**_SMALL, "embedding_size": 32, "max_position_embeddings": 32},
    ),
    _encoder("mpnet", "MPNet", 16, 384, {"vocab_size": 30527}, {**_SMALL, "max_position_embeddings": 32}),
    _from_text_to_text(
        "t5",
        "T5",
        8,
        512,
        {"vocab_size": 32128, "d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12,
         "decoder_start_token_id": 0},
        {"vocab_size": 97, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4},
    ),
    _from_text_to_text(
        "bart",
        "Bart",
        8,
        512,
        {"vocab_size": 50265, "d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 3072,
         "decoder_ffn_dim": 3072, "encoder_attention_heads": 12, "decoder_attention_heads": 12},
        {"vocab_size": 97, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 96,
         "decoder_ffn_dim": 96, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
         "max_position_embeddings": 32},
    ),
)  # fmt: skip

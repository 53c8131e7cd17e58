"""Speech: spectra or samples in."""

from __future__ import annotations

from typing import Any

import torch

from .model import Inputs, Model, next_token, pretrained

_WHISPER: dict[str, Any] = {
    "d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8,
    "decoder_attention_heads": 8, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "begin_suppress_tokens": None,
    "suppress_tokens": None,
}  # fmt: skip
_SMALL_WHISPER: dict[str, Any] = {
    "vocab_size": 97, "num_mel_bins": 8, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96,
    "max_source_positions": 32, "max_target_positions": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip
_SMALL_WAVES: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
    "conv_dim": (16, 16, 16), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3), "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4, "classifier_proj_size": 16,
}  # fmt: skip


def _spectra(batch: int, tiny: bool) -> Inputs:
    bins, frames, words, length = (8, 64, 97, 16) if tiny else (80, 3000, 51865, 64)
    return {
        "input_features": torch.randn(batch, bins, frames),
        "decoder_input_ids": torch.randint(3, words, (batch, length)),
    }


MODELS = (
    Model(
        "whisper", "speech",
        pretrained("WhisperForConditionalGeneration", "WhisperConfig", _WHISPER, _SMALL_WHISPER),
        _spectra, next_token(51865, 64, (97, 16)), 8, 8, needs=("transformers",),
    ),
    Model(
        "wav2vec2", "speech",
        pretrained(
            "Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", {"mask_time_prob": 0.0, "mask_feature_prob": 0.0},
            _SMALL_WAVES,
        ),
        lambda batch, tiny: {"input_values": torch.randn(batch, 1200 if tiny else 80_000)},
        lambda batch, tiny: {"labels": torch.randint(0, 2, (batch,))}, 8, 8, needs=("transformers",),
    ),
)  # fmt: skip

"""The zoo's models in the sizes in which people use them: for a GPU. Weights are random, dropout is off."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from support.zoo import (
    ZOO,
    Diffusion,
    Dlrm,
    Entry,
    GraphNetwork,
    Lstm,
    UNet,
    clicks,
    graphs,
    noisy,
    pixels,
    text,
    tokens,
    transformer,
)

_SMALL = {str(entry): entry for entry in ZOO}
_ONE_LABEL: dict[str, Any] = {"problem_type": "single_label_classification", "num_labels": 1000}


def _like(name: str, **settings: Any) -> Entry:
    """The zoo's entry of that name with another size."""
    small = _SMALL[name]
    return Entry(name, **settings, externs=small.externs, patches=small.patches, prepare_judge=small.prepare_judge)


_BERT = transformer(
    "BertForSequenceClassification", "BertConfig", text(128, 30522, labels=3), num_labels=3,
    problem_type="single_label_classification", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip

_GPT2 = transformer(
    "GPT2LMHeadModel", "GPT2Config", text(128, 50257), use_cache=False,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
)  # fmt: skip

_T5 = transformer(
    "T5ForConditionalGeneration", "T5Config",
    lambda batch: {"input_ids": tokens(batch, 96, 32128), "labels": tokens(batch, 64, 32128)},
    d_model=768, d_kv=64, d_ff=2048, num_layers=12, num_heads=12, dropout_rate=0.0, use_cache=False,
    feed_forward_proj="gated-gelu", pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
)  # fmt: skip

# Layers as wide as a model of a billion parameters has, and fewer of them: float64 judges it.
_LLAMA = transformer(
    "LlamaForCausalLM", "LlamaConfig", text(128, 32000), hidden_size=2048, intermediate_size=8192,
    num_hidden_layers=6, num_attention_heads=32, num_key_value_heads=8, use_cache=False,
)  # fmt: skip

_MIXTRAL = transformer(
    "MixtralForCausalLM", "MixtralConfig", text(64, 32000), hidden_size=1024, intermediate_size=3584,
    num_hidden_layers=3, num_attention_heads=16, num_key_value_heads=4, num_local_experts=8, num_experts_per_tok=2,
    use_cache=False, output_router_logits=True,
)  # fmt: skip

_WHISPER = transformer(
    "WhisperForConditionalGeneration", "WhisperConfig",
    lambda batch: {"input_features": torch.randn(batch, 80, 3000), "labels": tokens(batch, 48, 51865)},
    d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
    encoder_ffn_dim=2048, decoder_ffn_dim=2048, dropout=0.0, use_cache=False,
    begin_suppress_tokens=None, suppress_tokens=None,
)  # fmt: skip

_VIT = transformer(
    "ViTForImageClassification", "ViTConfig", pixels(224, 1000), **_ONE_LABEL,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip

_SWIN = transformer(
    "SwinForImageClassification", "SwinConfig", pixels(224, 1000), **_ONE_LABEL,
    drop_path_rate=0.0, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip

_CONVNEXT = transformer("ConvNextForImageClassification", "ConvNextConfig", pixels(224, 1000), **_ONE_LABEL)
_RESNET = transformer("ResNetForImageClassification", "ResNetConfig", pixels(224, 1000), **_ONE_LABEL)
_MOBILENET = transformer(
    "MobileNetV2ForImageClassification", "MobileNetV2Config", pixels(224, 1000), **_ONE_LABEL,
    classifier_dropout_prob=0.0,
)  # fmt: skip
_CLIP = transformer(
    "CLIPModel", "CLIPConfig",
    lambda batch: {
        "input_ids": tokens(batch, 77, 49000), "pixel_values": torch.randn(batch, 3, 224, 224), "return_loss": True,
    },
)  # fmt: skip

REAL_ZOO: tuple[Entry, ...] = (
    _like("bert", **_BERT),
    _like("gpt2", **_GPT2),
    _like("t5", **_T5),
    _like("llama", **_LLAMA),
    _like("mixtral", **_MIXTRAL),
    _like("whisper", **_WHISPER),
    _like("vit", **_VIT),
    _like("swin", **_SWIN),
    _like("convnext", **_CONVNEXT),
    _like("resnet", **_RESNET),
    _like("mobilenet", **_MOBILENET),
    _like("clip", **_CLIP),
    _like(
        "lstm",
        make=partial(Lstm, 512),
        inputs=lambda batch: {"tokens": torch.randint(0, 20, (batch, 64)), "labels": torch.randint(0, 4, (batch,))},
    ),
    _like(
        "unet",
        make=partial(UNet, 32),
        inputs=lambda batch: {"x": torch.randn(batch, 3, 128, 128), "target": torch.rand(batch, 2, 128, 128)},
    ),
    _like("graph", make=partial(GraphNetwork, 128), inputs=graphs(500, 4000)),
    _like("dlrm", make=partial(Dlrm, 100_000, 64), inputs=clicks(100_000)),
    _like("diffusion", make=Diffusion, inputs=noisy),
)

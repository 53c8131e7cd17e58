"""Any model of timm or transformers as a Model: `timm:NAME`, `transformers:MODEL_TYPE`.

timm's models have their own sizes. A model of transformers has its configuration's sizes, but at most 4 layers where
the configuration takes another number, and is the first of: a classifier of images, text to text, a masked language
model, a language model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .model import Classifier, Inputs, Model, classes, next_token, pixels, pretrained, text

LAYERS, TOKENS, IMAGES, TEXTS = 4, 512, 32, 4
"""Layers of transformers' models; tokens of a text at most; the batch of images and of texts."""

_SMALL: Mapping[str, int] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 96, "vocab_size": 97, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""The settings of a small model, of those that its configuration has."""


@dataclass(frozen=True)
class _Kind:
    """What transformers' models are made for. mapping: transformers' table of the classes, by type of configuration.
    inputs, targets: of a configuration."""

    mapping: str
    family: str
    batch: int
    inputs: Callable[[Any], Callable[[int, bool], Inputs]]
    targets: Callable[[Any], Callable[[int, bool], Inputs]]
    settings: Mapping[str, Any]


def _tokens(config: Any) -> int:
    """How many tokens a text has. Some models count positions from behind the padding: a text takes three quarters."""
    positions = getattr(config, "max_position_embeddings", None) or 2 * TOKENS
    return min(TOKENS, positions * 3 // 4)


def _words(config: Any) -> int:
    """The size of the vocabulary; of a model that reads more than texts, of the part that reads texts."""
    return int(config.get_text_config().vocab_size)


def _text(config: Any) -> Callable[[int, bool], Inputs]:
    return text(_words(config), _tokens(config))


def _next(config: Any) -> Callable[[int, bool], Inputs]:
    return next_token(_words(config), _tokens(config))


def _both_texts(config: Any) -> Callable[[int, bool], Inputs]:
    made = _text(config)

    def inputs(batch: int, tiny: bool) -> Inputs:
        tokens = made(batch, tiny)["input_ids"]
        return {"input_ids": tokens, "decoder_input_ids": tokens[:, : tokens.shape[1] // 4].clone()}

    return inputs


def _next_of_both(config: Any) -> Callable[[int, bool], Inputs]:
    return next_token(_words(config), _tokens(config) // 4, (97, 6))


_ONE_LABEL = {"problem_type": "single_label_classification"}
_KINDS = (
    _Kind(
        "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", "vision", IMAGES,
        lambda config: pixels(_side(config), _side(config)), lambda config: classes(1000),
        {**_ONE_LABEL, "num_labels": 1000},
    ),
    _Kind(
        "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "encoder-decoder", TEXTS, _both_texts, _next_of_both, {},
    ),
    _Kind(
        "MODEL_FOR_MASKED_LM_MAPPING_NAMES", "encoder", 2 * TEXTS, _text, _next, {},
    ),
    _Kind(
        "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "decoder", TEXTS, _text, _next, {},
    ),
)  # fmt: skip


def by_name(name: str) -> Model:
    """Returns the model `LIBRARY:MODEL`. Errors: ValueError if there is no such model, or no such library here."""
    library, _, model = name.partition(":")
    if library not in _LIBRARIES or not model:
        raise ValueError(f"no model {name!r}: rows of the zoo (--list), timm:NAME, transformers:MODEL_TYPE")
    try:
        return _LIBRARIES[library](name, model)
    except ImportError as cause:
        raise ValueError(f"{name} needs {library}, which is not installed here") from cause


def _timm(name: str, model: str) -> Model:
    import timm

    if model not in timm.list_models():
        raise ValueError(f"timm has no model {model!r}")
    _, height, width = timm.get_pretrained_cfg_value(model, "input_size") or (3, 224, 224)

    def make(tiny: bool) -> nn.Module:
        return Classifier(timm.create_model(model, pretrained=False, num_classes=1000))

    def inputs(batch: int, tiny: bool) -> Inputs:
        return {"pixel_values": torch.randn(batch, 3, height, width)}

    return Model(name, "timm", make, inputs, classes(1000), IMAGES, IMAGES, autocast=True, needs=("timm",))


def _transformers(name: str, model: str) -> Model:
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto

    kind = next((kind for kind in _KINDS if model in getattr(modeling_auto, kind.mapping)), None)
    if kind is None:
        raise ValueError(f"transformers has no model of type {model!r} that reads images or texts alone")
    config = CONFIG_MAPPING[model]()
    layers = getattr(config, "num_hidden_layers", None)
    fewer = {"num_hidden_layers": min(layers, LAYERS)} if isinstance(layers, int) else {}
    full = _taken(type(config), {**kind.settings, **fewer})
    small = _taken(type(config), {key: value for key, value in _SMALL.items() if _may_be_set(config, key)})
    made = getattr(modeling_auto, kind.mapping)[model]
    made = made if isinstance(made, str) else made[0]
    vision = kind.family == "vision"
    return Model(
        name, kind.family, pretrained(made, type(config).__name__, full, {} if vision else small), kind.inputs(config),
        kind.targets(config), kind.batch, kind.batch, autocast=vision, needs=("transformers",),
    )  # fmt: skip


def _taken(make: Callable[..., Any], settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the settings, without the number of layers where the configuration has the layers' kinds one by one and
    refuses another number of them (gpt_neo, funnel)."""
    try:
        make(**settings)
    except Exception:  # gpt_neo's is huggingface_hub's own, which has no narrower base
        return {key: value for key, value in settings.items() if key != "num_hidden_layers"}
    return settings


def _may_be_set(config: Any, key: str) -> bool:
    """Is this a setting of the configuration, not worked out from others?"""
    own = key.endswith("_token_id") or isinstance(getattr(config, key, None), int)
    return own and not isinstance(getattr(type(config), key, None), property)


def _side(config: Any) -> int:
    """Pixels of a side of an image."""
    size = getattr(config, "image_size", 224)
    return int(size if isinstance(size, int) else size[0])


_LIBRARIES: Mapping[str, Callable[[str, str], Model]] = {"timm": _timm, "transformers": _transformers}

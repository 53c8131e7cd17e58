"""Images to classes or maps: convolutions, windows, and both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.vision import UNet, densenet121, mobilenet_v3

from .model import Classifier, Model, classes, pixels, pretrained, with_loss

_ONE_LABEL: dict[str, Any] = {"num_labels": 1000, "problem_type": "single_label_classification"}


def _pretrained(name: str, prefix: str, batch: int, full: dict[str, Any], small: dict[str, Any], **more: Any) -> Model:
    return Model(
        name,
        more.pop("family", "convolutions"),
        pretrained(f"{prefix}ForImageClassification", f"{prefix}Config", {**full, **_ONE_LABEL}, small),
        more.pop("inputs", pixels()),
        classes(1000),
        batch,
        batch,
        autocast=True,
        needs=("transformers",),
        **more,
    )


def _timm(name: str, batch: int, family: str) -> Model:
    def make(tiny: bool) -> nn.Module:
        import timm

        return Classifier(timm.create_model(name, pretrained=False))

    return Model(
        name, family, make, pixels(224, 224), classes(1000), batch, batch, autocast=True, needs=("timm",)
    )  # fmt: skip


def _written(name: str, batch: int, make: Callable[[], nn.Module]) -> Model:
    return Model(
        name, "convolutions", lambda tiny: Classifier(make()), pixels(), classes(1000), batch, batch, autocast=True
    )


class Segmenter(nn.Module):
    """A U-Net, and the loss of each pixel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = UNet(width)

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        maps = self.body(pixel_values)
        return with_loss({"maps": maps}, lambda: F.cross_entropy(maps, labels), labels)


def _pixel_classes(batch: int, tiny: bool) -> dict[str, Tensor]:
    return {"labels": torch.randint(0, 2, (batch, *(2 * [64 if tiny else 256])))}


MODELS = (
    _pretrained("resnet50", "ResNet", 32, {}, {"hidden_sizes": [32, 64], "depths": [2, 2], "embedding_size": 16}),
    _pretrained(
        "efficientnet_b0", "EfficientNet", 64,
        {"width_coefficient": 1.0, "depth_coefficient": 1.0, "image_size": 224, "hidden_dim": 1280},
        {"width_coefficient": 0.25, "depth_coefficient": 0.5, "image_size": 64, "hidden_dim": 320},
    ),
    _written("mobilenet_v3", 64, mobilenet_v3),
    _pretrained("convnext_t", "ConvNext", 32, {}, {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 2, 1]}),
    _pretrained("regnet_y", "RegNet", 32, {}, {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 2],
                                               "groups_width": 16}),
    _written("densenet121", 32, densenet121),
    Model(
        "unet", "convolutions", lambda tiny: Segmenter(4 if tiny else 32), pixels(256, 64), _pixel_classes, 8, 8,
        autocast=True,
    ),
    _pretrained(
        "vit_b", "ViT", 32, {},
        {"image_size": 64, "patch_size": 16, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 96},
        family="attention",
    ),
    _pretrained(
        "swin_t", "Swin", 32, {},
        {"image_size": 64, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        family="windows",
    ),
    _pretrained(
        "pvt_v2_b2", "PvtV2", 32,
        {"depths": [3, 4, 6, 3], "hidden_sizes": [64, 128, 320, 512], "num_attention_heads": [1, 2, 5, 8]},
        {"image_size": 64, "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32],
         "num_attention_heads": [1, 2, 2, 4]},
        family="convolutions and attention",
    ),
    _pretrained(
        "mobilevit_s", "MobileViT", 32, {"image_size": 256},
        {"image_size": 64, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 16, 16, 24, 32, 32, 48]},
        family="convolutions and attention", inputs=pixels(256, 64),
    ),
    _pretrained(
        "cvt_13", "Cvt", 32, {},
        {"embed_dim": [16, 24, 32], "num_heads": [1, 2, 2], "depth": [1, 2, 3]},
        family="convolutions and attention",
    ),
    _timm("coatnet_0_rw_224", 32, "convolutions and attention"),
    _timm("maxvit_tiny_rw_224", 32, "convolutions and attention"),
)  # fmt: skip

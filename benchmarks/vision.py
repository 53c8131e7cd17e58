"""Convolutional networks to measure layouts with: in, a name; out, a module from images to 1000 classes (or an image).

ResNet-50, ConvNeXt-T, RegNetY-040 and EfficientNet-B0 are transformers'; the others are written here after their
papers. Weights are random: only time is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Pooled(nn.Module):
    """A transformers backbone with a linear layer on its pooled features."""

    def __init__(self, backbone: nn.Module, width: int) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(pixel_values=x).pooler_output.flatten(1))


def resnet50() -> nn.Module:
    from transformers import ResNetConfig, ResNetModel

    return Pooled(ResNetModel(ResNetConfig()), 2048)


def convnext_t() -> nn.Module:
    from transformers import ConvNextConfig, ConvNextModel

    return Pooled(ConvNextModel(ConvNextConfig()), 768)


def regnet_y_040() -> nn.Module:
    from transformers import RegNetConfig, RegNetModel

    return Pooled(RegNetModel(RegNetConfig()), 1088)


def efficientnet_b0() -> nn.Module:
    from transformers import EfficientNetConfig, EfficientNetModel

    config = EfficientNetConfig(
        width_coefficient=1.0, depth_coefficient=1.0, image_size=224, hidden_dim=1280, drop_connect_rate=0.0
    )
    return Pooled(EfficientNetModel(config), 1280)


def _conv(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, act: Any = nn.ReLU
) -> nn.Sequential:
    """Convolution, batch norm and an activation (None: no activation)."""
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([act()] if act is not None else []))


class Squeeze(nn.Module):
    """Squeeze and excitation (Hu et al., 2018) with MobileNetV3's hard sigmoid."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = max(8, (channels // 4 + 4) // 8 * 8)
        self.down, self.up = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * F.hardsigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))))


class Inverted(nn.Module):
    """An inverted residual of MobileNetV3 (Howard et al., 2019)."""

    def __init__(self, inputs: int, kernel: int, wide: int, outputs: int, squeeze: bool, act: Any, stride: int) -> None:
        super().__init__()
        self.residual = stride == 1 and inputs == outputs
        self.body = nn.Sequential(
            _conv(inputs, wide, 1, act=act) if wide != inputs else nn.Identity(),
            _conv(wide, wide, kernel, stride, groups=wide, act=act),
            Squeeze(wide) if squeeze else nn.Identity(),
            _conv(wide, outputs, 1, act=None),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


R, H = nn.ReLU, nn.Hardswish
# kernel, wide, outputs, squeeze, activation, stride: table 1 of the paper.
_MOBILE = (
    (3, 16, 16, False, R, 1), (3, 64, 24, False, R, 2), (3, 72, 24, False, R, 1), (5, 72, 40, True, R, 2),
    (5, 120, 40, True, R, 1), (5, 120, 40, True, R, 1), (3, 240, 80, False, H, 2), (3, 200, 80, False, H, 1),
    (3, 184, 80, False, H, 1), (3, 184, 80, False, H, 1), (3, 480, 112, True, H, 1), (3, 672, 112, True, H, 1),
    (5, 672, 160, True, H, 2), (5, 960, 160, True, H, 1), (5, 960, 160, True, H, 1),
)  # fmt: skip


def mobilenet_v3() -> nn.Module:
    layers: list[nn.Module] = [_conv(3, 16, 3, 2, act=H)]
    inputs = 16
    for kernel, wide, outputs, squeeze, act, stride in _MOBILE:
        layers.append(Inverted(inputs, kernel, wide, outputs, squeeze, act, stride))
        inputs = outputs
    layers += [_conv(160, 960, 1, act=H), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, 1000))


class DenseLayer(nn.Module):
    """A layer of DenseNet (Huang et al., 2017): 32 channels more."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(), _conv(inputs, 128, 1), nn.Conv2d(128, 32, 3, padding=1, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


def densenet121() -> nn.Module:
    layers: list[nn.Module] = [_conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for at, depth in enumerate((6, 12, 24, 16)):
        for _ in range(depth):
            layers.append(DenseLayer(channels))
            channels += 32
        if at < 3:
            norm = (nn.BatchNorm2d(channels), nn.ReLU())
            layers += [*norm, nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
    tail = (nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*layers, *tail, nn.Linear(channels, 1000))


def _two(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(_conv(inputs, outputs, 3), _conv(outputs, outputs, 3))


class UNet(nn.Module):
    """The U-Net of Ronneberger et al. (2015), padded, with batch norm: an image in, two maps out."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        sizes = [width * 2**at for at in range(5)]
        self.down = nn.ModuleList([_two(a, b) for a, b in zip([3, *sizes[:-1]], sizes, strict=True)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(2 * n, n, 2, 2) for n in reversed(sizes[:-1])])
        self.mix = nn.ModuleList([_two(2 * n, n) for n in reversed(sizes[:-1])])
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for at, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if at else x)
            kept.append(x)
        kept.pop()
        for up, mix in zip(self.up, self.mix, strict=True):
            x = mix(torch.cat([kept.pop(), up(x)], 1))
        return self.head(x)


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "resnet50": resnet50,
    "mobilenet_v3": mobilenet_v3,
    "efficientnet_b0": efficientnet_b0,
    "convnext_t": convnext_t,
    "densenet121": densenet121,
    "unet": UNet,
    "regnet_y_040": regnet_y_040,
}

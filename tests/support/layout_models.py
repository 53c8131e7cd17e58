"""Small networks of the kinds that layouts matter to, and what they are called with."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """A residual block with batch norm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.second(F.relu(self.first(x))))


class Residual(nn.Module):
    """A plain convolutional network: stem, pool, blocks, classifier."""

    def __init__(self, channels: int = 16, blocks: int = 2) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(*(Block(channels) for _ in range(blocks)))
        self.head = nn.Linear(channels, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.adaptive_avg_pool2d(self.blocks(self.pool(self.stem(x))), 1).flatten(1))


class Bottleneck(nn.Module):
    """A bottleneck of ResNet-50: 1x1, 3x3, 1x1, and a shortcut, by a convolution where sizes change."""

    def __init__(self, inputs: int, inner: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * inner
        sizes = [(inputs, inner, 1, 1), (inner, inner, 3, stride), (inner, outputs, 1, 1)]
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, k, s, k // 2, bias=False) for a, b, k, s in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _, outputs, _, _ in sizes)
        changes = stride > 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for at, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            y = norm(convolution(y))
            y = F.relu(y) if at < 2 else y
        return F.relu(y + self.shortcut(x))


class Bottlenecks(nn.Module):
    """ResNet-50 after its stem, a bottleneck a stage: images of 64 channels in."""

    def __init__(self, stages: tuple[int, ...] = (64, 128, 256, 512)) -> None:
        super().__init__()
        inputs, blocks = 64, []
        for at, inner in enumerate(stages):
            blocks.append(Bottleneck(inputs, inner, 1 if at == 0 else 2))
            inputs = 4 * inner
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x).mean((2, 3))


class Pixelwise(nn.Module):
    """Convolutions of one pixel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Conv2d(channels, channels, 1) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class UNet(nn.Module):
    """Down, up by a transposed convolution and by interpolation, joined by cat; group norm; an image out."""

    def __init__(self, c: int = 8) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, c, 3, padding=1)
        self.norm = nn.GroupNorm(2, c)
        self.inner = nn.Conv2d(c, 2 * c, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.mix = nn.Conv2d(4 * c, c, 3, padding=1)
        self.out = nn.Conv2d(c, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.norm(self.down(x)))
        b = F.gelu(self.inner(a))
        wide = F.interpolate(b, scale_factor=2, mode="nearest")
        return self.out(F.relu(self.mix(torch.cat([a, self.up(b), wide], 1))))


class Mobile(nn.Module):
    """Depthwise and grouped convolutions, squeeze and excitation, average pooling, hard swish."""

    def __init__(self, c: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, c, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(c, c, 5, padding=2, groups=c)
        self.squeeze = nn.Conv2d(c, 4, 1)
        self.excite = nn.Conv2d(4, c, 1)
        self.grouped = nn.Conv2d(c, c, 3, padding=1, groups=4)
        self.head = nn.Conv2d(c, 7, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depthwise(F.hardswish(self.stem(x)))
        x = x * torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        return self.head(F.avg_pool2d(self.grouped(x), 2)).flatten(2)


class ConvNext(nn.Module):
    """Half channels first, half channels last by hand: layer norm and linear layers over the channels."""

    def __init__(self, c: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, c, 4, stride=4)
        self.mix = nn.Conv2d(c, c, 7, padding=3, groups=c)
        self.norm = nn.LayerNorm(c)
        self.widen, self.narrow = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.mix(x).permute(0, 2, 3, 1)
        y = self.narrow(F.gelu(self.widen(self.norm(y))))
        return x + y.permute(0, 3, 1, 2)


class Volume(nn.Module):
    """Three dimensions."""

    def __init__(self, c: int = 4) -> None:
        super().__init__()
        self.a = nn.Conv3d(2, c, 3, padding=1)
        self.norm = nn.BatchNorm3d(c)
        self.b = nn.Conv3d(c, c, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.max_pool3d(F.relu(self.norm(self.a(x))), 2)).sum((2, 3, 4))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, (2, 3, 16, 16)),
    "unet": (UNet, (2, 3, 16, 16)),
    "mobile": (Mobile, (2, 3, 16, 16)),
    "convnext": (ConvNext, (2, 3, 16, 16)),
    "volume": (Volume, (2, 2, 8, 8, 8)),
}
"""name: (make, size of the input)."""

"""Denoisers of diffusion models, written here after their papers: a U-Net with attention to text, a transformer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .model import Inputs, Model, with_loss


def _times(t: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Sines and cosines of times: (batch,) to (batch, width)."""
    frequency = torch.exp(torch.arange(width // 2, device=t.device) * (-9.21 / (width // 2)))
    angle = t[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], -1).to(dtype)


class Residual(nn.Module):
    """Two convolutions under group norms, with the time between them."""

    def __init__(self, inputs: int, outputs: int, time: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(groups, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(groups, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.short = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, when: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(when))[:, :, None, None]
        return self.short(x) + self.conv2(F.silu(self.norm2(h)))


class Look(nn.Module):
    """Attention: to itself, or to a text of `other` features."""

    def __init__(self, width: int, other: int, heads: int) -> None:
        super().__init__()
        self.heads, self.q = heads, nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(other, width, bias=False) for _ in range(2))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q(x), self.k(text), self.v(text))
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """Pixels look at each other and at the text; a gated linear unit after that."""

    def __init__(self, width: int, text: int, heads: int, groups: int) -> None:
        super().__init__()
        self.norm, self.enter, self.leave = (
            nn.GroupNorm(groups, width),
            nn.Linear(width, width),
            nn.Linear(width, width),
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.here, self.there = Look(width, width, heads), Look(width, text, heads)
        self.gate, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        h = self.enter(self.norm(x).flatten(2).transpose(1, 2))
        normal = self.norms[0](h)
        h = h + self.here(normal, normal)
        h = h + self.there(self.norms[1](h), text)
        value, gate = self.gate(self.norms[2](h)).chunk(2, -1)
        h = self.leave(h + self.down(value * F.gelu(gate)))
        return x + h.transpose(1, 2).unflatten(2, x.shape[2:])


class DiffusionUNet(nn.Module):
    """Like Stable Diffusion's (Rombach et al., 2022): x (batch, 4, side, side), t (batch,), text (batch, words, n)."""

    def __init__(self, width: int, factors: tuple[int, ...], text: int, heads: int, groups: int) -> None:
        super().__init__()
        self.width, time = width, 4 * width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(4, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        sizes = [width * factor for factor in factors]
        skips, here = [width], width
        for level, size in enumerate(sizes):
            last = level == len(sizes) - 1
            for _ in range(2):
                self.down.append(self._block(here, size, time, text, heads, groups, not last))
                here = size
                skips.append(here)
            if not last:
                self.down.append(nn.Conv2d(here, here, 3, 2, 1))
                skips.append(here)
        self.middle = nn.ModuleList(
            [
                Residual(here, here, time, groups),
                Transformer(here, text, heads, groups),
                Residual(here, here, time, groups),
            ]
        )
        for level, size in reversed(list(enumerate(sizes))):
            for _ in range(3):
                self.up.append(self._block(here + skips.pop(), size, time, text, heads, groups, level < len(sizes) - 1))
                here = size
            if level:
                self.up.append(nn.Conv2d(here, here, 3, padding=1))
        self.norm, self.leave = nn.GroupNorm(groups, here), nn.Conv2d(here, 4, 3, padding=1)

    @staticmethod
    def _block(inputs: int, size: int, time: int, text: int, heads: int, groups: int, looks: bool) -> nn.ModuleList:
        block = [Residual(inputs, size, time, groups)]
        return nn.ModuleList([*block, *([Transformer(size, text, heads, groups)] if looks else [])])

    def forward(self, x: Tensor, t: Tensor, text: Tensor, noise: Tensor | None = None) -> dict[str, Tensor]:
        when = self.time(_times(t, self.width, x.dtype))
        h = self.enter(x)
        skips = [h]
        for part in self.down:
            h = part(h) if isinstance(part, nn.Conv2d) else self._run(part, h, when, text)
            skips.append(h)
        h = self._run(self.middle, h, when, text)
        for part in self.up:
            if isinstance(part, nn.Conv2d):
                h = part(F.interpolate(h, scale_factor=2.0, mode="nearest"))
            else:
                h = self._run(part, torch.cat([h, skips.pop()], 1), when, text)
        guess = self.leave(F.silu(self.norm(h)))
        return with_loss({"guess": guess}, lambda: F.mse_loss(guess, noise), noise)

    @staticmethod
    def _run(parts: nn.ModuleList, h: Tensor, when: Tensor, text: Tensor) -> Tensor:
        for part in parts:
            h = part(h, when if isinstance(part, Residual) else text)
        return h


class Modulated(nn.Module):
    """A block of a diffusion transformer: what the time says scales and shifts each norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.look = Look(width, width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
        self.says = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, when: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.says(F.silu(when))[:, None].chunk(6, -1)
        h = self.norm1(x) * (1 + scale1) + shift1
        x = x + gate1 * self.look(h, h)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class DiffusionTransformer(nn.Module):
    """DiT (Peebles and Xie, 2023): x (batch, 4, side, side), t (batch,), kinds (batch,)."""

    def __init__(self, width: int, depth: int, heads: int, side: int) -> None:
        super().__init__()
        self.width = width
        self.patches, self.kinds = nn.Conv2d(4, width, 2, 2), nn.Embedding(1000, width)
        self.places = nn.Parameter(torch.randn(1, (side // 2) ** 2, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(Modulated(width, heads) for _ in range(depth))
        self.norm, self.leave = nn.LayerNorm(width), nn.Linear(width, 16)

    def forward(self, x: Tensor, t: Tensor, kinds: Tensor, noise: Tensor | None = None) -> dict[str, Tensor]:
        batch, _, side, _ = x.shape
        h = self.patches(x).flatten(2).transpose(1, 2) + self.places
        when = self.time(_times(t, self.width, x.dtype)) + self.kinds(kinds)
        for block in self.blocks:
            h = block(h, when)
        h = self.leave(self.norm(h)).view(batch, side // 2, side // 2, 2, 2, 4)
        guess = h.permute(0, 5, 1, 3, 2, 4).reshape(batch, 4, side, side)
        return with_loss({"guess": guess}, lambda: F.mse_loss(guess, noise), noise)


def _noisy(batch: int, tiny: bool) -> Inputs:
    """Times are small: the sine of a large angle is mostly the rounding of the angle."""
    side = 16 if tiny else 64
    return {"x": torch.randn(batch, 4, side, side), "t": torch.randint(0, 10, (batch,))}


def _with_text(batch: int, tiny: bool) -> Inputs:
    return {**_noisy(batch, tiny), "text": torch.randn(batch, 77, 32 if tiny else 768)}


def _with_kinds(batch: int, tiny: bool) -> Inputs:
    return {**_noisy(batch, tiny), "kinds": torch.randint(0, 1000, (batch,))}


def _noise(batch: int, tiny: bool) -> Inputs:
    return {"noise": _noisy(batch, tiny)["x"]}


MODELS = (
    Model(
        "diffusion_unet", "diffusion",
        lambda tiny: DiffusionUNet(16, (1, 2), 32, 2, 4) if tiny else DiffusionUNet(192, (1, 2, 4), 768, 8, 32),
        _with_text, _noise, 8, 8,
    ),
    Model(
        "diffusion_transformer", "diffusion",
        lambda tiny: DiffusionTransformer(64, 2, 4, 16) if tiny else DiffusionTransformer(768, 12, 12, 64),
        _with_kinds, _noise, 8, 8,
    ),
)  # fmt: skip

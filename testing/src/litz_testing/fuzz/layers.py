"""Statements of layers: pooling, resizing, norms over channels, losses, bags of embeddings, regions without gradients
or with autocast."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .operations import Draft, Draw, operation_on, some

TYPES = (torch.float32, torch.float64, torch.bfloat16)

_matrix = some(lambda t: t.dtype in TYPES and t.dim() == 2 and min(t.shape) >= 1 and t.numel() < 5000)


def _image(*dims: int) -> Callable[[Draw], str]:
    """The subject is a variable of so many dimensions, or a new input: what is at hand seldom is an image."""

    def find(draw: Draw) -> str:
        found = draw.any(
            lambda t: t.dtype in TYPES and t.dim() in dims and min(t.shape[-2:]) >= 3 and 0 < t.numel() < 5000
        )
        if found is not None and draw.chance(0.6):
            return found
        size = [draw.rng.choice(choices) for choices in ((1, 2), (1, 2, 3), (3, 5, 8), (4, 7))]
        return draw.input(size, draw.rng.choice(TYPES))

    return find


POOLS = (
    "max_pool2d({0}, 2)", "max_pool2d({0}, 3, 1, 1)", "max_pool2d({0}, (2, 3), 2, (1, 1))",
    "max_pool2d({0}, 2, ceil_mode=True)", "max_pool2d({0}, 2, 1, dilation=2)", "avg_pool2d({0}, 2)",
    "avg_pool2d({0}, 3, 2, 1)", "avg_pool2d({0}, 3, 2, 1, count_include_pad=False)",
    "avg_pool2d({0}, 2, ceil_mode=True)",
    "avg_pool2d({0}, 2, divisor_override=3)", "adaptive_avg_pool2d({0}, (2, 3))", "adaptive_avg_pool2d({0}, 1)",
    "adaptive_max_pool2d({0}, 2)", "max_pool2d({0}.mT, 2)", "max_pool2d({0}, 3, 2, 1) + 1",
)  # fmt: skip
RESIZED = (
    "interpolate({0}, scale_factor=2.0)", "interpolate({0}, size=(5, 4))",
    "interpolate({0}, size=(3, 7), mode='bilinear')",
    "interpolate({0}, size=(7, 3), mode='bilinear', align_corners=True)", "interpolate({0}, size=(4, 5), mode='area')",
    "interpolate({0}, size=(5, 6), mode='bicubic')", "interpolate({0}, scale_factor=0.5, mode='nearest-exact')",
    "interpolate({0}, scale_factor=(2.0, 0.5), mode='bilinear')", "unfold({0}, (2, 3), stride=2, padding=1)",
    "fold(torch.nn.functional.unfold({0}, 2), {0}.shape[-2:], 2)", "pad({0}, (2, 1, 1, 2), 'reflect')",
    "pad({0}, (1, 2, 2, 0), 'circular')", "pad({0}, (3, 0, -1, 2), 'replicate')",
)  # fmt: skip
NORMS = (
    "batch_norm({0}, None, None, training=True, eps=0.1)", "group_norm({0}, 1, eps=0.1)",
    "group_norm({0}, {0}.size(1), eps=0.1)", "instance_norm({0}, eps=0.1)", "rms_norm({0}, ({0}.size(-1),), eps=0.1)",
)  # fmt: skip
LOSSES = (
    "cross_entropy({0}, {1})", "cross_entropy({0}, {1}, reduction='none')", "cross_entropy({0}, {1}, ignore_index=0)",
    "cross_entropy({0}, {1}, label_smoothing=0.25, reduction='sum')", "nll_loss({0}.log_softmax(1), {1})",
    "cross_entropy({0}, {0}.flip(0).softmax(1))", "smooth_l1_loss({0}, {0}.flip(0), beta=0.5)",
    "huber_loss({0}, {0}.roll(1, 0), reduction='none')", "binary_cross_entropy_with_logits({0}, {0}.flip(1).sigmoid())",
    "kl_div({0}.log_softmax(1), {0}.flip(0).softmax(1), reduction='batchmean')", "multi_margin_loss({0}, {1})",
    "cosine_similarity({0}, {0}.flip(0), 1, 0.5)", "soft_margin_loss({0}, {0}.flip(0).clamp(-1, 1))",
)  # fmt: skip
BAGS = (
    "embedding_bag({1}, {0}, mode='sum')", "embedding_bag({1}, {0}, mode='mean')",
    "embedding_bag({1}, {0}, mode='max')",
    "embedding_bag({1}.flatten(), {0}, torch.arange({1}.size(0)) * {1}.size(1), mode='sum')",
    "embedding({1}, {0}, padding_idx=0)", "one_hot({1}, {0}.size(0)).to({0}.dtype) @ {0}",
)  # fmt: skip
REGIONS = (
    "torch.no_grad()(lambda x: x.softmax(-1) * 2)({0})", "(torch.no_grad()(lambda x: x * 2)({0}) + {0})",
    "torch.enable_grad()(lambda x: x.sin())({0})",
    "torch.autocast({0}.device.type, torch.bfloat16)(lambda x: x @ x.mT + 1)({0})",
    "torch.autocast({0}.device.type, torch.bfloat16)(lambda x: (x @ x.mT).softmax(-1))({0})",
    "torch.autocast({0}.device.type, torch.bfloat16)(lambda x: torch.nn.functional.linear(x, x * 0.5) + x[:, :1])({0})",
)  # fmt: skip
"""Tools of torch that are context managers and decorators, as decorators."""


@operation_on(_image(3, 4), 1.0)
def pooling(draw: Draw, name: str) -> Draft | None:
    """Pools an image, the largest or the mean of a window."""
    return Draft(f"torch.nn.functional.{draw.rng.choice(POOLS).format(name)}", rough=True)


@operation_on(_image(4), 1.0)
def resizing(draw: Draw, name: str) -> Draft | None:
    """Makes an image larger or smaller, or windows of an image columns."""
    return Draft(f"torch.nn.functional.{draw.rng.choice(RESIZED).format(name)}", rough=True)


@operation_on(_image(3, 4), 0.7)
def channel_norm(draw: Draw, name: str) -> Draft | None:
    """Normalises channels, groups of channels or rows."""
    return Draft(f"torch.nn.functional.{draw.rng.choice(NORMS).format(name)}", rough=True, centred=True)


@operation_on(_matrix, 0.8)
def loss(draw: Draw, name: str) -> Draft | None:
    """Compares rows with classes or with other rows."""
    rows, classes = map(int, draw.value(name).shape)
    text = draw.rng.choice(LOSSES)
    target = draw.index((rows,), classes) if "{1}" in text else ""
    # What rows differ by may be 0, of terms that were rounded one by one.
    return Draft(f"torch.nn.functional.{text.format(name, target)}", rough=True, deep=text.startswith("kl_div"))


@operation_on(_matrix, 0.6)
def bag(draw: Draw, name: str) -> Draft | None:
    """Sums, means or maxima of rows that indices pick."""
    index = draw.index((2, draw.rng.choice([1, 3, 4])), int(draw.value(name).shape[0]))
    return Draft(f"torch.nn.functional.{draw.rng.choice(BAGS).format(name, index)}", rough=True)


@operation_on(_matrix, 0.8)
def region(draw: Draw, name: str) -> Draft | None:
    """Computes without gradients, with them, or under autocast."""
    return Draft(draw.rng.choice(REGIONS).format(name), rough=True, deep=True)

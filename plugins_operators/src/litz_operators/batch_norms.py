"""Norms of batches on a CPU, of numbers whose squares float32 does not hold: what eager has in double there.

In: the operands of a norm in training, or of its gradient. Out: the same op by smaller ones. The deviation is within
the type where the variance is not, so that it is the deviation that is made; its square is a double, one for each
channel. The gradient is made of what the norm was, and no product leaves the type. On other devices, without training
and for float64 torch's rule stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten

_NORMS = (aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit.no_stats)
_GRADIENT = aten.native_batch_norm_backward.default
Rule = Callable[..., Any]


def own_batch_norms(core: Mapping[OpOverload, Rule]) -> dict[OpOverload, Rule]:
    """Returns the decompositions, by op. core: the table that they are in place of."""
    return {**{op: partial(_norm, core[op]) for op in _NORMS}, _GRADIENT: partial(_gradient, core[_GRADIENT])}


def _norm(rule: Rule, x: Any, weight: Any, bias: Any, *rest: Any) -> Any:
    """Returns the norm, its mean and the reciprocal of its deviation, and what the running statistics become."""
    *running, training, momentum, eps = rest
    if not training or not _is_float_on_cpu(x):
        return rule(x, weight, bias, *rest)
    dims, per = _dims(x), _per_channel(x)
    wide = x.to(torch.float32)
    deviation, mean = aten.std_mean.correction(wide, dims, correction=0, keepdim=True)
    variance = deviation.to(torch.float64).square()
    scale = (variance + eps).rsqrt().to(torch.float32)
    result = (wide - mean) * scale
    result = result if weight is None else result * weight.view(per)
    result = result if bias is None else result + bias.view(per)
    saved = [value.view(-1).to(x.dtype) for value in (mean, scale)]
    if not running:
        return (result.to(x.dtype), *saved)
    count = x.numel() / x.shape[1]
    fresh = (mean.to(torch.float64), variance * (count / (count - 1)))
    moved = (momentum * new.view(-1) + (1 - momentum) * old for new, old in zip(fresh, running, strict=True))
    # In the types of torch's fake results: what is copied into halves is a float32.
    types = [torch.promote_types(old.dtype, torch.float32) for old in running]
    return (result.to(x.dtype), *saved, *(new.to(dtype) for new, dtype in zip(moved, types, strict=True)))


def _gradient(
    rule: Rule,
    gradient: Any,
    x: Any,
    weight: Any,
    running_mean: Any,
    running_variance: Any,
    mean: Any,
    scale: Any,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> Any:
    """Returns the gradients of what was normed, of the weight and of the bias."""
    if not train or not _is_float_on_cpu(x):
        return rule(gradient, x, weight, running_mean, running_variance, mean, scale, train, eps, output_mask)
    dims, per = _dims(x), _per_channel(x)
    gradient, x_wide, mean, scale = (value.to(torch.float32) for value in (gradient, x, mean, scale))
    count = x.numel() / x.shape[1]
    normed = (x_wide - mean.view(per)) * scale.view(per)
    total, along = gradient.sum(dims), (gradient * normed).sum(dims)
    factor = scale if weight is None else scale * weight
    rest = gradient - normed * (along / count).view(per) - (total / count).view(per)
    dtype = x.dtype if weight is None else weight.dtype
    return (
        (rest * factor.view(per)).to(x.dtype),
        along.to(dtype) if output_mask[1] else None,
        total.to(dtype) if output_mask[2] else None,
    )


def _is_float_on_cpu(x: Any) -> bool:
    return bool(x.device.type == "cpu" and x.dtype.is_floating_point and x.dtype.itemsize <= 4)


def _dims(x: Any) -> list[int]:
    return [0, *range(2, x.dim())]


def _per_channel(x: Any) -> list[int]:
    """The shape of a vector over the channels, beside x."""
    return [1, -1, *[1] * (x.dim() - 2)]

"""Attention and its gradients with one order of additions for each result. In: a call's arguments. Out: products,
sums and functions. All scores of a head are computed, and take memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from litz.capture import torch_api

from .orders import computed_in, laid_as, ordered_sum, product

aten = torch.ops.aten


def _scores(query: Tensor, key: Tensor, is_causal: bool, attn_mask: Tensor | None, scale: float) -> Tensor:
    scores = product(query, key.mT) * scale
    if is_causal:
        rows, columns = (torch.arange(size, device=query.device) for size in scores.shape[-2:])
        scores = torch.where(rows.unsqueeze(-1) >= columns, scores, -math.inf)
    return scores if attn_mask is None else scores + attn_mask.to(scores.dtype)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    if dropout_p != 0.0 or 0 in (*query.shape, *key.shape):
        return NotImplemented
    wide = computed_in(query.dtype)
    by = query.shape[-1] ** -0.5 if scale is None else scale
    scores = _scores(query.to(wide), key.to(wide), is_causal, attn_mask, by)
    most = aten.amax(scores, [-1], True)
    most = torch.where(most == -math.inf, 0.0, most)  # a row without keys
    weights = torch.exp(scores - most)
    total = ordered_sum(weights).unsqueeze(-1)
    result = product(weights, value.to(wide)) / torch.where(total == 0.0, 1.0, total)
    op, more = aten._scaled_dot_product_flash_attention_for_cpu.default, {"attn_mask": attn_mask, "scale": scale}
    expected = torch_api.fake_result(op, (query, key, value, dropout_p, is_causal), more)
    made = result.to(query.dtype), (most + torch.log(total)).squeeze(-1)
    return tuple(map(laid_as, made, expected))


def _attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    if dropout_p != 0.0 or 0 in (*query.shape, *key.shape):
        return NotImplemented
    wide = computed_in(query.dtype)
    by = query.shape[-1] ** -0.5 if scale is None else scale
    d, q, k, v, o = (each.to(wide) for each in (grad, query, key, value, out))
    top = logsumexp.to(wide).unsqueeze(-1)
    weights = torch.exp(_scores(q, k, is_causal, attn_mask, by) - torch.where(top == -math.inf, 0.0, top))
    slopes = weights * (product(d, v.mT) - ordered_sum(d * o).unsqueeze(-1)) * by
    made = product(slopes, k), product(slopes.mT, q), product(weights.mT, d)
    op = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    given = (grad, query, key, value, out, logsumexp, dropout_p, is_causal)
    expected = torch_api.fake_result(op, given, {"attn_mask": attn_mask, "scale": scale})
    return tuple(laid_as(x.to(query.dtype), like) for x, like in zip(made, expected, strict=True))


RULES: Mapping[Any, Callable[..., Any]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
}
"""Ops and how each is written with a fixed order."""

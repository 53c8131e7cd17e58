"""Operators as torch knows them: what eager computes, what a result looks like, and gradients."""

from __future__ import annotations

import torch


@torch.library.custom_op("my_lowering::squareplus", mutates_args=())
def squareplus(x: torch.Tensor, b: float = 4.0) -> torch.Tensor:
    """Returns (x + sqrt(x * x + b)) / 2, elementwise: a smooth relu (Barron, 2021). x: floating point."""
    return (x + (x * x + b).sqrt()) / 2


@squareplus.register_fake
def _(x, b=4.0):
    torch._check(x.is_floating_point(), lambda: f"squareplus needs floating point, got {x.dtype}")
    return torch.empty_like(x)


def _keep_input(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.b = inputs[1]


def _squareplus_backward(ctx, gradient):
    (x,) = ctx.saved_tensors
    return gradient * (1 + x * (x * x + ctx.b).rsqrt()) / 2, None


squareplus.register_autograd(_squareplus_backward, setup_context=_keep_input)


@torch.library.custom_op("my_lowering::rms_norm", mutates_args=())
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Returns x, [..., n], with rows divided by their root mean square, times weight, [n]. It has no gradient."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (wide * scale * weight.to(wide.dtype)).to(x.dtype).contiguous()


@rms_norm.register_fake
def _(x, weight, eps=1e-6):
    torch._check(x.is_floating_point(), lambda: f"rms_norm needs floating point, got {x.dtype}")
    torch._check(x.dim() > 0 and weight.dim() == 1, lambda: "rms_norm needs rows, and one weight for each column")
    torch._check(x.shape[-1] == weight.shape[0], lambda: f"{weight.shape[0]} weights for {x.shape[-1]} columns")
    return torch.empty_like(x, memory_format=torch.contiguous_format)

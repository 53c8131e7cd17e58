"""Programs that show what a figure is worth: in, a device; out, a function and its inputs, drawn by a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

F32, BF16 = torch.float32, torch.bfloat16


@dataclass(frozen=True)
class Program:
    """function: of tensors. sizes: of each input. dtype: of all of them."""

    function: Callable[..., object]
    sizes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype = F32

    def inputs(self, device: torch.device) -> list[torch.Tensor]:
        """Returns the inputs, normally distributed, the same each time."""
        generator = torch.Generator().manual_seed(0)
        return [torch.randn(size, generator=generator).to(device, self.dtype) for size in self.sizes]


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def _moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.var_mean(x, 0)


def _gate_backward(grad: torch.Tensor, x: torch.Tensor, gate: torch.Tensor) -> tuple[torch.Tensor, ...]:
    dx, dgate = grad * F.gelu(gate), grad * x
    return dx, dgate, dx.sum(0), dgate.sum(0)


def _gelu_backward(grad: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    given = torch.ops.aten.gelu_backward(grad, x)
    return given, given.sum(0)


def _pointwise(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * torch.exp(y) + x


PROGRAMS = {
    "moments of columns": Program(_moments, ((8000, 1024),)),
    "gradient of a gate, with its sums": Program(_gate_backward, ((4096, 768),) * 3, BF16),
    "short pointwise": Program(_pointwise, ((96, 128),) * 2),
    "long softmax": Program(_softmax, ((64, 32768),)),
    "softmax 1024": Program(_softmax, ((16384, 1024),), BF16),
    "softmax 64": Program(_softmax, ((262144, 64),)),
    "softmax 49": Program(_softmax, ((524288, 49),), BF16),
    "softmax 32768": Program(_softmax, ((2048, 32768),)),
    "softmax 50257": Program(_softmax, ((2048, 50257),), BF16),
    "layer norm 256": Program(_layer_norm, ((131072, 256), (256,), (256,)), BF16),
    "layer norm 4096": Program(_layer_norm, ((8192, 4096), (4096,), (4096,))),
    "gelu backward": Program(_gelu_backward, ((4096, 3072),) * 2, BF16),
}

"""A transformer in shards: parameters gathered by hand or by FSDP2, or tensor parallel. In: a Size; out: the model and
its compiled form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

HEAD = 128
"""Elements of an attention head."""


@dataclass(frozen=True)
class Size:
    """Of a model, and of a rank's batch."""

    layers: int
    width: int
    tokens: int
    batch: int
    dtype: torch.dtype = torch.bfloat16


LARGE, TINY = Size(4, 4096, 2048, 2), Size(2, 256, 16, 2, torch.float32)


def _policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Gathered parameters are not kept for the backward, but gathered again."""
    return CheckpointPolicy.MUST_RECOMPUTE


def _contexts() -> Any:
    return create_selective_checkpoint_contexts(_policy)


class Sharded(nn.Module):
    """A linear layer of whose weight (out, in) each rank has out / world rows, in float32."""

    def __init__(self, out: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        full = torch.randn(out, width) * width**-0.5
        self.shard = nn.Parameter(full.chunk(dist.get_world_size())[dist.get_rank()].clone())
        self.dtype = dtype

    def _gathered(self, shard: Tensor) -> Tensor:
        return fc.all_gather_tensor_autograd(shard.to(self.dtype), 0, dist.group.WORLD)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, checkpoint(self._gathered, self.shard, use_reentrant=False, context_fn=_contexts))


class Layer(nn.Module):
    """Attention and an MLP. linear: (out, in) -> a module."""

    def __init__(self, width: int, linear: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.query, self.key, self.value = (linear(width, width) for _ in range(3))
        self.out, self.up, self.down = linear(width, width), linear(4 * width, width), linear(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        y = F.rms_norm(x, (width,))
        heads = [m(y).view(batch, tokens, -1, HEAD).transpose(1, 2) for m in (self.query, self.key, self.value)]
        attention = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attention.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(F.rms_norm(x, (width,))), approximate="tanh"))


class Network(nn.Module):
    """Layers, and a loss that reaches all of them."""

    def __init__(self, size: Size, linear: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(size.width, linear) for _ in range(size.layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.float().square().mean()


Compile = Callable[[nn.Module], nn.Module]


def make_fsdp(size: Size, device: torch.device, compiled: Compile) -> tuple[nn.Module, Callable[..., Any]]:
    model = Network(size, lambda out, width: Sharded(out, width, size.dtype)).to(device)
    return model, compiled(model)


def make_fully_shard(size: Size, device: torch.device, compiled: Compile) -> tuple[nn.Module, Callable[..., Any]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    model = Network(size, lambda out, width: nn.Linear(width, out, bias=False)).to(device)
    policy = MixedPrecisionPolicy(param_dtype=size.dtype, reduce_dtype=size.dtype)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model, compiled(model)


def make_tp(size: Size, device: torch.device, compiled: Compile) -> tuple[nn.Module, Callable[..., Any]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    model = Network(size, lambda out, width: nn.Linear(width, out, bias=False)).to(device, size.dtype)
    plan = dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel)
    for layer in model.layers:
        parallelize_module(
            layer,
            mesh,
            {**{name: style() for name, style in plan.items()}, "out": RowwiseParallel(), "down": RowwiseParallel()},
        )
    return model, compiled(model)


PARTS: Mapping[str, Callable[..., tuple[nn.Module, Callable[..., Any]]]] = {
    "fsdp": make_fsdp,
    "fully_shard": make_fully_shard,
    "tp": make_tp,
}

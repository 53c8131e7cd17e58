"""A transformer in shards: parameters gathered by hand or by FSDP2, tensor parallel (also with the sequence
in parts), both, or with experts, one on each rank. In: a Size; out: the model and its compiled form."""

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

# torch 2.13 gave this a new name, and warns of the old one.
reduce_scatter = getattr(fc, "reduce_scatter_single_autograd", None) or fc.reduce_scatter_tensor_autograd

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


LARGE, TINY = Size(4, 4096, 2048, 2), Size(2, 512, 16, 2, torch.float32)


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

    def attended(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        y = F.rms_norm(x, (width,))
        heads = [m(y).view(batch, tokens, -1, HEAD).transpose(1, 2) for m in (self.query, self.key, self.value)]
        attention = F.scaled_dot_product_attention(*heads, is_causal=True)
        return x + self.out(attention.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.attended(x)
        return x + self.down(F.gelu(self.up(F.rms_norm(x, (x.shape[-1],))), approximate="tanh"))


class Experts(nn.Module):
    """A mixture of as many experts as ranks, one on each; a token goes to one of them and comes back. Which token goes
    where is fixed, as many tokens to each expert: a router's sizes would differ by step, and so would its times."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, dist.get_world_size(), bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        ranks, width = dist.get_world_size(), x.shape[-1]
        tokens = x.reshape(-1, ranks, width)
        sent = tokens.transpose(0, 1).reshape(-1, width)
        mine = self._exchanged(sent)
        back = self._exchanged(self.down(F.gelu(self.up(mine), approximate="tanh")))
        share = self.gate(tokens).softmax(-1).diagonal(dim1=1, dim2=2)
        return (back.view(ranks, -1, width).transpose(0, 1) * share[..., None]).reshape(x.shape)

    @staticmethod
    def _exchanged(tokens: Tensor) -> Tensor:
        equal = [tokens.shape[0] // dist.get_world_size()] * dist.get_world_size()
        return fc.all_to_all_single_autograd(tokens, equal, equal, dist.group.WORLD)


class GatheredLinear(nn.Module):
    """A layer split by columns, of rows that all ranks have parts of: this rank's columns for all rows."""

    def __init__(self, out: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out // dist.get_world_size(), width) * width**-0.5)

    def forward(self, whole: Tensor) -> Tensor:
        return F.linear(whole, self.weight)


class SequenceLayer(nn.Module):
    """Tensor parallel with the sequence in parts between the products: each rank has a part of the rows, gathers all
    rows before a product that is split by columns, and scatters the sums behind one that is split by rows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (GatheredLinear(width, width) for _ in range(3))
        self.up = GatheredLinear(4 * width, width)
        parts = dist.get_world_size()
        self.out, self.down = (nn.Linear(size // parts, width, bias=False) for size in (width, 4 * width))

    def forward(self, x: Tensor) -> Tensor:
        rows = self._whole(x)
        heads = [m(rows).view(1, rows.shape[0], -1, HEAD).transpose(1, 2) for m in (self.query, self.key, self.value)]
        attention = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self._part(self.out(attention[0].transpose(0, 1).flatten(1)))
        return x + self._part(self.down(F.gelu(self.up(self._whole(x)), approximate="tanh")))

    @staticmethod
    def _whole(x: Tensor) -> Tensor:
        return fc.all_gather_tensor_autograd(F.rms_norm(x, (x.shape[-1],)), 0, dist.group.WORLD)

    @staticmethod
    def _part(x: Tensor) -> Tensor:
        return reduce_scatter(x, "sum", 0, dist.group.WORLD)


class ExpertLayer(Layer):
    """A layer whose MLP is a mixture of experts."""

    def __init__(self, width: int) -> None:
        super().__init__(width, lambda out, width: nn.Linear(width, out, bias=False))
        self.down, self.up = Experts(width), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.attended(x)
        return x + self.down(F.rms_norm(x, (x.shape[-1],)))


class Network(nn.Module):
    """Layers, and a loss that reaches all of them."""

    def __init__(self, size: Size, linear: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(size.width, linear) for _ in range(size.layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.float().square().mean()


class SequenceNetwork(Network):
    """Such layers. Of the rows that it is given a rank takes its part."""

    def __init__(self, size: Size) -> None:
        super().__init__(size, lambda out, width: nn.Identity())
        self.layers = nn.ModuleList(SequenceLayer(size.width) for _ in range(size.layers))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, 1).chunk(dist.get_world_size())[dist.get_rank()])


Compile = Callable[[nn.Module], nn.Module]


def make_fsdp(size: Size, device: torch.device, compiled: Compile) -> tuple[nn.Module, Callable[..., Any]]:
    model = Network(size, lambda out, width: Sharded(out, width, size.dtype)).to(device)
    return model, compiled(model)


def _mesh(device: torch.device, **sizes: int) -> Any:
    """A mesh of all ranks with a dimension of each name."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def _fully_sharded(model: Network, mesh: Any, dtype: torch.dtype) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)
    for part in (*model.layers, model):
        fully_shard(part, mesh=mesh, mp_policy=policy)


def _tensor_parallel(model: Network, mesh: Any) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    columns = {name: ColwiseParallel() for name in ("query", "key", "value", "up")}
    for layer in model.layers:
        parallelize_module(layer, mesh, {**columns, "out": RowwiseParallel(), "down": RowwiseParallel()})


def _plain(size: Size, device: torch.device) -> Network:
    return Network(size, lambda out, width: nn.Linear(width, out, bias=False)).to(device)


def make_fully_shard(size: Size, device: torch.device, compiled: Compile) -> tuple[nn.Module, Callable[..., Any]]:
    model = _plain(size, device)
    _fully_sharded(model, _mesh(device, data=dist.get_world_size()), size.dtype)
    return model, compiled(model)


def make_tp(size: Size, device: torch.device, compiled: Compile) -> tuple[nn.Module, Callable[..., Any]]:
    model = _plain(size, device).to(size.dtype)
    _tensor_parallel(model, _mesh(device, tensor=dist.get_world_size()))
    return model, compiled(model)


TENSOR = 2
"""Ranks that share a layer in "fsdp_tp"."""


def make_fsdp_tp(size: Size, device: torch.device, compiled: Compile) -> tuple[nn.Module, Callable[..., Any]]:
    mesh, model = _mesh(device, data=dist.get_world_size() // TENSOR, tensor=TENSOR), _plain(size, device)
    _tensor_parallel(model, mesh["tensor"])
    _fully_sharded(model, mesh["data"], size.dtype)
    return model, compiled(model)


def make_experts(size: Size, device: torch.device, compiled: Compile) -> tuple[nn.Module, Callable[..., Any]]:
    model = Network(size, lambda out, width: nn.Identity())
    model.layers = nn.ModuleList(ExpertLayer(size.width) for _ in range(size.layers))
    model.to(device, size.dtype)
    return model, compiled(model)


def make_sequence(size: Size, device: torch.device, compiled: Compile) -> tuple[nn.Module, Callable[..., Any]]:
    model = SequenceNetwork(size).to(device, size.dtype)
    return model, compiled(model)


@dataclass(frozen=True)
class Part:
    """A way to share the work. same_data: how many ranks, one after the other, are given the same batch."""

    make: Callable[[Size, torch.device, Compile], tuple[nn.Module, Callable[..., Any]]]
    same_data: Callable[[], int] = lambda: 1


PARTS: Mapping[str, Part] = {
    "fsdp": Part(make_fsdp),
    "fully_shard": Part(make_fully_shard),
    "tp": Part(make_tp, dist.get_world_size),
    "sequence": Part(make_sequence, dist.get_world_size),
    "fsdp_tp": Part(make_fsdp_tp, lambda: TENSOR),
    "experts": Part(make_experts),
}

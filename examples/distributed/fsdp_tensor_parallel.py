"""FSDP2 between hosts and tensor parallel within a host: a mesh of two dimensions.

    torchrun --standalone --nproc-per-node 4 examples/distributed/fsdp_tensor_parallel.py

Two ranks are one dimension or the other: `run(device, 1)` is FSDP2 alone, `run(device, 2)` tensor parallel alone. The
all_reduces of tensor parallel are in the compiled graphs; FSDP2 gathers between them, by hooks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from common import Block, job, same_as_eager
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def run(device: torch.device, tensor_parallel: int = 2) -> None:
    hosts = dist.get_world_size() // tensor_parallel
    mesh = init_device_mesh(device.type, (hosts, tensor_parallel), mesh_dim_names=("hosts", "inside"))
    torch.manual_seed(0)
    model = nn.Sequential(Block(32), Block(32)).to(device, torch.float64)
    for block in model:
        if tensor_parallel > 1:
            parallelize_module(block, mesh["inside"], {"mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()})
        if hosts > 1:
            fully_shard(block, mesh=mesh["hosts"])
    if hosts > 1:
        fully_shard(model, mesh=mesh["hosts"])
    torch.manual_seed(dist.get_rank() // tensor_parallel)  # ranks of a host have the same data
    name = f"FSDP2 between {hosts}, tensor parallel between {tensor_parallel}"
    same_as_eager(name, model, torch.randn(16, 32, dtype=torch.float64, device=device))


if __name__ == "__main__":
    with job() as device:
        run(device)

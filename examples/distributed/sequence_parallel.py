"""Tensor parallel training with the sequence in parts between the products (DTensor).

    torchrun --standalone --nproc-per-node 2 examples/distributed/sequence_parallel.py

The products of a block are split as in examples/tensor_parallel.py. Where that has an all_reduce, here each rank gets a
part of the sequence (reduce_scatter), normalises and adds only that, and gathers it before the next product.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from common import Block, job, same_as_eager
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


def run(device: torch.device) -> None:
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(Block(32), Block(32)).to(device, torch.float64)
    for block in model:
        plan = {
            "norm": SequenceParallel(),
            "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "mlp.up": ColwiseParallel(),
            "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(block, mesh, plan)
    whole = torch.randn(2, 16, 32, dtype=torch.float64)  # batch, sequence, width
    part = whole.chunk(dist.get_world_size(), 1)[dist.get_rank()].to(device)
    same_as_eager("tensor and sequence parallel", model, part)


if __name__ == "__main__":
    with job() as device:
        run(device)

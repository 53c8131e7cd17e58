"""Fully sharded training with FSDP2 (`fully_shard`), compiled.

    torchrun --standalone --nproc-per-node 2 examples/fsdp2.py

Each rank keeps a part of every parameter; a layer's parameters are gathered before it runs and freed after it. FSDP2's
hooks run between the compiled graphs. Runs over gloo on the CPU and, with a GPU for each rank, over NCCL.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def main() -> None:
    rank, local, world = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", local) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    mesh = init_device_mesh(device.type, (world,))

    torch.manual_seed(0)  # the same parameters everywhere before they are sharded
    model = nn.Sequential(Block(64), Block(64), Block(64), nn.Linear(64, 10)).to(device)
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    compiled = torch.compile(model, backend="litz")

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)  # but each rank has data of its own
    inputs, labels = torch.randn(128, 64, device=device), torch.randint(0, 10, (128,), device=device)
    for step in range(5):
        loss = nn.functional.cross_entropy(compiled(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach() / world
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step}: loss {mean.item():.4f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

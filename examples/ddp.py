"""Data parallel training with DistributedDataParallel, compiled.

    torchrun --standalone --nproc-per-node 2 examples/ddp.py

Each rank has the whole model and a part of the data. Dynamo splits the graph where DDP's gradient buckets end, so that
a bucket is reduced while the backward of the layers before it still runs; litz compiles each piece. Runs over gloo
on the CPU and, with a GPU for each rank, over NCCL.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 4096), nn.GELU(), nn.Linear(4096, 512), nn.GELU(), nn.Linear(512, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def main() -> None:
    rank, local, world = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", local) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpus else "gloo")

    torch.manual_seed(0)  # DDP sends rank 0's parameters to all; the data are each rank's own
    model = DistributedDataParallel(Network().to(device), bucket_cap_mb=4)
    compiled = torch.compile(model, backend="litz")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    inputs, labels = torch.randn(128, 64, device=device), torch.randint(0, 10, (128,), device=device)
    for step in range(5):
        loss = nn.functional.cross_entropy(compiled(inputs), labels)
        loss.backward()  # the gradients are averaged over the ranks here
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach() / world
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step}: loss {mean.item():.4f}")

    # Every rank has the same parameters after it.
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    first = mine.clone()
    dist.broadcast(first, 0)
    torch.testing.assert_close(mine, first, rtol=0, atol=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

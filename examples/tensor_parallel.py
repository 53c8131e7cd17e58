"""Tensor parallel training with DTensor, compiled; and what litz thinks that its communication costs.

    torchrun --standalone --nproc-per-node 2 examples/tensor_parallel.py

The first matrix of each block is split by columns, the second by rows, so that a block needs one all_reduce forward and
one backward. These are in the compiled graphs, where litz orders them. Runs over gloo on the CPU and, with a GPU for
each rank, over NCCL.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from litz import report
from litz.ir import Collective


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

    torch.manual_seed(0)  # the same parameters and data on every rank
    model = nn.Sequential(Block(64), Block(64), nn.Linear(64, 10)).to(device)
    for block in list(model)[:2]:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    # verify_plan: an error, and no hang, should the ranks ever disagree on what to send (plugin litz-collectives).
    compiled = torch.compile(model, backend="litz", options={"collectives.verify_plan": True})

    # foreach=False: on GPUs SGD puts parameters together, and DTensors and plain tensors do not mix.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    inputs, labels = torch.randn(128, 64, device=device), torch.randint(0, 10, (128,), device=device)
    with report.collect() as reports:
        for step in range(5):
            loss = nn.functional.cross_entropy(compiled(inputs), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0:
                print(f"step {step}: loss {loss.item():.4f}")

    for one in reports if rank == 0 else ():
        for call in one.plan.steps:
            if isinstance(call, Collective):
                cost = one.plan.estimates.get(call.name)
                print(f"{one.name}: {call.target_name}" + (f", {cost.us:.0f} µs on GPUs: {cost.why}" if cost else ""))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""What the examples of this folder share: a job that torchrun started, and a training step compared with eager's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import Tensor, nn

# torch 2.13 gave the gather that autograd knows a new name, and warns of the old one.
all_gather = getattr(fc, "all_gather_single_autograd", None) or fc.all_gather_tensor_autograd


@contextlib.contextmanager
def job() -> Iterator[torch.device]:
    """Joins the ranks; gives this rank's device: NCCL and a GPU for each rank of the host, else gloo and the CPU."""
    on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    yield device
    torch._dynamo.reset()  # CUDA graphs that hold NCCL's communicators end before these do
    dist.barrier()
    dist.destroy_process_group()


def step(run: Callable[..., Tensor], model: nn.Module, *given: Any) -> list[Tensor]:
    """A forward and a backward: the result, and this rank's part of each gradient."""
    model.zero_grad(set_to_none=True)
    result = run(*given)
    result.square().mean().backward()
    found = [result.detach()]
    for parameter in model.parameters():
        grad = parameter.grad
        if grad is not None:
            found.append(grad.to_local().clone() if hasattr(grad, "to_local") else grad.clone())
    return found


def same_as_eager(name: str, model: nn.Module, *given: Any, **options: Any) -> list[Tensor]:
    """Compiles the model, and compares a step with eager's, in the model's own type. Returns what `step` does."""
    expected = step(model, model, *given)
    found = step(torch.compile(model, backend="litz", options=options or None), model, *given)
    assert len(found) == len(expected) > 1
    for mine, eager in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-9, atol=1e-11)
    report(name, f"{len(found) - 1} gradients as eager's")
    return found


def report(name: str, text: str) -> None:
    """Prints a line, on the first rank alone."""
    if dist.get_rank() == 0:
        print(f"{name}: {text}", flush=True)


class MLP(nn.Module):
    """Two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


class Block(nn.Module):
    """A norm and an MLP, added to what comes in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(width), MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))

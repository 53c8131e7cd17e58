"""A training step of a large model, planned for a cluster that is not there: how long that takes, and what is hidden.

    PYTHONPATH=tests:. python -m benchmarks.cluster_plan [--ranks 64 256 1024] [--layers 4] [--tensor-parallel 8]

Layers of Llama 70B's shape: each parameter is split between the ranks of a host (tensor parallel, with the sequence in
parts between them) and every part between the hosts (gathered where it is used, its gradient scattered). torch's fake
process group has all ranks, fake tensors have no memory, and nothing is built or run: a step is captured on the CPU and
planned for H100s. A line for each graph has
what the pass `overlap` said: the time, the communication and the exposed part by the estimates, which no measurement of
a cluster stands behind.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from litz.capture import torch_api
from litz.capture.layout import changed_strides
from litz.driver.stages import capture, prepare_graph, schedule_prepared
from litz.pipeline import make_compiler
from litz.report.log import Log
from litz.schedule.schedule import Schedule
from litz.target import target_named
from litz_plugins import Watcher
from support.retarget import CUDA, captured_for_cuda, to_cuda

# torch 2.13 gave these new names, and warns of the old ones.
all_gather = getattr(fc, "all_gather_single_autograd", None) or fc.all_gather_tensor_autograd
reduce_scatter = getattr(fc, "reduce_scatter_single_autograd", None) or fc.reduce_scatter_tensor_autograd
GPU = "NVIDIA H100 80GB HBM3"


@dataclass(frozen=True)
class Shape:
    """Of a model's layers: Llama 70B's, if nothing else is said. tokens: of a host's sequence."""

    width: int = 8192
    inner: int = 28672
    heads: int = 64
    key_heads: int = 8
    tokens: int = 8192


@dataclass(frozen=True)
class Groups:
    """The groups that rank 0 is in: the ranks of its host, and the first rank of every host."""

    inside: Any
    across: Any

    @staticmethod
    def of(ranks: int, inside: int) -> Groups:
        return Groups(dist.new_group(range(inside)), dist.new_group(range(0, ranks, inside)))


class Shard(nn.Module):
    """A weight (out, in) of this rank's, of which each host keeps a part."""

    def __init__(self, out: int, width: int, groups: Groups) -> None:
        super().__init__()
        hosts = groups.across.size()
        self.rows, self.groups = out, groups
        self.part = nn.Parameter(torch.empty(-(-out // hosts), width, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        whole = all_gather(self.part, 0, self.groups.across)
        return F.linear(x, whole[: self.rows])


class Layer(nn.Module):
    """Attention and an MLP; between them each rank of a host has a part of the sequence."""

    def __init__(self, shape: Shape, groups: Groups) -> None:
        super().__init__()
        ranks = groups.inside.size()
        self.head, self.groups = shape.width // shape.heads, groups
        queries, keys = (heads * self.head // ranks for heads in (shape.heads, shape.key_heads))
        self.query, self.key, self.value = (Shard(size, shape.width, groups) for size in (queries, keys, keys))
        self.out = Shard(shape.width, queries, groups)
        self.gate, self.up = (Shard(shape.inner // ranks, shape.width, groups) for _ in range(2))
        self.down = Shard(shape.width, shape.inner // ranks, groups)

    def _whole(self, x: Tensor) -> Tensor:
        scale = x.float().square().mean(-1, keepdim=True).add(1e-5).rsqrt()
        return all_gather((x * scale).to(x.dtype), 0, self.groups.inside)

    def _part(self, x: Tensor) -> Tensor:
        return reduce_scatter(x, "sum", 0, self.groups.inside)

    def forward(self, x: Tensor) -> Tensor:
        whole = self._whole(x)
        heads = [
            m(whole).view(1, whole.shape[0], -1, self.head).transpose(1, 2) for m in (self.query, self.key, self.value)
        ]
        found = F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        x = x + self._part(self.out(found[0].transpose(0, 1).flatten(1)))
        whole = self._whole(x)
        return x + self._part(self.down(F.silu(self.gate(whole)) * self.up(whole)))


class Stack(nn.Module):
    """Layers, and a loss that reaches all of them."""

    def __init__(self, shape: Shape, layers: int, groups: Groups) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(shape, groups) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.float().square().mean()


@dataclass(frozen=True)
class Planned:
    """A graph's schedule, the seconds of its dry compile and of the pass `overlap` in it, and what passes said."""

    schedule: Schedule
    seconds: float
    overlap_seconds: float
    log: Log

    def __str__(self) -> str:
        said = [one for one in self.log.decisions if one.subject == "overlap"]
        reason = said[-1].reason if said else "no communication"
        counts = f"{len(self.schedule.steps):>5} steps, {self.seconds:.1f} s"
        return f"{self.schedule.program.name:<18}{counts}, {self.overlap_seconds:.1f} s of these in `overlap`: {reason}"


def plan_step(step: Callable[[Any], Any], options: dict[str, Any]) -> list[Planned]:
    """Returns the plans of all graphs, backwards too, of `step(backend)`, which compiles with the backend and calls."""
    compiler, found = make_compiler(None, options), list[Planned]()
    compiler.targets[CUDA] = target_named(GPU)

    def keep(graph: Any) -> Callable[[list[Any]], Sequence[Any]]:
        spent = dict[str, float]()
        watcher = Watcher(passed=lambda ran, before, after, seconds: spent.update({ran.name: seconds}))
        log, start = Log(watchers=[watcher]), time.perf_counter()
        moved = to_cuda(graph)
        prepared = prepare_graph(moved, compiler, log)
        schedule = schedule_prepared(prepared, compiler, log)
        found.append(Planned(schedule, time.perf_counter() - start, spent.get("overlap", 0.0), log))

        def run(args: list[Any]) -> Sequence[Any]:
            values = list(args)
            with torch_api.fake_mode_around(values):
                found: Sequence[Any] = torch.fx.Interpreter(graph.module).run(*values, enable_io_processing=False)
            return found

        run.output_strides = changed_strides(moved, prepared)  # type: ignore[attr-defined]
        return run

    with captured_for_cuda():
        step(partial(capture, compile_graph=keep, compiler=compiler))
    return found


def plan_cluster(ranks: int, inside: int, layers: int, shape: Shape, options: dict[str, Any]) -> list[Planned]:
    """Returns the plans of a training step's graphs on rank 0 of so many, `inside` of them in each host."""
    torch._dynamo.reset()
    dist.init_process_group(backend="fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = Stack(shape, layers, Groups.of(ranks, inside))
            x = torch.empty(shape.tokens // inside, shape.width, dtype=torch.bfloat16, requires_grad=True)
            return plan_step(partial(_train, model, x), options)
    finally:
        dist.destroy_process_group()


def _train(model: nn.Module, x: Tensor, backend: Any) -> None:
    torch.compile(model, backend=backend)(x).backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tensor-parallel", type=int, default=8)
    parser.add_argument("--limit", default="10%", help="collectives.memory_limit")
    parser.add_argument("--pieces", type=int, default=1, help="collectives.pieces")
    given = parser.parse_args()
    for ranks in given.ranks:
        options = {"collectives.memory_limit": given.limit, "collectives.pieces": given.pieces}
        for planned in plan_cluster(ranks, given.tensor_parallel, given.layers, Shape(), options):
            print(f"{ranks:>5} ranks  {planned}")


if __name__ == "__main__":
    main()

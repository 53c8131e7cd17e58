"""Compiled communication between two processes over gloo, against eager: every op, gradients, and real stacks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch.utils._pytree import tree_leaves

from litz.ir import Collective
from litz.report import collect
from support.ranks import Ranks

pytestmark = pytest.mark.xdist_group("ranks")

WORLD = 2
ops = torch.ops._c10d_functional
wait = ops.wait_tensor
litz = functools.partial(torch.compile, backend="litz", options={"debug": True})


def given(rank: int, *size: int) -> torch.Tensor:
    """Numbers that differ by rank."""
    return torch.randn(size, generator=torch.Generator().manual_seed(10 + rank))


OPS: dict[str, Callable[[torch.Tensor], Any]] = {
    "all_reduce": lambda x: wait(ops.all_reduce(x * 2, "sum", "0")) + 1,
    "all_reduce of a view": lambda x: wait(ops.all_reduce((x * 2).t(), "sum", "0")) + 1,
    "all_reduce of a part": lambda x: wait(ops.all_reduce((x * 2)[2:4], "max", "0")) + 1,
    "all_reduce of a transposed input": lambda x: wait(ops.all_reduce(x.t(), "sum", "0")),
    "all_reduce_coalesced of transposed inputs": lambda x: [
        wait(r) for r in ops.all_reduce_coalesced([x.t(), x[:, ::2]], "sum", "0")
    ],
    "broadcast of a transposed input": lambda x: wait(ops.broadcast(x.t(), 1, "0")),
    "all_reduce twice": lambda x: [wait(r) for r in [ops.all_reduce(x * 2, op, "0") for op in ("sum", "max")]],
    "all_reduce of one tensor": lambda x: [wait(ops.all_reduce(y, o, "0")) for y in [x + 1] for o in ("sum", "min")],
    "all_reduce of what is returned": lambda x: (lambda y: (y, wait(ops.all_reduce(y, "sum", "0"))))(x + 1),
    "all_reduce_coalesced": lambda x: [wait(r) for r in ops.all_reduce_coalesced([x + 1, x * 2], "sum", "0")],
    "broadcast": lambda x: wait(ops.broadcast(x * 2, 1, "0")) + 1,
    "all_gather": lambda x: wait(ops.all_gather_into_tensor(x * 2, WORLD, "0")) + 1,
    "all_gather_coalesced": lambda x: [wait(r) for r in ops.all_gather_into_tensor_coalesced([x * 2, x], WORLD, "0")],
    "all_gather of columns": lambda x: fc.all_gather_tensor(x * 2, 1, dist.group.WORLD) + 1,
    "reduce_scatter": lambda x: wait(ops.reduce_scatter_tensor(x * 2, "sum", WORLD, "0")) + 1,
    "reduce_scatter_coalesced": lambda x: [
        wait(r) for r in ops.reduce_scatter_tensor_coalesced([x * 2, x + 1], "sum", WORLD, "0")
    ],
    "all_to_all": lambda x: wait(ops.all_to_all_single(x * 2, [3, 3], [3, 3], "0")) + 1,
    "permute": lambda x: fc.permute_tensor((x * 2).flatten(), [1, 0], dist.group.WORLD) + 1,
}


IN_PLACE = {
    "all_reduce": True,
    "all_reduce twice": False,  # x * 2 is computed once, and the first may still read it when the second starts
    "all_reduce_coalesced": True,
    "broadcast": True,
    "all_reduce of one tensor": False,
    "all_reduce of what is returned": False,
    "all_gather": False,
}
"""Whether an op writes its result over what it is given."""


def run_op(rank: int, name: str) -> list[bool]:
    """Returns of each collective of litz's whether it writes over what it is given."""
    x = given(rank, 6, 8)
    kept = x.clone()
    with collect() as reports:
        compiled = litz(OPS[name])(x)
    eager = OPS[name](x)
    torch.testing.assert_close(compiled, eager)
    assert [item.stride() for item in tree_leaves(compiled)] == [item.stride() for item in tree_leaves(eager)]
    torch.testing.assert_close(x, kept, rtol=0, atol=0)
    return [bool(step.mutates) for step in reports[0].plan.steps if isinstance(step, Collective)]


@pytest.mark.parametrize("name", OPS)
def test_op(ranks: Ranks, name: str) -> None:
    for found in ranks.run(__file__, "run_op", name):
        if name in IN_PLACE:
            assert found and all(stolen == IN_PLACE[name] for stolen in found)


def busy(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Many transfers under way while buffers of the same size come and go."""
    started = [ops.all_reduce(x + n, "sum", "0") for n in range(6)]
    y = x
    for n in range(6):
        y = torch.mm(torch.relu(y + n), x) / 1000
    return (y, *(wait(item) * 2 for item in started))


def run_busy(rank: int, _: Any) -> None:
    x = given(rank, 256, 256)
    compiled = litz(busy)
    for _ in range(5):
        torch.testing.assert_close(compiled(x), busy(x), rtol=1e-4, atol=1e-4)


def test_memory_in_flight_is_not_reused(ranks: Ranks) -> None:
    ranks.run(__file__, "run_busy")


AUTOGRAD: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "all_to_all": lambda x: fc.all_to_all_single_autograd(x * 2, [3, 3], [3, 3], dist.group.WORLD),
    "all_gather": lambda x: fc.all_gather_tensor_autograd(x * 2, 0, dist.group.WORLD),
    "reduce_scatter": lambda x: fc.reduce_scatter_tensor_autograd(x * 2, "sum", 0, dist.group.WORLD),
}


def run_autograd(rank: int, name: str) -> None:
    weight = torch.arange(8.0) + rank

    def gradient(function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        x = given(rank, 6, 8).requires_grad_()
        out = function(x)
        (out * weight).sum().backward()
        return out.detach(), x.grad

    torch.testing.assert_close(gradient(litz(lambda x: AUTOGRAD[name](x) + 0)), gradient(AUTOGRAD[name]))


@pytest.mark.parametrize("name", AUTOGRAD)
def test_autograd(ranks: Ranks, name: str) -> None:
    ranks.run(__file__, "run_autograd", name)


def network(width: int = 32) -> torch.nn.Sequential:
    torch.manual_seed(0)
    hidden = torch.nn.Linear(16, width), torch.nn.GELU(), torch.nn.Linear(width, 16)
    return torch.nn.Sequential(*hidden, torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))


def train(model: torch.nn.Module, module: Callable[..., Any], rank: int) -> list[torch.Tensor]:
    """Losses of three steps, and the parameters after them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        loss = (module(given(10 * step + rank, 8, 16)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses + [getattr(p, "full_tensor", lambda p=p: p)().detach() for p in model.parameters()]


class Wrapped(torch.nn.Module):
    """A module of the user's: behind DDP's graph break dynamo does not look into torch's own."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def run_ddp(rank: int, _: Any) -> None:
    from torch.nn.parallel import DistributedDataParallel

    def trained(wrap: Callable[..., Any]) -> list[torch.Tensor]:
        # Wide enough for several buckets: the first takes a megabyte, and dynamo splits the graph where each ends.
        model = DistributedDataParallel(Wrapped(network(20_000)), bucket_cap_mb=1)
        return train(model, wrap(model), rank)

    with collect() as reports:
        compiled = trained(litz)
    assert len(reports) > 2, f"a forward and a backward for each bucket: {[r.name for r in reports]}"
    torch.testing.assert_close(compiled, trained(lambda model: model), rtol=1e-4, atol=1e-5)


def test_ddp(ranks: Ranks) -> None:
    ranks.run(__file__, "run_ddp")


def run_fsdp(rank: int, _: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (WORLD,))

    def trained(wrap: Callable[..., Any]) -> list[torch.Tensor]:
        model = network()
        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return train(model, wrap(model), rank)

    torch.testing.assert_close(trained(litz), trained(lambda model: model), rtol=1e-4, atol=1e-5)


def test_fsdp2(ranks: Ranks) -> None:
    ranks.run(__file__, "run_fsdp")


def run_tensor_parallel(rank: int, _: Any) -> list[str]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (WORLD,))

    def trained(wrap: Callable[..., Any]) -> list[torch.Tensor]:
        model = parallelize_module(network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        return train(model, wrap(model), 0)

    with collect() as reports:
        compiled = trained(litz)
    torch.testing.assert_close(compiled, trained(lambda model: model), rtol=1e-4, atol=1e-5)
    return [step.target_name for r in reports for step in r.plan.steps if isinstance(step, Collective)]


def test_tensor_parallel(ranks: Ranks) -> None:
    one, two = ranks.run(__file__, "run_tensor_parallel")
    assert one == two and any("all_reduce" in name for name in one), "its communication is in the graph"


def sharded(x: torch.Tensor, *shards: torch.Tensor) -> torch.Tensor:
    """Each weight gathered where it is used; its gradient is scattered."""
    for shard in shards:
        x = torch.tanh(x @ fc.all_gather_tensor_autograd(shard, 0, dist.group.WORLD))
    return wait(ops.all_reduce(x.detach().sum(), "sum", "0")) + x.square().mean()


def run_overlap(rank: int, _: Any) -> list[list[Any]]:
    """What this rank starts, in order. Its batch and what it thinks of costs are its own."""
    options = {
        "debug": True,
        "collectives.passes": ("overlap",),
        "collectives.memory_limit": "100%",
        "collectives.cost": "support.seed_costs:by_rank",
        "collectives.verify_plan": True,
    }

    def gradients(function: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        shards = [given(rank + 7 * n, 8, 16).requires_grad_() for n in range(4)]
        loss = function(given(rank, 3 + rank, 16), *shards)
        loss.backward()
        return [loss.detach(), *(shard.grad for shard in shards)]

    with collect() as reports:
        found = gradients(torch.compile(sharded, backend="litz", options=options))
    torch.testing.assert_close(found, gradients(sharded))
    return [
        [(step.target_name, len(step.outputs)) for step in report.plan.steps if isinstance(step, Collective)]
        for report in reports
    ]


def test_overlap(ranks: Ranks) -> None:
    first, second = ranks.run(__file__, "run_overlap")
    assert first == second, "whichever rank was first"

"""Which products and collectives are cut, by costs that are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # defines the ops
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from litz.ir import Collective
from litz.ir.communication import flights
from litz.ir.operation import storage_roots
from litz.pipeline import schedule_only
from litz.schedule import check_schedule
from litz_collectives.pieces import bounds
from litz_collectives.traffic import message_of
from litz_plugins import Estimate

ops = torch.ops._c10d_functional
ROWS, WIDTH = 64, 32


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    torch._dynamo.reset()
    dist.init_process_group(backend="fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@dataclass
class Costs:
    """µs of a message and of a product of all rows, of each message and launch besides, and by how much a launch may
    take longer than thought; a function for the option collectives.cost."""

    message: float = 200.0
    product: float = 600.0
    latency: float = 5.0
    unsure: float = 0.0

    def uuid(self) -> str:
        return str(self)

    def __call__(self, step: Any, device: Any, program: Any) -> Estimate | None:
        if isinstance(step, Collective):
            sent = message_of(step, program)
            assert sent is not None
            us = self.latency + self.message * sent.bytes / (2 * ROWS * WIDTH * 4)
            return Estimate(us, us, us, "a message")
        if "mm" in str(getattr(step, "target_name", "")):
            *_, rows, _ = (ref for ref in step.refs if ref.buffer not in step.mutates)
            us = 2.0 + self.product * int(rows.layout.numel) / (2 * ROWS * WIDTH)
            return Estimate(us, us, us + self.unsure, "a product")
        return Estimate(1.0, 1.0, 1.0, "another")


def gathered(x: Tensor, w: Tensor) -> Tensor:
    return torch.mm(ops.wait_tensor(ops.all_gather_into_tensor(x, 2, "0")), w)


def scattered(x: Tensor, w: Tensor) -> Tensor:
    return ops.wait_tensor(ops.reduce_scatter_tensor(torch.mm(x, w), "sum", 2, "0"))


def reduced(x: Tensor, w: Tensor) -> Tensor:
    return ops.wait_tensor(ops.all_reduce(torch.mm(x, w), "sum", "0"))


def read_twice(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    made = torch.mm(x, w)
    return ops.wait_tensor(ops.all_reduce(made, "sum", "0")), made


def not_of_a_product(x: Tensor, w: Tensor) -> Tensor:
    return ops.wait_tensor(ops.all_reduce((x @ w).exp(), "sum", "0"))


def weights(x: Tensor, w: Tensor) -> Tensor:
    """What is gathered are the columns of a product, not its rows."""
    return torch.mm(w.t(), ops.wait_tensor(ops.all_gather_into_tensor(x, 2, "0")).t())


FUNCTIONS: dict[str, Callable[..., Any]] = {"gathered": gathered, "scattered": scattered, "reduced": reduced}


def planned(function: Callable[..., Any], costs: Costs | None, **options: Any) -> Any:
    """The schedule, checked."""
    rows = ROWS if function in (gathered, weights) else 2 * ROWS
    with FakeTensorMode(allow_non_fake_inputs=True):
        given = torch.empty(rows, WIDTH), torch.empty(WIDTH, WIDTH)
    options = {
        f"collectives.{name}": value
        for name, value in {"cost": costs, "pieces": 0, **options}.items()
        if value is not None
    }
    (schedule,) = schedule_only(function, given, {"collectives.memory_limit": "1GiB", **options, "debug": True})
    check_schedule(schedule)
    return schedule


def count(schedule: Any) -> int:
    """How many collectives start, each waited for."""
    started = [step.name for step in schedule.steps if isinstance(step, Collective)]
    found = flights(schedule.steps, storage_roots(schedule.steps))
    assert sorted(one.name for ended in found.ended.values() for one in ended) == sorted(started) and not found.endless
    return len(started)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_long_message_is_cut(name: str) -> None:
    assert count(planned(FUNCTIONS[name], Costs())) > 1


@pytest.mark.parametrize("costs", [Costs(latency=150.0), Costs(message=6.0), Costs(product=5.0)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_stays_whole_where_pieces_cost_more(name: str, costs: Costs) -> None:
    """Dear latencies, a message that is nearly latency alone, and a product that hides nothing."""
    assert count(planned(FUNCTIONS[name], costs)) == 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_stays_whole_where_the_gain_is_within_the_error(name: str) -> None:
    """Likely pieces pay as they do above; but each launch may take 100 µs more."""
    assert count(planned(FUNCTIONS[name], Costs(unsure=100.0))) == 1


def beside(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """What the source's order waits for in vain pays for much that is not sure."""
    return ops.wait_tensor(ops.all_gather_into_tensor(w.t() * 2, 2, "0")), reduced(x, w)


def test_what_moving_gains_pays_for_no_pieces() -> None:
    """Each launch may take 60 µs more: less than the order gains as a whole, more than pieces do."""
    assert count(planned(beside, Costs())) > 2
    assert count(planned(beside, Costs(unsure=60.0))) == 2


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_option_says_how_many(name: str) -> None:
    dear = Costs(latency=150.0)
    assert count(planned(FUNCTIONS[name], dear, pieces=4)) == 4
    assert count(planned(FUNCTIONS[name], None, pieces=4)) == 4, "also where nothing has a time"
    assert count(planned(FUNCTIONS[name], Costs(), pieces=1)) == 1
    assert count(planned(FUNCTIONS[name], Costs(), passes=[])) == 1


@pytest.mark.parametrize("function", [read_twice, not_of_a_product, weights])
def test_what_is_no_product_of_the_rows_stays_whole(function: Callable[..., Any]) -> None:
    assert count(planned(function, Costs(), pieces=4)) == 1


@pytest.mark.parametrize(("rows", "pieces"), [(7, 3), (2, 4), (8, 8), (5, 1)])
def test_rows_are_shared_out_evenly(rows: int, pieces: int) -> None:
    parts = bounds(rows, pieces)
    assert [first for first, _ in parts] == [0, *(last for _, last in parts[:-1])] and parts[-1][1] == rows
    sizes = {last - first for first, last in parts}
    assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1 and len(parts) == min(rows, pieces)

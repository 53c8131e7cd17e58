"""What the program's own order hides stays hidden without any pass: memory is a limit, and no reason on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # defines the ops
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from litz.ir import Collective, Wait
from litz.pipeline import schedule_only

ops = torch.ops._c10d_functional
Tensors = tuple[torch.Tensor, ...]


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    torch._dynamo.reset()
    dist.init_process_group(backend="fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


def around(start: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Tensors]:
    """A product while the communication of something else is under way, and both returned."""

    def program(x: torch.Tensor, m: torch.Tensor) -> Tensors:
        started = start(x + 1)
        product = m @ m
        return ops.wait_tensor(started), product

    return program


def added(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    """all_reduce; cos; mm; wait; add."""
    started = ops.all_reduce(x, "sum", "0")
    cosine = m.cos()
    product = cosine @ cosine
    return ops.wait_tensor(started) + product


PROGRAMS: dict[str, Callable[..., Any]] = {
    "all_reduce": around(lambda x: ops.all_reduce(x, "sum", "0")),
    "all_gather": around(lambda x: ops.all_gather_into_tensor(x, 2, "0")),
    "reduce_scatter": around(lambda x: ops.reduce_scatter_tensor(x, "sum", 2, "0")),
    "all_to_all": around(lambda x: ops.all_to_all_single(x, [len(x) // 2] * 2, [len(x) // 2] * 2, "0")),
    "added": added,
}


def place_of_product(name: str, device: str, size: int, options: dict[str, Any]) -> str:
    with FakeTensorMode(allow_non_fake_inputs=True):
        given = [torch.empty(size, size, device=device) for _ in range(2)]
    (schedule,) = schedule_only(PROGRAMS[name], given, options)
    steps = list(schedule.steps)
    (start,) = (n for n, step in enumerate(steps) if isinstance(step, Collective))
    (wait,) = (n for n, step in enumerate(steps) if isinstance(step, Wait))
    (product,) = (n for n, step in enumerate(steps) if "mm" in str(getattr(step, "target_name", "")))
    return "under it" if start < product < wait else "exposed"


@pytest.mark.each_value
@pytest.mark.parametrize("passes", ["none", "default"])
@pytest.mark.parametrize(("device", "size"), [("cpu", 4), ("cpu", 1024), ("cuda", 4), ("cuda", 4096)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_product_that_the_source_has_under_communication_stays_there(
    name: str, device: str, size: int, passes: str
) -> None:
    options = {"collectives.passes": []} if passes == "none" else {}
    # On a CPU a product of 128 FLOPs hides nothing: the library adds what was waited for as it multiplies, and says so.
    wanted = "exposed" if (name, device, size) == ("added", "cpu", 4) else "under it"
    assert place_of_product(name, device, size, options) == wanted

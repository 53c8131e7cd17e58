"""The order of computation and communication. The cases are those of the seed document test_compute_comm_reordering."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from litz.pipeline import schedule_only
from litz.schedule import check_schedule
from litz.schedule.schedule import Kernel
from litz_collectives.tables import (
    BASE_LATENCY,
    HARDWARE_LATENCY,
    LL_MAX_BANDWIDTH,
    Algorithm,
    Generation,
    Link,
    Protocol,
)
from support.ranks import Ranks

pytestmark = pytest.mark.xdist_group("ranks of reordering")


def test_nccl_heuristics() -> None:
    assert len(BASE_LATENCY) == len(Algorithm)
    assert all(len(row) == len(Protocol) for row in BASE_LATENCY)

    assert len(HARDWARE_LATENCY) == len(Link)
    assert all(len(link) == len(Algorithm) for link in HARDWARE_LATENCY)
    assert all(len(row) == len(Protocol) for link in HARDWARE_LATENCY for row in link)

    assert len(LL_MAX_BANDWIDTH) == len(Generation)
    assert all(sorted(row, reverse=True) == list(row) for row in LL_MAX_BANDWIDTH), "more nodes are never faster"


WORLD = 2
TRS = {"tag": "", "ranks": [0, 1], "group_size": WORLD}
MODE = FakeTensorMode(allow_non_fake_inputs=True)


def _started_first(a, *, tag, ranks, group_size):
    ar = fc.all_reduce(a, "sum", ranks, tag)
    c = torch.relu(a)
    d = torch.matmul(c, c)
    return (d + ar,)


def _started_last(a, *, tag, ranks, group_size):
    c = torch.relu(a)
    d = torch.matmul(c, c)
    ar = fc.all_reduce(a, "sum", ranks, tag)
    return (d + ar,)


def _two(a, *, tag, ranks, group_size):
    ar = fc.all_reduce(a, "sum", ranks, tag)
    g = torch.matmul(a, a)
    c = torch.relu(a)
    d = torch.matmul(c, c)
    f = d * c * ar
    fr = fc.all_reduce(f, "sum", ranks, tag)
    return (torch.matmul(d + ar + fr, g),)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(WORLD) as found:
        yield found


def run_eager_and_litz(rank: int, asked: tuple[str, dict[str, Any]]) -> None:
    function, options = globals()[asked[0]], asked[1]
    given = torch.ones(4, 4) + rank
    compiled = torch.compile(function, backend="litz", options={"debug": True, **options})
    torch.testing.assert_close(compiled(given, **TRS), function(given, **TRS))


def order(function: Callable[..., Any], ranks: Ranks, options: dict[str, Any]) -> list[str]:
    """The kinds of the steps in litz's order, with the same result as eager on both ranks."""
    ranks.run(__file__, "run_eager_and_litz", (function.__name__, options))
    torch._dynamo.reset()
    dist.init_process_group(backend="fake", rank=0, world_size=WORLD, store=FakeStore())
    try:
        with MODE:
            given = torch.empty(4, 4, device="cuda")
        (schedule,) = schedule_only(functools.partial(function, **TRS), (given,), options)
    finally:
        dist.destroy_process_group()
    check_schedule(schedule)
    return [_kind(step) for step in schedule.steps]


def _kind(step: Any) -> str:
    if isinstance(step, Kernel):
        return "+".join(dict.fromkeys(name.rstrip("_0123456789") for name in step.loop.origins))
    return step.target_name.split(".")[1].rstrip("_")


def test_sink_waits(ranks: Ranks) -> None:
    found = order(_started_first, ranks, {"collectives.passes": ["sink_waits"]})
    # The wait is put off until its result is used.
    assert found == ["all_reduce", "relu", "mm", "wait_tensor", "add"]


def test_raise_comms(ranks: Ranks) -> None:
    found = order(_started_last, ranks, {"collectives.passes": ["raise_comms"]})
    # The all_reduce is raised above relu and matmul. (Its wait stays: Inductor's stands before them, as Inductor puts
    # off relu and matmul to where they are used.)
    assert found == ["all_reduce", "relu", "mm", "wait_tensor", "add"]


def test_sink_waits_raise_comms(ranks: Ranks) -> None:
    found = order(_started_last, ranks, {"collectives.passes": ["sink_waits", "raise_comms"]})
    assert found == ["all_reduce", "relu", "mm", "wait_tensor", "add"]


OVERLAPPED = [
    # After the first all_reduce: first what does not hang on it and is needed for the second (c and d), then what
    # neither hangs on it nor is needed for the second (g), then what hangs on it and is needed for the second (f).
    *("all_reduce", "relu", "mm", "mm", "wait_tensor", "mul"),
    # After the second, all that hangs on it.
    *("all_reduce", "wait_tensor", "add", "mm"),
]


def test_reorder_compute_for_overlap(ranks: Ranks) -> None:
    found = order(_two, ranks, {"collectives.passes": ["reorder_compute_for_overlap"]})
    assert [kind.split("+")[0] for kind in found] == OVERLAPPED


def test_reorder_compute_for_overlap_custom_runtime_estimation(ranks: Ranks) -> None:
    options = {"collectives.passes": ["reorder_compute_for_overlap"]}
    own = {**options, "collectives.cost": "support.seed_costs:runtime"}
    found = order(_two, ranks, own)
    assert [kind.split("+")[0] for kind in found] == OVERLAPPED
    # By a model for which communication is free, nothing that the second all_reduce does not need comes before it.
    free = order(_two, ranks, {**options, "collectives.cost": "support.seed_costs:free_communication"})
    assert free.count("mm") == 3 and free[: free.index("mul")].count("mm") == 1

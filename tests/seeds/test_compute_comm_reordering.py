"""The order of computation and communication. The cases are those of the seed document test_compute_comm_reordering.

Two ranks run each case, over gloo on the CPU and over NCCL where there are two GPUs. What is judged is the order in
which the lines of the compiled graph ran. Schedules for a GPU that is not there are looked at beside that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from litz.codegen.wrapper import generate_wrapper
from litz.pipeline import generate, make_compiler, plan_schedule, schedule_only
from litz_collectives.tables import (
    BASE_LATENCY,
    HARDWARE_LATENCY,
    LL_MAX_BANDWIDTH,
    Algorithm,
    Generation,
    Link,
    Protocol,
)
from support.executed import executed, kinds
from support.ranks import Ranks, device

pytestmark = pytest.mark.xdist_group("ranks")


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


def _started_and_awaited_between(a, *, tag, ranks, group_size):
    """As `_started_last`, with a product behind the wait: only both passes together hide the communication in full."""
    c = torch.relu(a)
    d = torch.matmul(c, c)
    ar = fc.all_reduce(a, "sum", ranks, tag)
    g = torch.matmul(a, c)
    return (d + g + ar,)


def _two(a, *, tag, ranks, group_size):
    ar = fc.all_reduce(a, "sum", ranks, tag)
    g = torch.matmul(a, a)
    c = torch.relu(a)
    d = torch.matmul(c, c)
    f = d * c * ar
    fr = fc.all_reduce(f, "sum", ranks, tag)
    return (torch.matmul(d + ar + fr, g),)


def run_eager_and_litz(rank: int, asked: tuple[str, dict[str, Any]]) -> list[str]:
    """What ran, in order; the result is eager's, of the first call and of the one that is watched."""
    function, options = globals()[asked[0]], asked[1]
    given = torch.ones(4, 4, device=device()) + rank
    compiled = torch.compile(function, backend="litz", options={"debug": True, **options})
    correct = function(given, **TRS)
    torch.testing.assert_close(compiled(given, **TRS), correct)
    out: list[Any] = []
    lines = executed(lambda: out.append(compiled(given, **TRS)))
    torch.testing.assert_close(out[0], correct)
    torch.testing.assert_close(given, torch.ones(4, 4, device=device()) + rank, rtol=0, atol=0)
    return kinds(lines)


def order(function: Callable[..., Any], pair: Ranks, passes: list[str], **options: Any) -> list[str]:
    """What ran on both ranks, with these passes: kernels by the ops in them, calls by their op."""
    asked = function.__name__, {"collectives.passes": passes, **options}
    first, second = pair.run(__file__, "run_eager_and_litz", asked)
    assert first == second, "every rank does the same"
    return [kind.partition(" +")[0].removesuffix("_1") for kind in first]


def order_on_gpu(function: Callable[..., Any], passes: list[str], **options: Any) -> list[str]:
    """What would run on an H100 that need not be there, by the generated text."""
    torch._dynamo.reset()
    dist.init_process_group(backend="fake", rank=0, world_size=WORLD, store=FakeStore())
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            given = torch.empty(4, 4, device="cuda")
        given_options = {"debug": True, "collectives.passes": passes, **options}
        (schedule,) = schedule_only(functools.partial(function, **TRS), (given,), given_options)
        plan = plan_schedule(schedule, make_compiler())
        text = generate_wrapper(plan, generate(plan, make_compiler())).text
    finally:
        dist.destroy_process_group()
    lines = [line.strip() for line in text.partition("def call")[2].splitlines()]
    return [kind.partition(" +")[0].removesuffix("_1") for kind in kinds(lines)]


def test_sink_waits(pair: Ranks) -> None:
    # Without the pass the wait stands where it stood.
    assert order(_started_first, pair, []) == ["all_reduce", "wait_tensor", "relu", "mm", "add"]
    # With it the wait is put off until its result is used.
    assert order(_started_first, pair, ["sink_waits"]) == ["all_reduce", "relu", "mm", "wait_tensor", "add"]


def test_raise_comms(pair: Ranks) -> None:
    assert order(_started_last, pair, []) == ["relu", "mm", "all_reduce", "wait_tensor", "add"]
    # The all_reduce is raised above relu and matmul. (Its wait stays: Inductor's stands before them, as Inductor puts
    # off relu and matmul to where they are used.)
    assert order(_started_last, pair, ["raise_comms"]) == ["all_reduce", "relu", "mm", "wait_tensor", "add"]


def test_sink_waits_raise_comms(pair: Ranks) -> None:
    both = ["sink_waits", "raise_comms"]
    assert order(_started_last, pair, both) == ["all_reduce", "relu", "mm", "wait_tensor", "add"]
    # Where the source awaits in the middle, neither of the passes is enough.
    between = functools.partial(order, _started_and_awaited_between, pair)
    hidden = ["all_reduce", "relu", "mm", "mm", "wait_tensor", "add"]
    assert between(both) == hidden
    assert between(both[::-1]) == hidden
    assert between(["sink_waits"]) == ["relu", "mm", "all_reduce", "mm", "wait_tensor", "add"]
    assert between(["raise_comms"]) == ["all_reduce", "relu", "mm", "wait_tensor", "mm", "add"]


OVERLAPPED = [
    # After the first all_reduce: first what does not hang on it and is needed for the second (c and d), then what
    # neither hangs on it nor is needed for the second (g), then what hangs on it and is needed for the second (f).
    *("all_reduce", "relu", "mm", "mm", "wait_tensor", "mul"),
    # After the second, all that hangs on it.
    *("all_reduce_", "wait_tensor", "add", "mm"),
]


def test_reorder_compute_for_overlap(pair: Ranks) -> None:
    reorder = ["reorder_compute_for_overlap"]
    assert order(_two, pair, reorder) == OVERLAPPED
    assert order_on_gpu(_two, reorder) == OVERLAPPED, "by a GPU's times"
    assert order(_two, pair, []) != OVERLAPPED


def test_reorder_compute_for_overlap_custom_runtime_estimation(pair: Ranks) -> None:
    reorder, cost = ["reorder_compute_for_overlap"], "collectives.cost"
    assert order(_two, pair, reorder, **{cost: "support.seed_costs:runtime"}) == OVERLAPPED
    # By a model for which communication is free, nothing that the second all_reduce does not need comes before it.
    free = order(_two, pair, reorder, **{cost: "support.seed_costs:free_communication"})
    assert free.count("mm") == 3 and free[: free.index("mul")].count("mm") == 1

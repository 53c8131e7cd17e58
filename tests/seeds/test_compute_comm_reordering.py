"""The order of computation and communication. The cases are those of the seed document test_compute_comm_reordering.

Two ranks, or as many as LITZ_TEST_RANKS says, run each case, over gloo on the CPU and over NCCL where each has a GPU.
What is judged is the order in which the lines of the compiled graph ran. Schedules for a GPU that is not there are
looked at beside that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from litz.codegen.wrapper import generate_wrapper
from litz.pipeline import generate, make_compiler, plan_schedule, schedule_only
from litz_collectives.nccl import Message, candidates
from litz_collectives.profile import Profile
from litz_collectives.tables import (
    BASE_LATENCY,
    HARDWARE_LATENCY,
    LL_MAX_BANDWIDTH,
    Algorithm,
    Generation,
    Link,
    Protocol,
)
from litz_collectives.topology import Topology, make_topology
from support.executed import executed, kinds
from support.ranks import TRS, WORLD, Ranks, device

pytestmark = pytest.mark.xdist_group("ranks")


def test_nccl_heuristics() -> None:
    assert len(BASE_LATENCY) == len(Algorithm)
    assert all(len(row) == len(Protocol) for row in BASE_LATENCY)

    assert len(HARDWARE_LATENCY) == len(Link)
    assert all(len(link) == len(Algorithm) for link in HARDWARE_LATENCY)
    assert all(len(row) == len(Protocol) for link in HARDWARE_LATENCY for row in link)

    assert len(LL_MAX_BANDWIDTH) == len(Generation)
    assert all(sorted(row, reverse=True) == list(row) for row in LL_MAX_BANDWIDTH), "more nodes are never faster"


def _us(message: Message, topology: Topology, algorithm: str, protocol: str) -> float:
    (found,) = (c.us for c in candidates(message, topology) if (c.algorithm, c.protocol) == (algorithm, protocol))
    return found


@pytest.mark.parametrize("protocol", Protocol)
def test_nccl_latencies_count(protocol: Protocol) -> None:
    """What a message of no bytes takes: the base latency, and that of each hop, by the kind of its link."""
    name = {Protocol.LL: "LL", Protocol.LL128: "LL128", Protocol.SIMPLE: "Simple"}[protocol]
    base, hop = (
        BASE_LATENCY[Algorithm.RING][protocol],
        [HARDWARE_LATENCY[link][Algorithm.RING][protocol] for link in Link],
    )
    inside, nodes = make_topology("H100"), make_topology("H100", gpus_per_node=4)
    assert _us(Message("all_reduce", 0, 8), inside, "ring", name) == pytest.approx(base + 14 * hop[Link.NVLINK])
    assert _us(Message("all_gather", 0, 8), inside, "ring", name) == pytest.approx(base + 7 * hop[Link.NVLINK])
    over_two = base + 11 * hop[Link.NVLINK] + 3 * hop[Link.NET]
    assert _us(Message("all_reduce", 0, 8), nodes, "ring", name) == pytest.approx(over_two)
    if protocol is not Protocol.LL128:
        pci = make_topology("H100", "PCI")
        assert _us(Message("all_reduce", 0, 8), pci, "ring", name) == pytest.approx(base + 14 * hop[Link.PCI])
    tree, up = BASE_LATENCY[Algorithm.TREE][protocol], HARDWARE_LATENCY[Link.NVLINK][Algorithm.TREE][protocol]
    assert _us(Message("all_reduce", 0, 8), inside, "tree", name) == pytest.approx(tree + 2 * 7 * up)
    across = 2 * (3 * up + HARDWARE_LATENCY[Link.NET][Algorithm.TREE][protocol])
    assert _us(Message("all_reduce", 0, 8), nodes, "tree", name) == pytest.approx(tree + across)
    # And they are the least that any message takes, which bytes come on top of.
    for size in (1 << 10, 1 << 20, 1 << 30):
        assert _us(Message("all_reduce", size, 8), inside, "ring", name) > base + 14 * hop[Link.NVLINK]


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


def _filled(a, *, tag, ranks, group_size):
    """As `_two`, with three products that neither all_reduce needs: they fill the time of the first."""
    ar = fc.all_reduce(a, "sum", ranks, tag)
    g = torch.matmul(a, a)
    h = torch.matmul(a, a.t())
    k = torch.matmul(a.t(), a)
    c = torch.relu(a)
    d = torch.matmul(c, c)
    f = d * c * ar
    fr = fc.all_reduce(f, "sum", ranks, tag)
    return torch.matmul(d + ar + fr, g), h, k


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


def order(function: Callable[..., Any], group: Ranks, passes: list[str], **options: Any) -> list[str]:
    """What ran on all ranks, with these passes: all ops of each kernel, in order, and the op of each call."""
    asked = function.__name__, {"collectives.passes": passes, **options}
    first, *others = group.run(__file__, "run_eager_and_litz", asked)
    assert all(other == first for other in others), "every rank does the same"
    return first


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
    return kinds([line.strip() for line in text.partition("def call")[2].splitlines()])


def test_sink_waits(group: Ranks) -> None:
    # Without the pass the wait stands where it stood.
    assert added(group, order(_started_first, group, [])) == ["all_reduce", "wait_tensor", "relu", "addmm"]
    # With it the wait is put off until its result is used.
    sunk = ["all_reduce", "relu", "wait_tensor", "addmm"]
    assert added(group, order(_started_first, group, ["sink_waits"])) == sunk
    assert order_on_gpu(_started_first, ["sink_waits"]) == ["all_reduce", "relu", "mm", "wait_tensor", "add"]


def test_raise_comms(group: Ranks) -> None:
    assert added(group, order(_started_last, group, [])) == ["relu", "all_reduce", "wait_tensor", "addmm"]
    # The all_reduce is raised above relu and matmul, and the wait, which no pass puts off, with it.
    assert added(group, order(_started_last, group, ["raise_comms"])) == ["all_reduce", "wait_tensor", "relu", "addmm"]
    assert order_on_gpu(_started_last, ["raise_comms"]) == ["all_reduce", "wait_tensor", "relu", "mm", "add"]


def test_sink_waits_raise_comms(group: Ranks) -> None:
    both = ["sink_waits", "raise_comms"]
    raised = ["all_reduce", "relu", "wait_tensor", "addmm"]
    assert added(group, order(_started_last, group, both)) == raised
    assert added(group, order(_started_last, group, both[::-1])) == raised
    assert order_on_gpu(_started_last, both) == ["all_reduce", "relu", "mm", "wait_tensor", "add"]
    # Where the source awaits in the middle, neither of the passes is enough.
    between = functools.partial(order, _started_and_awaited_between, group)
    hidden = ["all_reduce", "relu", "mm", "mm", "wait_tensor", "add + add_1"]
    assert between(both) == hidden
    assert between(both[::-1]) == hidden
    assert between(["sink_waits"]) == ["relu", "mm", "all_reduce", "mm", "wait_tensor", "add + add_1"]
    assert between(["raise_comms"]) == ["all_reduce", "wait_tensor", "relu", "mm", "mm", "add + add_1"]


def added(group: Ranks, found: list[str]) -> list[str]:
    """The order as a CPU has it, where the product itself is added to what was reduced; on a GPU a kernel adds."""
    if group.backend == "gloo":
        return found
    assert found[-1] == "add" and found.count("mm") == 1
    return [kind for kind in found[:-1] if kind != "mm"] + ["addmm"]


OVERLAPPED = [
    # After the first all_reduce: first what does not hang on it and is needed for the second (c and d), then what
    # neither hangs on it nor is needed for the second (g), then what hangs on it and is needed for the second (f).
    *("all_reduce", "relu", "mm", "mm", "wait_tensor", "mul + mul_1"),
    # After the second, all that hangs on it.
    *("all_reduce_", "wait_tensor", "add + add_1", "mm"),
]


def test_reorder_compute_for_overlap(group: Ranks) -> None:
    reorder = ["reorder_compute_for_overlap"]
    assert order(_two, group, reorder) == OVERLAPPED
    assert order_on_gpu(_two, reorder) == OVERLAPPED, "by a GPU's times"
    assert order(_two, group, []) != OVERLAPPED


def test_reorder_compute_for_overlap_custom_runtime_estimation(group: Ranks, tmp_path: Path) -> None:
    reorder, cost = ["reorder_compute_for_overlap"], "collectives.cost"
    assert order(_two, group, reorder, **{cost: "support.seed_costs:runtime"}) == OVERLAPPED

    def under_the_first(name: str, **options: Any) -> int:
        """How many products run under the first all_reduce, of d, which is needed first, and three more."""
        by = {cost: f"support.seed_costs:{name}", **options}
        found = order(_filled, group, reorder, **by)
        assert found.count("mm") == 5 and found.index("relu") < found.index("wait_tensor")
        assert order_on_gpu(_filled, reorder, **by) == found, "what decides is the user's, on every device"
        return found[: found.index("wait_tensor")].count("mm")

    assert under_the_first("runtime") == 4, "100 µs: all that there is"
    assert under_the_first("short_communication") == 2, "as much as hides it, and no more"
    assert under_the_first("slow_calls") == 1, "what is needed first is enough, by the user's time of it"
    # Communication is free: nothing that the second all_reduce does not need comes before it.
    assert under_the_first("free_communication") == 1
    # Where the user has no opinion on communication, NCCL's latencies say what it takes: over PCI some 9 µs.
    profile = tmp_path / "pci.json"
    profile.write_text(Profile(make_topology("H100", "PCI")).dumps())
    # With more ranks there are more hops.
    reached = 3 if WORLD == 2 else 4
    assert under_the_first("computation_alone", **{"collectives.profile": str(profile)}) == reached

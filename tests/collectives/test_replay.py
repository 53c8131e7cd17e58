"""Two streams, by hand: what is hidden, what contention costs, and which gains count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from benchmarks.exposed import after_the_spin, exposed_time, longest_exposed

from litz_collectives.streams import CORNERS, Corner, Interval, Slowdown, Task, replay, surely_gains


def compute(us: float, low: float | None = None, high: float | None = None) -> Task:
    return Task("kernel", "compute", Interval(us if low is None else low, us, us if high is None else high))


def start(us: float, name: str = "c", slowdown: Slowdown | None = None, spread: float = 0.0) -> Task:
    time = Interval(us * (1 - spread), us, us * (1 + spread))
    return Task(name, "start", time, slowdown=slowdown or Slowdown())


def wait(of: str = "c") -> Task:
    return Task(f"wait {of}", "wait", of=of)


BOTH_SLOW = Slowdown(Interval(1.0, 1.25, 1.5), Interval(1.0, 2.0, 4.0))

REPLAYS = {
    "nothing under it": ([compute(10), start(30), wait(), compute(10)], 50.0, 30.0, 30.0),
    "it gets in after one kernel": ([start(30), compute(5), compute(40), wait(), compute(10)], 55.0, 30.0, 0.0),
    "no kernel has ended": ([start(30), compute(40), wait()], 70.0, 30.0, 30.0),
    "a part": ([start(30), compute(5), compute(20), wait(), compute(10)], 45.0, 30.0, 10.0),
    "one behind the other": ([start(30, "a"), start(20, "b"), compute(10), wait("a"), wait("b")], 60.0, 50.0, 50.0),
    "one gets in at a time": (
        [start(5, "a"), start(5, "b"), compute(10), compute(10), compute(10), wait("a"), wait("b")],
        *(30.0, 10.0, 0.0),
    ),
    "the first is done": (
        [start(30, "a"), start(20, "b"), compute(5), compute(40), wait("a"), wait("b")],
        *(65.0, 50.0, 20.0),
    ),
    "it waits for the kernels before": ([compute(10), start(5), wait()], 15.0, 5.0, 5.0),
    "nobody waits": ([start(30), compute(5), compute(10)], 35.0, 30.0, 20.0),
    # 32 of 40 µs run beside it, in 40, and it takes twice its 20.
    "both slow down": ([start(20, slowdown=BOTH_SLOW), compute(5), compute(40), wait()], 53.0, 40.0, 0.0),
    # The kernel's 8 take 10, in which 5 of the 20 run; 15 are left alone.
    "contention ends with the kernel": (
        [start(20, slowdown=BOTH_SLOW), compute(5), compute(8), wait()],
        *(30.0, 25.0, 15.0),
    ),
}


def on(stream: str, link: str, us: float, slowdown: Slowdown | None = None) -> Task:
    return replace(start(us, stream, slowdown), stream=stream, link=link)


def test_a_message_of_another_group_passes_a_long_one() -> None:
    """The network's gather takes 100 µs; the host's message, and what needs it, do not wait for it."""
    tasks = [on("far", "network", 100), on("near", "host", 10), wait("near"), compute(5), compute(60), wait("far")]
    found = replay(tasks)
    assert (found.us, found.communication_us) == pytest.approx((100.0, 110.0))
    assert found.exposed == pytest.approx({"near": 10.0, "far": 25.0})
    one = replay([replace(task, stream="") for task in tasks])
    assert one.us == 175.0 and one.exposed["near"] == 110.0


def test_groups_that_share_a_link_share_its_time() -> None:
    """Both run at half speed until the shorter one is done, each in turn for 40 µs; then 20 are left."""
    tasks = [on("a", "host", 40), on("b", "host", 20), wait("b"), wait("a")]
    found = replay(tasks)
    assert (found.us, found.communication_us) == pytest.approx((60.0, 100.0))
    assert found.exposed == pytest.approx({"b": 40.0, "a": 20.0})
    apart = [tasks[0], replace(tasks[1], link="network"), *tasks[2:]]
    assert replay(apart).us == 40.0
    assert replay(apart, Corner("us", "us", "high")).us == 60.0, "slowdowns are high: they may share more than a link"


def test_a_kernel_is_slowed_by_the_collectives_of_each_group() -> None:
    """Once both are in, 1.25 * 1.25 times as long; each of them runs at half speed."""
    tasks = [on("a", "host", 40, BOTH_SLOW), on("b", "network", 40, BOTH_SLOW), compute(5), compute(32), wait("a")]
    found = replay(tasks)
    assert found.exposed_us == pytest.approx(40 - 50 / 2) and found.us == pytest.approx(5 + 50 + 15)
    assert found.communication_us == pytest.approx(2 * (50 + 15))


@pytest.mark.parametrize("corner", CORNERS)
def test_a_group_of_one_neither_waits_nor_holds_anything_up(corner: Corner) -> None:
    """It would let a kernel pass, and be late by the last rank, if it sent anything."""
    late = replace(corner, late_us=50.0)
    around = [compute(7), start(20, "b"), compute(10), wait("b"), compute(3)]
    own = [*around[:2], start(0), *around[2:3], wait(), *around[3:]]
    assert replay(own, late) == replay(around, late)


@pytest.mark.parametrize("name", REPLAYS)
def test_replay(name: str) -> None:
    tasks, us, communication, exposed = REPLAYS[name]
    found = replay(tasks)
    assert (found.us, found.communication_us, found.exposed_us) == pytest.approx((us, communication, exposed))


def test_hidden_share() -> None:
    assert replay([compute(5)]).hidden == 1.0
    assert replay([start(30), compute(1), compute(20), wait()]).hidden == pytest.approx(2 / 3)


def test_a_corner_is_what_its_figures_say() -> None:
    tasks = [start(20, slowdown=BOTH_SLOW, spread=0.5), compute(10, 5, 30), wait()]
    assert replay(tasks, Corner("low", "high", "low")).us == 30.0
    assert replay(tasks, Corner("high", "low", "low")).us == 30.0
    assert replay(tasks, Corner("high", "us", "high")).us == 40.0  # it has to let the kernel pass
    # 10 at half speed of 4: 10 * 1.5 = 15 µs, in which 15 / 4 of 30 run.
    assert replay([compute(10), *tasks], Corner("high", "us", "high")).us == 50.0
    assert replay([tasks[0], compute(1), *tasks[1:]], Corner("high", "us", "high")).us == pytest.approx(46 - 15 / 4)
    assert len(set(CORNERS)) == len(CORNERS) == 12


def test_a_gain_has_to_survive_the_error_bars() -> None:
    source = [start(30), wait(), compute(10), compute(40)]
    assert surely_gains([start(30), compute(10), compute(40), wait()], source)
    assert not surely_gains(source, source)
    # One bucket of 50 for two of 30: sure as it stands, but not if it may as well take 65.
    apart = [start(30, "a"), wait("a"), start(30, "b"), wait("b")]
    assert surely_gains([start(50), wait()], apart)
    assert not surely_gains([start(50, spread=0.3), wait()], apart)
    # Two of 20 for one of 30, as one of the two is hidden: unless the kernel is far quicker than thought.
    slow = compute(100, 5, 100)
    merged = [compute(10), slow, start(30), wait()]
    split = [start(20, "a"), compute(10), slow, start(20, "b"), wait("a"), wait("b")]
    assert replay(split).us < replay(merged).us and not surely_gains(split, merged)


def test_the_benchmark_counts_what_runs_alone() -> None:
    kernels = [
        ("ncclDevKernel_AllGather", 0.0, 10.0),
        ("gemm", 4.0, 6.0),
        ("gemm", 5.0, 12.0),
        ("ncclKernel", 8.0, 9.0),
    ]
    assert exposed_time(kernels) == (10.0, 4.0)
    assert exposed_time([("gemm", 0.0, 3.0), ("ncclDevKernel", 3.0, 7.0), ("gemm", 9.0, 10.0)]) == (4.0, 4.0)
    assert exposed_time([]) == (0.0, 0.0)


def test_the_benchmark_counts_from_the_spin_on() -> None:
    rows = [("ncclDevKernel_AllReduce", 0.0, 90.0), ("gemm", 91.0, 5.0), ("spin", 96.0, 60.0), ("gemm", 156.0, 5.0)]
    kernels = [{"name": name, "ts": start, "dur": us} for name, start, us in rows]
    assert after_the_spin(kernels) == kernels[3:]


def test_the_benchmark_says_what_was_exposed_longest() -> None:
    def event(name: str, start: float, us: float) -> dict[str, Any]:
        return {"name": name, "ts": start, "dur": us}

    gather, reduce = event("ncclDevKernel_AllGather_RING(x)", 5.0, 30.0), event("ncclDevKernel_AllReduce", 44.0, 3.0)
    found = longest_exposed(
        [event("mm", 0.0, 10.0), gather, event("gelu", 20.0, 3.0), event("norm", 40.0, 5.0), reduce]
    )
    assert [line.split("µs")[0].strip() for line in found] == ["12", "2"]
    assert "collective 1, AllGather_RING" in found[0] and "after gelu, before norm" in found[0]

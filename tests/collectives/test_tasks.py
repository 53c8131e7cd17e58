"""What the simulated streams take collectives beside kernels for, against traces of training steps on four H200s."""

from __future__ import annotations

import csv
import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from litz_collectives.improve import LATE_US
from litz_collectives.least_squares import not_negative_least_squares
from litz_collectives.streams import Interval, Slowdown, Task, replay
from litz_collectives.tasks import BESIDE_COPY, make_tasks
from support.communication import Made

DATA = Path(__file__).parent / "data"
ROWS = [
    {name: float(value) for name, value in row.items() if name.endswith("_us")}
    for row in csv.DictReader((DATA / "training_h200_w4.csv").open())
]
"""Of 131 collectives: µs that they take alone, and that they took beside nothing, products, and copies, from the end on
of the kernel in whose tail they began."""


def exactly(value: float) -> Interval:
    return Interval(value, value, value)


def factors() -> tuple[float, float]:
    """How many times longer a collective takes beside products and beside copies: of least relative error."""
    left = [(row["product_us"] / row["alone_us"], row["copy_us"] / row["alone_us"]) for row in ROWS]
    right = [1 - row["idle_us"] / row["alone_us"] for row in ROWS]
    gram = [[sum(row[i] * row[j] for row in left) for j in range(2)] for i in range(2)]
    rates = not_negative_least_squares(
        gram, [sum(row[i] * y for row, y in zip(left, right, strict=True)) for i in range(2)]
    )
    return 1 / rates[0], 1 / rates[1]


def test_collectives_beside_products_and_beside_copies() -> None:
    product, copy = factors()
    assert copy == pytest.approx(BESIDE_COPY, rel=0.05)
    assert product == pytest.approx(1.21, rel=0.05), "what that host's calibration says of 128 MiB"


def test_how_late_the_last_rank_comes() -> None:
    """In µs, beyond what a collective takes alone and beside others."""
    product, copy = factors()
    late = [r["idle_us"] + r["product_us"] / product + r["copy_us"] / copy - r["alone_us"] for r in ROWS]
    cuts = statistics.quantiles(late, n=20)
    assert abs(statistics.median(late)) < 20, "the model is right on the whole"
    assert cuts[17] < LATE_US < 1.5 * cuts[18], "the pessimist's case holds for 9 of 10, and is not far from 19 of 20"


def test_steps_as_tasks() -> None:
    made = Made()
    made.input("x", 64)
    made.communicate("sum", "all_reduce", "x", 50.0)
    made.call("last", "sum", us=5.0)
    schedule = made.schedule("last")
    start, wait, last = make_tasks(schedule.steps, schedule.estimates)
    assert (start.kind, wait.kind, last.kind) == ("start", "wait", "compute") and wait.of == start.name
    assert start.time == Interval(50.0, 50.0, 50.0) and last.time == Interval(5.0, 5.0, 5.0)
    assert not last.memory_bound, "a call of the library; kernels of litz are"


SLOWDOWN = Slowdown(*map(exactly, (1.36, 1.23, 1.16, 1.54)))
"""Of products beside 128 MiB, collectives beside those, copies, collectives beside copies: as the host was measured."""


@pytest.mark.parametrize("graph", ["forward", "backward"])
def test_an_order_that_missed_its_gaps(graph: str) -> None:
    """What a trace of rank 0 shows exposed, of an order of which nothing was thought to be: with what kernels took
    the streams know how much, and which collectives."""
    found = json.loads((DATA / "order_h200_w4.json").read_text())[graph]
    tasks = [
        Task(name, kind, exactly(us), name if kind == "wait" else "", SLOWDOWN, memory_bound)
        for kind, name, us, memory_bound in found["steps"]
    ]
    first = next(task.name for task in tasks if task.kind == "start")
    # In the trace the first of the step waits for the slowest rank to begin.
    seen = {name: us for name, us in found["exposed_us"].items() if graph == "backward" or name != first}
    expected = replay(tasks)
    assert expected.exposed_us == pytest.approx(sum(seen.values()), rel=0.2)
    worst = {name: us for name, us in seen.items() if us > 200}
    assert {name: expected.exposed[name] for name in worst} == pytest.approx(worst, rel=0.3)
    slower = [replace(task, time=exactly(task.time.us / 0.83)) if task.kind == "compute" else task for task in tasks]
    believed = [replace(task, slowdown=Slowdown(exactly(1.26), exactly(1.21))) for task in slower]
    assert replay(believed).exposed_us < 0.15 * expected.exposed_us, "which is how it came to be"

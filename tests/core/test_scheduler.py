"""Which worker runs which tests: each test once, those of a group by one worker, and what a run is told of a test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("xdist")  # the GPU machine has none

from support.scheduler import MANY, NEAR_THE_END, Scheduler, say_less, says_nothing

GROUPS = [f"a.py::one[{number}]@group" for number in range(60)] + [f"b.py::two[{number}]@other" for number in range(9)]
PASSED = {"when": "setup", "outcome": "passed", "duration": 0.01, "sections": []}


class Worker:
    """Runs the tests that it is given, in order; the last one when it knows that no more come."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.tests, self.given, self.ran = tests, list[int](), list[str]()
        self.messages = 0
        self.shutting_down = False
        self.gateway = SimpleNamespace(id="worker")

    def send_runtest_some(self, numbers: Sequence[int]) -> None:
        assert not self.shutting_down
        self.given += numbers
        self.messages += 1

    def shutdown(self) -> None:
        self.shutting_down = True

    def run(self, scheduler: Scheduler) -> bool:
        """Runs a test; returns whether there was one."""
        if len(self.given) < (1 if self.shutting_down else 2):
            return False
        number = self.given.pop(0)
        self.ran.append(self.tests[number])
        scheduler.mark_test_complete(self, number)
        return True


def started(tests: Sequence[str], workers: int) -> tuple[Scheduler, list[Worker]]:
    option = SimpleNamespace(loadscopereorder=True, debug=False)
    config: Any = SimpleNamespace(option=option, getvalue=lambda name: ["popen"] * workers, rootpath=None)
    scheduler, found = Scheduler(config), [Worker(tests) for _ in range(workers)]
    for each in found:
        scheduler.add_node(each)
    for each in found:
        scheduler.add_node_collection(each, list(tests))
    scheduler.schedule()
    return scheduler, found


def run(scheduler: Scheduler, workers: Sequence[Worker]) -> Iterator[None]:
    """Has the workers run a test in turn until none is left."""
    while any([worker.run(scheduler) for worker in workers]):
        yield


@pytest.mark.parametrize("single", [0, 1, 2, 5, 3 * NEAR_THE_END])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_each_test_runs_once_and_a_group_with_one_worker(single: int, workers: int) -> None:
    tests = [*GROUPS, *(f"c.py::test_{number}" for number in range(single))]
    scheduler, found = started(tests, workers)
    for _ in run(scheduler, found):
        pass
    assert sorted(name for worker in found for name in worker.ran) == sorted(tests)
    assert scheduler.tests_finished and not scheduler.has_pending
    assert all(worker.shutting_down and not worker.given for worker in found)
    for group in ("@group", "@other"):
        assert sum(any(name.endswith(group) for name in worker.ran) for worker in found) == 1


def test_near_the_end_no_worker_has_many_ahead() -> None:
    scheduler, found = started([f"c.py::test_{number}" for number in range(3 * NEAR_THE_END)], 2)
    most = []
    for _ in run(scheduler, found):
        most.append((len(scheduler.workqueue), max(len(worker.given) for worker in found)))
    assert max(ahead for left, ahead in most) <= MANY
    assert max(ahead for left, ahead in most if left < NEAR_THE_END - MANY) <= 3
    assert sum(worker.messages for worker in found) < 1.2 * NEAR_THE_END  # a message each, there alone


def test_what_a_worker_that_dies_had_is_to_be_run_by_another() -> None:
    tests = [f"c.py::test_{number}" for number in range(2 * NEAR_THE_END)]
    scheduler, (dies, lives) = started(tests, 2)
    assert dies.run(scheduler) and dies.run(scheduler)
    assert scheduler.remove_node(dies) == tests[dies.given[0]]
    for _ in run(scheduler, [lives]):
        pass
    assert sorted(dies.ran + lives.ran) == sorted(tests)


@pytest.mark.parametrize(
    ("changed", "nothing"),
    [
        ({}, True),
        ({"when": "teardown"}, True),
        ({"when": "call"}, False),
        ({"outcome": "failed"}, False),
        ({"outcome": "skipped"}, False),
        ({"duration": 0.2}, False),
        ({"sections": [("Captured stdout setup", "said")]}, False),
    ],
)
def test_a_worker_leaves_out_fixtures_that_passed_at_once(changed: dict[str, object], nothing: bool) -> None:
    report = {**PASSED, **changed}
    assert says_nothing(report) == nothing
    sent: list[str] = []
    interactor = type("WorkerInteractor", (), {"sendevent": lambda self, name, **of: sent.append(name)})()
    config: Any = SimpleNamespace(pluginmanager=SimpleNamespace(get_plugins=lambda: [interactor]))
    say_less(config)
    interactor.sendevent("logstart", nodeid="a", location=("a", 1, "a"))
    interactor.sendevent("testreport", data=report)
    interactor.sendevent("logfinish", nodeid="a", location=("a", 1, "a"))
    assert sent == ([] if nothing else ["testreport"]) + ["logfinish"]

"""Which worker of a run gets which tests: pytest-xdist's own choice for `--dist loadgroup`, made in less time.

At each message of a worker xdist counts through every test that the worker has ever had, and it looks for each test in
a list of all: with 10,000 tests, more than all else that a run's first process does, while workers wait. Here a
worker's tests are forgotten when they are done, a worker gets several at a time, and says less about each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadGroupScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

FEW, MANY = 20, 40
"""A worker with FEW tests ahead gets more, until there are MANY."""
FEW_AT_THE_END = 2
"""A worker that has so few, the one that it runs included, waits for more: it asks which test follows."""
NEAR_THE_END = 500
"""So many tests, or groups of them, that no worker has yet."""
NOTED_SECONDS = 0.1
"""Fixtures that take longer are among what `--durations` shows."""


class Scheduler(LoadGroupScheduling):
    """In: what each worker has collected, and which tests it has done. Out: the tests that it runs next."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self.numbers: dict[WorkerController, dict[str, int]] = {}
        """Of each worker, the place of a test in its collection."""

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        self.numbers[node] = {nodeid: number for number, nodeid in enumerate(collection)}

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        nodeid = self.registered_collections[node][item_index]
        scope = self._split_scope(nodeid)
        unit = self.assigned_work[node][scope]
        del unit[nodeid]
        if not unit:
            del self.assigned_work[node][scope]
        self._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        self._assign(node, enough=0)

    def _assign(self, node: WorkerController, enough: int) -> None:
        """Gives a worker the next unit of work, and more until it has enough tests ahead or the end is near."""
        work = self.assigned_work.setdefault(node, {})
        pending, numbers = self._pending_of(work), list[int]()
        while not numbers or (pending + len(numbers) < enough and len(self.workqueue) > NEAR_THE_END):
            scope, unit = self.workqueue.popitem(last=False)
            work[scope] = unit
            numbers += [self.numbers[node][nodeid] for nodeid in unit]
        node.send_runtest_some(numbers)

    def _reschedule(self, node: WorkerController) -> None:
        if node.shutting_down:
            return
        if not self.workqueue:
            node.shutdown()
            return
        few = FEW if len(self.workqueue) > NEAR_THE_END else FEW_AT_THE_END
        if self._pending_of(self.assigned_work[node]) <= few:
            self._assign(node, MANY)


def say_less(config: pytest.Config) -> None:
    """Has this worker leave out what the run's first process makes nothing of: that a test begins, and that what is
    around it has passed at once."""
    for plugin in config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "WorkerInteractor":
            plugin.sendevent = _less(plugin.sendevent)  # type: ignore[attr-defined]


def _less(send: Callable[..., None]) -> Callable[..., None]:
    def sendevent(name: str, **of: Any) -> None:
        if name != "logstart" and not (name == "testreport" and says_nothing(of["data"])):
            send(name, **of)

    return sendevent


def says_nothing(report: Mapping[str, Any]) -> bool:
    """Says whether a report is of fixtures that passed at once and said nothing."""
    quick = report["outcome"] == "passed" and report["duration"] < NOTED_SECONDS
    return report["when"] != "call" and quick and not report["sections"]


__all__ = ["Scheduler", "say_less", "says_nothing"]

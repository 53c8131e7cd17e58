"""What `litz_watch_graph` tells a plugin: stages in order, kernels, passes, and the end, after a failure too."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from litz import report as reports
from litz.backend import backend_with
from litz_plugins import Watcher, hookimpl


class Watching:
    """Notes what it is told, by graph."""

    def __init__(self, fails: str = "") -> None:
        self.told: dict[str, list[Any]] = {}
        self.read: set[bool] = set()
        self._fails = fails

    @hookimpl
    def litz_watch_graph(self, name: str, read: bool) -> Watcher:
        told = self.told[name] = []
        self.read.add(read)

        def stage(stage: str) -> None:
            if stage == self._fails:
                raise RuntimeError("no luck")
            told.append(stage)

        return Watcher(
            stage,
            lambda kernels: told.append(kernels),
            lambda pass_, before, after, seconds: told.append(pass_),
            lambda: told.append("ended"),
        )


def compiled(watching: Watching, **options: Any) -> torch.Tensor:
    torch._dynamo.reset()
    backend = backend_with(watching=watching)
    x = torch.randn(4, 8)
    return torch.compile(lambda x: (x.sin() + 1).sum(0), backend=backend, options={"graph_cache": False, **options})(x)


def test_a_watcher_is_told_of_all_that_happens() -> None:
    watching = Watching()
    with reports.collect():
        compiled(watching)
    assert watching.read == {True} and set(watching.told) == {"", "graph0_inference"}
    told = watching.told["graph0_inference"]
    stages = [each for each in told if isinstance(each, str)]
    order = ["graph cache", "graph passes", "lower", "program passes", "schedule", "plan", "generate", "build", "keep"]
    assert stages == [*order, "ended"]
    assert told.count(1) == 1 and told.index("build") < told.index(1) < told.index("keep")
    passes = [each for each in told if hasattr(each, "stage")]
    assert {each.name for each in passes} >= {"inline_pointwise", "remove_dead_operations"}
    between = told[told.index("graph passes") : told.index("lower")]
    assert {each.stage for each in between if hasattr(each, "stage")} == {"graph"}
    assert watching.told[""][-1] == "ended"


def test_nobody_reads_without_collectors_and_folders() -> None:
    watching = Watching()
    compiled(watching)
    assert watching.read == {False}


def test_a_failing_watcher_is_named_and_hears_of_the_end() -> None:
    watching = Watching(fails="schedule")
    with pytest.raises(Exception, match="the function 'stage' of its Watcher") as error:
        compiled(watching)
    assert "watching" in str(error.value) and "no luck" in str(error.value)
    assert watching.told["graph0_inference"][-1] == "ended"


class FailingAtTheEnd:
    @hookimpl
    def litz_watch_graph(self) -> Watcher:
        def ended() -> None:
            raise RuntimeError("no end")

        return Watcher(ended=ended)


@pytest.mark.parametrize("failing_first", [False, True])
def test_each_watcher_hears_of_the_end_where_anothers_function_fails(failing_first: bool) -> None:
    torch._dynamo.reset()
    watching = Watching()
    plugins = [("watching", watching), ("failing", FailingAtTheEnd())]
    backend = backend_with(**dict(plugins[::-1] if failing_first else plugins))
    compiled = torch.compile(lambda x: x.sin() + 1, backend=backend, options={"graph_cache": False})
    with pytest.raises(Exception, match="no end"):
        compiled(torch.randn(4))
    assert {told[-1] for told in watching.told.values()} == {"ended"}

"""What plugins run in place of a compiled graph's entry: handed each graph, those of the graph cache too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from litz import graph_cache
from litz.driver.builtin import builtin_plugins
from litz.errors import StaleEntryError
from litz.pipeline import compile_backend
from litz.report import collect
from litz.runtime.compiled_graph import CompiledGraph
from litz.runtime.graph_entry import GraphEntry, check_same
from litz_plugins import VETOED, Entry, EntryFacts, PluginWarning, hookimpl, make_plugins


class Wraps:
    """Wraps each entry, and notes what was known of it, and of each call what the list of inputs held."""

    def __init__(self, log: list[str], name: str = "", wanted: bool = True) -> None:
        self.log, self.name, self.wanted = log, name, wanted
        self.facts: list[EntryFacts] = []

    @hookimpl
    def litz_wrap_entry(self, entry: Entry, facts: EntryFacts) -> Entry | None:
        self.facts.append(facts)
        if not self.wanted:
            return None

        def around(args: list[Any]) -> tuple[Any, ...]:
            self.log.append(f"{self.name} {facts.graph} {len(args)}")
            outputs = entry(args)
            assert not args, "the entry empties the list"
            return outputs

        return around


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def backend_of(folder: Path, *plugins: object, **options: Any) -> Callable[..., Any]:
    made = make_plugins(
        builtin_plugins(), extra=[(f"p{n}", plugin) for n, plugin in enumerate(plugins)], entry_points=()
    )
    return partial(compile_backend, options={"cache_dir": str(folder), "graph_cache": True, **options}, plugins=made)


def layer(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.tanh(x @ w)
    return y.t(), y.sum()


def trained(backend: Callable[..., Any]) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    x, w = torch.randn(8, 6, dtype=torch.float64), torch.nn.Parameter(torch.randn(6, 10, dtype=torch.float64))
    found, total = torch.compile(layer, backend=backend)(x, w)
    expected, wanted = layer(x, w)
    total.backward()
    gradient, w.grad = w.grad, None
    wanted.backward()
    assert found.stride() == expected.stride() and gradient is not None
    torch.testing.assert_close((found, total, gradient), (expected, wanted, w.grad))
    return found, total


def test_each_graph_is_handed_over_and_runs_what_comes_back(tmp_path: Path) -> None:
    log: list[str] = []
    one = Wraps(log)
    trained(backend_of(tmp_path, one))
    forward, backward = one.facts
    assert [line.split()[0] for line in log] == [forward.graph, backward.graph] and forward.graph != backward.graph
    assert forward.devices == backward.devices == ("cpu",)
    assert "a recording cannot hold memory on cpu" in forward.obstacle
    assert len(forward.returned_inputs) >= 2 and not forward.made and backward.made and forward.peak >= 0


def test_the_graph_cache_hands_the_same_facts_over(tmp_path: Path) -> None:
    """In the process that has compiled it, and from files; whoever compiled it need not have had the plugin."""
    with collect() as reports:
        trained(backend_of(tmp_path))
    assert [report.graph_cache.split()[0] for report in reports] == ["miss", "miss"]
    seen = []
    for forgets in (False, True):
        torch._dynamo.reset()
        if forgets:
            graph_cache.forget()
        log: list[str] = []
        one = Wraps(log)
        with collect() as reports:
            trained(backend_of(tmp_path, one))
        assert [report.graph_cache.split()[0] for report in reports] == ["hit", "hit"]
        assert len(log) == 2, "a call of each"
        seen.append(one.facts)
    made = Wraps([])
    torch._dynamo.reset()
    trained(backend_of(tmp_path / "other", made))
    for found in seen:
        assert found == made.facts


def test_recordings_can_be_vetoed(tmp_path: Path) -> None:
    """In a compile, and of a graph from the cache, whose key has the vetoes."""
    for found in ("miss", "hit"):
        torch._dynamo.reset()
        one = Wraps([])
        backend = backend_of(tmp_path, one, cuda_graphs=True, veto=["cuda_graphs"])
        with collect() as reports:
            torch.compile(torch.sin, backend=backend)(torch.ones(4))
        assert reports[0].graph_cache.startswith(found) and one.facts[0].obstacle == VETOED


def test_equal_graphs_may_name_their_obstacle_otherwise() -> None:
    def entry(obstacle: str) -> GraphEntry:
        return GraphEntry("", facts=EntryFacts(obstacle=obstacle))

    check_same(entry("on cpu (arg0_1)"), entry("on cpu (arg1_1)"), "graph0")
    with pytest.raises(StaleEntryError, match="its facts would be"):
        check_same(entry("on cpu (arg0_1)"), entry(""), "graph0")


def test_wrappers_nest_and_the_first_is_the_innermost(tmp_path: Path) -> None:
    log: list[str] = []
    backend = backend_of(tmp_path, Wraps(log, "inner"), Wraps(log, "none", wanted=False), Wraps(log, "outer"))
    torch.compile(torch.sin, backend=backend)(torch.ones(4))
    assert [line.split()[0] for line in log] == ["outer", "inner"]


def test_where_nobody_wraps_the_wrappers_function_itself_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries: list[CompiledGraph] = []
    real = CompiledGraph.__call__
    monkeypatch.setattr(CompiledGraph, "__call__", lambda self, args: (entries.append(self), real(self, args))[1])
    for plugins in ((), (Wraps([], wanted=False),)):
        torch._dynamo.reset()
        torch.compile(torch.sin, backend=backend_of(tmp_path, *plugins))(torch.ones(4))
    assert len(entries) == 2
    for graph in entries:
        assert graph.entry is graph.code.call and graph.ranged is not None


def test_under_a_profiler_what_is_wrapped_is_one_range(tmp_path: Path) -> None:
    log: list[str] = []
    run = torch.compile(torch.sin, backend=backend_of(tmp_path, Wraps(log)))
    with torch.profiler.profile() as profile:
        torch.testing.assert_close(run(torch.ones(4)), torch.ones(4).sin())
    assert len(log) == 1, "the plugin's own function ran"
    assert sum(event.name.startswith("litz graph") for event in profile.events()) == 1


def test_a_graph_runs_without_a_plugin_that_fails(tmp_path: Path) -> None:
    class Fails:
        @hookimpl
        def litz_wrap_entry(self, entry: Entry) -> Entry:
            raise RuntimeError("no such device")

    log: list[str] = []
    known: dict[str, Any] = {"entry_points": (), "on_plugin_error": "disable"}
    made = make_plugins(builtin_plugins(), extra=[("fails", Fails()), ("works", Wraps(log))], **known)
    options = {"cache_dir": str(tmp_path), "on_plugin_error": "disable"}
    run = torch.compile(torch.sin, backend=partial(compile_backend, options=options, plugins=made))
    with pytest.warns(PluginWarning, match=r"litz_wrap_entry.*no such device"):
        torch.testing.assert_close(run(torch.ones(4)), torch.ones(4).sin())
    assert len(log) == 1, "and with the others"

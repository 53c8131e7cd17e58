"""Graphs from the graph cache have the names of the program at hand: right ones or none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._functorch import config as functorch_config

from litz.errors import IndexRangeError
from litz.report import CompileReport
from support.graph_cache import Runs, called_with

LINE = "test_words_of_cached_graphs.py:"
IDS = torch.randint(0, 10, (2, 4))


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(16, 32)
        self.fc2 = torch.nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc2(torch.relu(self.fc1(x.sin())))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = torch.nn.Embedding(10, 16)
        self.layers = torch.nn.ModuleList([Block() for _ in range(2)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x)
        return x


class Renamed(torch.nn.Module):
    """The same, with everything one name deeper."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.inner = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.inner(ids)


@pytest.fixture(params=[False, True], ids=["traced", "found without a trace"])
def runs(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Runs]:
    with functorch_config.patch(enable_autograd_cache=request.param):
        yield Runs(tmp_path)
    torch._dynamo.reset()


def train(compiled: Any) -> None:
    compiled(IDS).sum().backward()


def said(reports: list[CompileReport]) -> list[tuple[str, list[tuple[Any, ...]]]]:
    return [(r.wrapper_source, [(s.modules, s.places, s.origin) for s in r.steps]) for r in reports]


def is_traced(runs: Runs) -> bool:
    return not any("without a trace" in report.graph_cache for report in runs.reports)


@pytest.mark.ci_cases("traced")
def test_a_graph_from_the_cache_is_said_as_it_was_when_compiled(runs: Runs) -> None:
    model = Model()
    runs.run(train, model)
    first = said(runs.reports)
    assert runs.said == ["miss", "miss"] and all("layers.1.fc1" in text for text, _ in first)
    runs.run(train, model)
    assert runs.said == ["hit", "hit"]
    assert said(runs.reports) == first


@pytest.mark.ci_cases("found without a trace")
def test_an_equal_graph_has_names_of_its_own(runs: Runs) -> None:
    model = Model()
    runs.run(train, Renamed(model))
    alone = Runs(runs.folder / "alone")
    alone.run(train, model)
    runs.run(train, model)
    for text, steps in said(runs.reports):
        assert "inner" not in text and not any("inner" in str(step) for step in steps)
        if is_traced(runs):  # else the graph that lies there is known to be another program's
            assert "layers.1.fc1.weight, f32[32, 16]" in text and f"layers.1.fc1 ({LINE}" in text
    if is_traced(runs):
        assert runs.said == ["hit", "hit"]
        assert said(runs.reports) == said(alone.reports)


@pytest.mark.ci_cases("traced")
def test_profiles_and_errors_of_a_graph_from_the_cache(runs: Runs) -> None:
    model = Model()
    for turn in range(2):
        with torch.no_grad():
            runs.run(called_with(IDS), model)
            assert runs.said == ["hit" if turn else "miss"]
            fn = runs.compiled
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                fn(IDS)
            with pytest.raises(IndexRangeError) as caught:
                fn(IDS + 100)
        steps = [step.name for step in runs.reports[0].steps]
        ranges = [event.name for event in profile.events() if event.name.split(" ")[0].rstrip(":") in steps]
        assert len(ranges) == len(steps), "one range for each step"
        assert any("layers.1.fc1" in name for name in ranges)
        notes = getattr(caught.value, "__notes__", [])
        assert any("emb" in note and LINE in note for note in notes)

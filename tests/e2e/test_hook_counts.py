"""How often hooks are called, counted: `litz_plugins.calls` has the table that these counts are held to."""

from __future__ import annotations

import uuid
from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from litz import report as reports
from litz.cli import main as main_module
from litz.driver.builtin import builtin_plugins
from litz.options import Options
from litz.pipeline import compile_backend
from litz_plugins import hookimpl, make_plugins
from litz_plugins.calls import CALLS, Per
from litz_plugins.validate import HOOKS
from support.own_plugins import CONTRACTIONS


def counting(counts: Counter[str]) -> SimpleNamespace:
    """A plugin with every hook, that has an opinion on nothing and counts how often each is called."""
    unique = uuid.uuid4().hex  # no graph of an earlier test is found

    def counted(hook: str) -> Any:
        @hookimpl
        def implementation() -> str | None:
            counts[hook] += 1
            return unique if hook == "litz_cache_fingerprint" else None

        return implementation

    return SimpleNamespace(**{hook: counted(hook) for hook in HOOKS})


def trained(plugin: object, x: torch.Tensor, weight: torch.Tensor) -> tuple[list[reports.CompileReport], int]:
    """The reports of one training step, and how often passes run."""
    torch._dynamo.reset()
    plugins = make_plugins(builtin_plugins(), extra=[("counting", plugin), CONTRACTIONS], entry_points=())
    backend = partial(compile_backend, options={"graph_cache": True}, plugins=plugins)
    with reports.collect() as collected:
        torch.compile(lambda x, weight: torch.softmax(x @ weight, -1).square().sum(), backend=backend)(
            x, weight
        ).backward()
    passes = make_plugins(builtin_plugins(), extra=[CONTRACTIONS], entry_points=()).passes(Options())
    once = sum(item.stage in ("traced", "joint", "partitioned") for item in passes)  # for both graphs of a step
    return list(collected), once + 2 * (len(passes) - once)


@pytest.fixture(scope="module")
def step() -> tuple[Counter[str], Counter[str], list[reports.CompileReport], int]:
    """What a training step's compile called, and a second one, whose graphs are in the graph cache."""
    x, weight = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    counts: Counter[str] = Counter()
    plugin = counting(counts)
    collected, passes = trained(plugin, x, weight)
    first = Counter(counts)
    counts.clear()
    trained(plugin, x, weight)
    return first, counts, collected, passes


def test_counts_of_a_training_step(step: Any) -> None:
    first, _, collected, passes = step
    assert [report.kind for report in collected] == ["forward", "backward"]
    contractions = sum(len(report.contractions) for report in collected)
    assert contractions == 3
    of: dict[Per, int] = {
        "compile": 1,
        "graph": 2,
        "look-up": 1 + 2,
        "pass": passes,
        "contraction": contractions,
        "step": sum(len(report.steps) for report in collected),
        "package": 0,
    }
    for hook, calls in CALLS.items():
        if calls.per != "command line":
            most = first[hook] if calls.most is None else calls.most * of[calls.per]
            assert calls.least * of[calls.per] <= first[hook] <= most, (hook, str(calls), first[hook])
    # What is registered is asked for once, and not at most once, where something is compiled.
    assert {first[hook] for hook in HOOKS if "_register_" in hook and hook != "litz_register_commands"} == {1}


def test_counts_of_what_the_graph_cache_has(step: Any) -> None:
    first, second, _, _ = step
    assert second["litz_compile_finished"] == first["litz_compile_finished"] == 2
    assert second["litz_wrap_entry"] == first["litz_wrap_entry"] == 2
    assert second["litz_register_options"] == 1
    assert first["litz_watch_graph"] == 3, "the capture and two graphs"
    assert second["litz_cache_fingerprint"] >= 1
    for hook in ("litz_compile_started", "litz_pass_finished", "litz_register_lowerings", "litz_register_passes"):
        assert second[hook] == 0, hook


def test_commands_are_asked_for_once_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()
    loaded = make_plugins(extra=[("counting", counting(counts))], entry_points=())
    asked = []
    monkeypatch.setattr(main_module, "_plugin_commands", lambda: asked.append(1) or loaded.commands())
    assert CliRunner().invoke(main_module.main, ["--help"]).exit_code == 0
    assert len(asked) == counts["litz_register_commands"] == 1

"""The ledger: whose call took how long, with calls within calls; and a call that is slow, named while it runs."""

from __future__ import annotations

import logging
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from litz_plugins import Estimate, Pass, Plugins, Target, hookimpl, make_plugins, watchdog
from litz_plugins.blame import Called
from litz_plugins.ledger import Entry, Ledger


def called(plugin: str, what: str, begun: float, seconds: float, failed: bool = False) -> Called:
    return Called(plugin, what, begun, seconds, failed=failed)


def test_a_call_has_its_own_seconds_without_those_within_it() -> None:
    ledger = Ledger()
    ledger.called(called("a", "before", 0.0, 1.0))
    ledger.called(called("b", "inner", 3.0, 1.0))
    ledger.called(called("c", "innermost", 5.0, 0.5))
    ledger.called(called("b", "inner", 4.5, 2.0))
    ledger.called(called("a", "outer", 2.0, 6.0))
    found = {(entry.plugin, entry.what): entry.seconds for entry in ledger.take()}
    assert found == {("a", "before"): 1.0, ("b", "inner"): 2.5, ("c", "innermost"): 0.5, ("a", "outer"): 3.0}
    assert sum(found.values()) == 7.0  # of the 8 seconds, nobody has the one between 1 and 2
    assert ledger.take() == ()


def test_lowerings_are_one_entry_and_failures_are_counted() -> None:
    ledger = Ledger()
    for op, failed in (("aten.add", False), ("aten.mul", True), ("aten.add", False)):
        ledger.called(called("a", f"lowering of {op}", 1.0, 0.0, failed))
    assert ledger.take() == (Entry("a", "lowerings", 3, 0.0, 1),)


def plugins(**hooks: Any) -> Plugins:
    plugin = SimpleNamespace(**{name: hookimpl(function) for name, function in hooks.items()})
    return make_plugins(extra=[("mine", plugin)], entry_points=())


def test_what_plugins_do_is_on_the_ledger() -> None:
    def run(noun: Any, context: Any) -> Any:
        context.estimate("op", None, None)
        return noun

    mine = plugins(
        litz_register_passes=lambda: [Pass("look", "program", run)],
        litz_estimate_runtime=lambda: Estimate(1.0, 1.0, 1.0, "one"),
    )
    options = SimpleNamespace()
    mine.run_passes("program", 3, options)
    mine.run_passes("program", 4, options)
    assert {(entry.what, entry.calls) for entry in mine.ledger.take()} == {
        ("litz_register_passes", 1),
        ("litz_estimate_runtime", 2),
        ("pass 'look' (program stage)", 2),
    }


def test_a_slow_call_is_named_while_it_runs(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(watchdog, "SLOW", 0.05)
    seen: list[tuple[str, int]] = []

    def run(noun: Any, context: Any) -> Any:
        deadline = time.monotonic() + 10
        while not mine.slow_call and time.monotonic() < deadline:
            time.sleep(0.01)
        seen.append((mine.slow_call, len(caplog.records)))
        return noun

    mine = plugins(litz_register_passes=lambda: [Pass("dawdle", "program", run)])
    with caplog.at_level(logging.INFO, "litz.plugins"):
        mine.run_passes("program", 3, SimpleNamespace())
    assert seen[0][0] == "plugin mine: pass 'dawdle' (program stage)"
    slow, ended = caplog.records
    assert slow.levelname == "WARNING" and "'mine'" in slow.getMessage() and "'dawdle'" in slow.getMessage()
    assert ended.levelname == "INFO" and mine.slow_call == ""


def test_a_measurement_may_take_long_without_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watchdog, "SLOW", 0.05)
    mine = plugins(litz_tune=lambda: time.sleep(0.5))
    with caplog.at_level(logging.INFO, "litz.plugins"):
        mine.tune(None)
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO"]


def test_calls_in_turn_have_their_own_seconds_without_those_within_them() -> None:
    """Told of together: what ran within the second is not taken from the third, nor from the first."""
    ledger = Ledger()
    ledger.called(called("x", "inner", 1.5, 1.0))  # within a's
    ledger.called(called("y", "inner", 4.5, 2.0))  # within b's
    ledger.in_turn("ask", [("a", 1.0, 3.0), ("b", 4.0, 4.0), ("c", 8.0, 1.0)], failed=True)
    ledger.called(called("outer", "pass", 0.0, 10.0))
    found = {(entry.plugin, entry.what): (entry.seconds, entry.failed) for entry in ledger.take()}
    assert found == {
        ("x", "inner"): (1.0, 0),
        ("y", "inner"): (2.0, 0),
        ("a", "ask"): (2.0, 0),
        ("b", "ask"): (2.0, 0),
        ("c", "ask"): (1.0, 1),
        ("outer", "pass"): (2.0, 0),
    }


def test_who_watches_is_told_of_each_call_in_turn() -> None:
    names = ("a", "b", "c")

    def estimate(name: str) -> Any:
        return hookimpl(
            lambda: Estimate(1.0, 1.0, 1.0, name) if name == "c" else None, specname="litz_estimate_runtime"
        )

    extra = [(name, SimpleNamespace(litz_estimate_runtime=estimate(name))) for name in names]
    mine = make_plugins(extra=extra, entry_points=())
    seen: list[Called] = []
    mine.watchers.append(seen.append)
    mine.estimate_runtime("op", Target("cpu"), None)
    assert [call.plugin for call in seen] == ["a", "b", "c"]
    assert [call.result and call.result.us for call in seen] == [None, None, 1.0]
    assert all(one.begun + one.seconds <= other.begun for one, other in pairwise(seen))

"""Nouns that plugins are handed: a change in place is found after the very call that made it, and looking for one costs
little, which is counted in function calls.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from litz_plugins import (
    Estimate,
    PluginHookError,
    Plugins,
    PluginWarning,
    Target,
    hookimpl,
    make_plugins,
    roster,
    unchanged,
)
from litz_plugins.unchanged import take
from litz_plugins.watchdog import Running, Watchdog

CPU = Target("cpu")


@dataclass(frozen=True)
class Part:
    name: str
    stores: tuple[int, ...] = (1,)
    constants: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Whole:
    """As a Program: records in a tuple and in a mapping."""

    name: str = "main"
    operations: tuple[Part, ...] = (Part("first"), Part("second"))
    buffers: dict[str, Part] = field(default_factory=lambda: {"x": Part("x"), "y": Part("y")})


def plugins_of(*estimates: Callable[..., Any], **known: Any) -> Plugins:
    """Plugins a, b, ..., each with an estimate; no two are told apart by anything else."""
    named = [(chr(ord("a") + n), SimpleNamespace(litz_estimate_runtime=hookimpl(f))) for n, f in enumerate(estimates)]
    return make_plugins(extra=named, entry_points=(), **known)


def idle(operation: Any, target: Any, program: Any, options: Any) -> None:
    return None


def empties_the_operation(operation: Any, program: Any) -> None:
    object.__setattr__(operation, "stores", ())


def adds_a_constant(operation: Any, program: Any) -> None:
    operation.constants["new"] = 1


def loses_a_buffer(operation: Any, program: Any) -> None:
    del program.buffers["y"]


def drops_an_operation(operation: Any, program: Any) -> None:
    object.__setattr__(program, "operations", program.operations[:1])


CHANGES = {
    empties_the_operation: "stores of Part second",
    adds_a_constant: "constants of Part second",
    loses_a_buffer: "buffers of Whole main",
    drops_an_operation: "operations of Whole main",
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("asked_before", [0, 20])
def test_an_estimate_that_changes_what_it_is_asked_about_is_named(change: Any, asked_before: int) -> None:
    program, late = Whole(), []

    @hookimpl
    def litz_estimate_runtime(operation: Any, program: Any) -> None:
        if late:  # it was asked about others before, and changed nothing
            change(operation, program)

    plugins = plugins_of(idle, litz_estimate_runtime, idle)
    for n in range(asked_before):
        plugins.estimate_runtime(Part(f"other{n}"), CPU, program)
    late.append(True)
    operation = program.operations[1]
    with pytest.raises(PluginHookError, match="plugin 'b' failed in litz_estimate_runtime") as caught:
        plugins.estimate_runtime(operation, CPU, program)
    assert f"it changed {CHANGES[change]} in place" in str(caught.value)
    assert (operation, program) == (Part("second"), Whole())  # what was changed is put back


def test_an_answer_that_came_with_a_change_does_not_count() -> None:
    def answers(operation: Any) -> Any:
        empties_the_operation(operation, None)
        return Estimate(1.0, 1.0, 1.0, "one")

    plugins = plugins_of(answers, on_plugin_error="disable")
    with pytest.warns(PluginWarning, match="stores of Part op in place"):
        assert plugins.estimate_runtime(Part("op"), CPU, Whole()) is None
    assert plugins.names() == ()


class Compares:
    """As a tensor: comparing two does not give a bool."""

    def __eq__(self, other: object) -> Any:
        raise ValueError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


def test_a_value_that_does_not_compare_is_taken_for_itself() -> None:
    program = Whole(buffers={"x": Compares()})  # type: ignore[dict-item]
    for deep in (True, False):
        assert take(program, deep=deep).change() == ""
    known = take(program, deep=True)
    program.buffers["x"] = Compares()  # type: ignore[assignment]
    assert known.change() == "buffers of Whole main"


def test_the_order_of_a_mapping_counts() -> None:
    program = Whole()
    known = take(program, deep=True)
    program.buffers["x"] = program.buffers.pop("x")
    assert known.change() == "buffers of Whole main"
    known.restore()
    assert list(program.buffers) == ["x", "y"]


def test_a_program_has_one_snapshot_for_all_its_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(roster, "take", lambda noun, *, deep: taken.append(noun) or unchanged.take(noun, deep=deep))
    plugins, program = plugins_of(idle, idle), Whole()
    for n in range(50):
        plugins.estimate_runtime(Part(f"op{n}"), CPU, program)
    assert sum(one is program for one in taken) == 1


def calls(plugins: Plugins, questions: int) -> int:
    """How many functions were called, C ones included, in so many questions."""
    program, operations = Whole(), [Part(f"op{n}") for n in range(questions)]
    ask = plugins.asker(SimpleNamespace())  # type: ignore[arg-type]
    assert ask is not None
    ask(Part("op"), CPU, program)
    profile = cProfile.Profile()
    profile.enable()
    for operation in operations:
        ask(operation, CPU, program)
    profile.disable()
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined,no-any-return]


def test_one_more_plugin_without_an_opinion_costs_few_calls() -> None:
    questions = 50
    one, three = calls(plugins_of(idle), questions), calls(plugins_of(idle, idle, idle), questions)
    assert (three - one) / 2 / questions < 22  # measured: 20, the plugin's own function among them
    assert one / questions < 60  # measured: 57


def test_a_plugin_is_looked_at_for_what_it_takes_alone() -> None:
    """An observer that takes no noun cannot change one, so none is looked at."""

    @hookimpl
    def litz_pass_finished(seconds: float) -> None:
        return None

    plugins = make_plugins(extra=[("a", SimpleNamespace(litz_pass_finished=litz_pass_finished))], entry_points=())
    (impl,) = plugins._implementations("litz_pass_finished")
    assert impl.handed == ()
    noun = Whole()
    plugins.pass_finished(None, noun, noun, 0.1)  # type: ignore[arg-type]
    assert not plugins._snapshots


def test_the_watchdog_sleeps_through_short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    dog, looks = Watchdog(), []
    monkeypatch.setattr(
        "litz_plugins.watchdog.time",
        SimpleNamespace(
            perf_counter=time.perf_counter, sleep=lambda seconds: (looks.append(seconds), time.sleep(seconds))
        ),
    )
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        running = Running(60.0)
        dog.begin(running)
        assert not dog.end(running)
    assert 1 <= len(looks) <= 12  # 20 a second, however many calls there are

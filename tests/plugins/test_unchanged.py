"""Nouns that plugins are handed: a change in place is found after the very call that made it, and looking for one costs
little, which is counted in function calls.
"""

from __future__ import annotations

import cProfile
import pstats
import time
import weakref
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
    assert (three - one) / 2 / questions < 11  # measured: 9, the plugin's own function among them
    assert one / questions < 43  # measured: 40


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


def test_the_watchdog_holds_no_call_that_has_ended() -> None:
    """It would hold what the plugin was handed, a whole Program, until the next call that takes long."""

    class Held(Running):  # with weak references
        pass

    dog, running = Watchdog(), Held(60.0)
    dog.begin(running)
    time.sleep(0.2)  # it looks at the call, and sleeps
    assert not dog.end(running)
    gone = weakref.ref(running)
    del running
    assert gone() is None


def replaces_a_nested_field(noun: Whole) -> None:
    object.__setattr__(noun.operations[1], "stores", (2,))


def deletes_a_field(noun: Whole) -> None:
    object.__delattr__(noun.operations[0], "constants")


def replaces_an_entry(noun: Whole) -> None:
    noun.buffers["y"] = Part("z")


def changes_an_entry(noun: Whole) -> None:
    object.__setattr__(noun.buffers["y"], "name", "z")


def adds_to_a_nested_dict(noun: Whole) -> None:
    noun.operations[0].constants["new"] = 1


def renames_a_field(noun: Whole) -> None:
    """The same values lie in the record, under another name."""
    known = vars(noun.operations[1])
    known["renamed"] = known.pop("constants")


IN_A_WHOLE = {
    replaces_a_nested_field: "stores of Part second",
    deletes_a_field: "constants of Part first",
    replaces_an_entry: "buffers of Whole main",
    changes_an_entry: "name of Part z",
    adds_to_a_nested_dict: "constants of Part first",
    renames_a_field: "constants of Part second",
}


@pytest.mark.parametrize("change", IN_A_WHOLE)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_observer_that_changed_a_noun_is_named(change: Any, place: int) -> None:
    """Three observers are told within one guarded call; the others must not be blamed."""
    told: list[int] = []

    def observer(number: int) -> Any:
        def litz_pass_finished(after: Any) -> None:
            told.append(number)
            if number == place:
                change(after)

        return SimpleNamespace(litz_pass_finished=hookimpl(litz_pass_finished))

    names = ("a", "b", "c")
    plugins = make_plugins(extra=[(name, observer(n)) for n, name in enumerate(names)], entry_points=())
    noun = Whole()
    with pytest.raises(PluginHookError, match=f"plugin '{names[place]}' failed in litz_pass_finished") as caught:
        plugins.pass_finished(None, noun, noun, 0.1)  # type: ignore[arg-type]
    assert f"it changed {IN_A_WHOLE[change]} in place" in str(caught.value)
    assert told == list(range(place + 1))  # nobody was shown what the plugin had made of the noun
    assert noun == Whole() and not hasattr(noun.operations[1], "renamed")


def test_observers_after_one_that_failed_are_told() -> None:
    told: list[str] = []

    def observer(name: str) -> Any:
        def litz_pass_finished(after: Any) -> None:
            told.append(name)
            if name == "b":
                replaces_a_nested_field(after)

        return SimpleNamespace(litz_pass_finished=hookimpl(litz_pass_finished))

    extra = [(name, observer(name)) for name in "abc"]
    plugins = make_plugins(extra=extra, entry_points=(), on_plugin_error="disable")
    noun = Whole()
    with pytest.warns(PluginWarning, match="stores of Part second in place"):
        plugins.pass_finished(None, noun, noun, 0.1)  # type: ignore[arg-type]
    assert told == ["a", "b", "c"] and noun == Whole() and plugins.names() == ("a", "c")


def test_a_question_keeps_no_operation() -> None:
    """An operation that is asked about is another in the next question: only the program's snapshot is kept."""
    plugins, program = plugins_of(idle), Whole()
    for n in range(20):
        plugins.estimate_runtime(Part(f"op{n}"), CPU, program)
    assert [noun for noun, _ in plugins._snapshots.values()] == [program]


class Editable:
    """As a Graph: not frozen, and says itself what it was."""

    taken = 0

    def __init__(self) -> None:
        self.nodes = ["a", "b"]

    def snapshot(self) -> Any:
        Editable.taken += 1
        nodes, known = self.nodes, list(self.nodes)

        def restore() -> None:
            nodes[:] = known

        return SimpleNamespace(change=lambda: "" if nodes == known else "the nodes", restore=restore)


def test_a_noun_that_its_owner_may_edit_has_a_new_snapshot_only_where_it_was_edited() -> None:
    edits: list[bool] = []

    @hookimpl
    def litz_compile_started(graph: Any) -> None:
        if edits:
            graph.nodes.append("plugin's")

    plugins = make_plugins(extra=[("a", SimpleNamespace(litz_compile_started=litz_compile_started))], entry_points=())
    graph, options, before = Editable(), SimpleNamespace(), Editable.taken
    plugins.compile_started(graph, options)  # type: ignore[arg-type]
    plugins._doubt_changeable()
    plugins.compile_started(graph, options)  # type: ignore[arg-type]
    assert Editable.taken == before + 1
    graph.nodes.append("owner's")
    plugins._doubt_changeable()
    plugins.compile_started(graph, options)  # type: ignore[arg-type]
    assert Editable.taken == before + 2
    edits.append(True)
    with pytest.raises(PluginHookError, match="it changed the nodes in place"):
        plugins.compile_started(graph, options)  # type: ignore[arg-type]
    assert graph.nodes == ["a", "b", "owner's"]


@pytest.mark.parametrize("slow", [0, 1])
def test_each_plugin_that_is_asked_in_turn_has_its_own_limit(slow: int) -> None:
    """The first takes most of its limit, the second as much: neither has taken too long. One that has is named."""
    waits = [0.35, 0.35]
    if slow:
        waits[1] = 5.0

    def waiting(n: int) -> Any:
        def wait(operation: Any) -> None:
            until = time.monotonic() + waits[n]
            while time.monotonic() < until:
                time.sleep(0.01)

        return wait

    plugins = plugins_of(waiting(0), waiting(1), idle, seconds=0.6)
    if slow:
        with pytest.raises(PluginHookError, match=r"plugin 'b' failed in litz_estimate_runtime: .*more than 0\.6 s"):
            plugins.estimate_runtime(Part("op"), CPU, Whole())
    else:
        assert plugins.estimate_runtime(Part("op"), CPU, Whole()) is None
        assert [(row.plugin, row.calls) for row in plugins.ledger.take()] == [("a", 1), ("b", 1), ("c", 1)]

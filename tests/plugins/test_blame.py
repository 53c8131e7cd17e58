"""Whatever a plugin does wrong names the plugin, and can be gone without: at loading, and in every call."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
import warnings
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from litz_plugins import (
    DuplicateRegistrationError,
    Estimate,
    LayoutPlan,
    LitzError,
    OptionSpec,
    Pass,
    PluginHookError,
    PluginWarning,
    Target,
    TargetSpec,
    TemplateSpec,
    UnknownPluginError,
    hookimpl,
    make_plugins,
)
from litz_plugins.blame import Called, LeftOut
from litz_plugins.loading import Source
from litz_plugins.manager import Plugins
from litz_plugins.testing import PluginCheckError, check_plugin


def plugin(**functions):
    """A plugin object from functions by hook name (without "litz_")."""
    return SimpleNamespace(**{f"litz_{name}": hookimpl(function) for name, function in functions.items()})


def load(obj, *, disable=False, **arguments):
    mode = "disable" if disable else "raise"
    return make_plugins(extra=[("mine", obj)], entry_points=(), on_plugin_error=mode, **arguments)


@dataclass(frozen=True)
class Part:
    name: str
    stores: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Noun:
    """A noun as litz has them, with records in a tuple and in a mapping."""

    name: str
    parts: tuple[Part, ...] = (Part("first"), Part("second"))
    buffers: dict[str, Part] = field(default_factory=lambda: {"x": Part("x")})


class OpOverload:
    """What an op is taken by, without torch: the name of its class."""

    _schema = SimpleNamespace(arguments=[SimpleNamespace(name="self"), SimpleNamespace(name="weight")])

    def __str__(self):
        return "aten.relu.default"


class OpOverloadPacket:
    def overloads(self):
        return ["default", "out"]

    def __str__(self):
        return "aten.relu"


def registering(function, **order):
    return plugin(register_passes=lambda options: [Pass("own", "program", function, **order)])


# ----------------------------------------------------------------------------------------------------- calls that fail


def empties(noun, context):
    object.__setattr__(noun, "parts", ())
    return noun


def empties_and_raises(noun, context):
    empties(noun, context)
    raise RuntimeError("oh no")


def loses_a_buffer(noun, context):
    noun.buffers.clear()
    return Noun("other")


def changes_a_part(noun, context):
    object.__setattr__(noun.parts[1], "stores", ())
    return noun


def exits(noun, context):
    sys.exit(3)


def hangs(noun, context):
    while True:
        with contextlib.suppress(Exception):  # what hangs may catch what it can
            time.sleep(0.01)


WRONG = {
    empties: "parts of Noun graph in place",
    empties_and_raises: "RuntimeError: oh no",
    loses_a_buffer: "buffers of Noun graph in place",
    changes_a_part: "stores of Part second in place",
    exits: "SystemExit: 3",
    hangs: "more than 0.2 s",
    (lambda noun, context: Part("p")): "returned a Part; a pass of this stage returns a Noun",
    (lambda noun, context: None): "returned None",
    (lambda noun: noun): "TypeError",
}


@pytest.mark.parametrize("run", WRONG)
def test_a_pass_that_goes_wrong_is_named_and_can_be_gone_without(run):
    noun = Noun("graph")
    before = (noun.parts, dict(noun.buffers), noun.parts[1].stores)
    with pytest.raises(PluginHookError, match=r"plugin 'mine' failed in pass 'own' \(program stage\)") as caught:
        load(registering(run), seconds=0.2).run_passes("program", noun, {})
    assert WRONG[run] in str(caught.value)
    plugins = load(registering(run), disable=True, seconds=0.2)
    with pytest.warns(PluginWarning) as warned:
        assert plugins.run_passes("program", noun, {}) is noun
    assert len(warned) == 1 and plugins.failures == 1
    assert (noun.parts, noun.buffers, noun.parts[1].stores) == before
    assert plugins.listing()[0].status == "failed"


def test_a_call_that_ends_in_time_is_left_alone():
    plugins = load(registering(lambda noun, context: noun), seconds=0.1)
    for _ in range(3):
        plugins.run_passes("program", Noun("graph"), {})
    time.sleep(0.2)  # nothing is raised in who comes after


def test_what_a_plugin_asks_of_another_is_the_others_failure():
    def asks(noun, context):
        context.estimate("op", Target("cpu"), noun)
        return noun

    other = plugin(estimate_runtime=lambda: "soon")
    plugins = make_plugins(extra=[("asks", registering(asks)), ("other", other)], entry_points=())
    with pytest.raises(PluginHookError, match="plugin 'other' failed in litz_estimate_runtime: TypeError"):
        plugins.run_passes("program", Noun("graph"), {})


def test_dynamo_may_start_over_in_a_plugins_call():
    class RestartAnalysis(Exception):
        pass

    def restarts(noun, context):
        raise RestartAnalysis

    with pytest.raises(RestartAnalysis):
        load(registering(restarts)).run_passes("program", Noun("graph"), {})


def test_what_is_called_later_is_blamed_too():
    op = OpOverload()

    def raises(*arguments):
        raise KeyError("no")

    def whole(obj):
        return plugin(
            register_lowerings=lambda: {op: raises},
            register_templates=lambda: [TemplateSpec("tiles", ("mm",), obj)],
            register_targets=lambda: [TargetSpec("xpu", raises, object())],
        )

    plugins = load(whole(lambda operation, context: ["no choice"]))
    spec, context = plugins.templates({})[0], SimpleNamespace(program=None)
    for call, what in (
        (plugins.lowerings()[op], "lowering of aten.relu.default: KeyError: 'no'"),
        (lambda: spec.make_choices("mm0", context), "make_choices of template 'tiles': TypeError: returned str"),
        (lambda: plugins.targets({})["xpu"].describe("xpu", {}), "describe of target 'xpu'"),
    ):
        with pytest.raises(PluginHookError, match="plugin 'mine' failed in") as caught:
            call()
        assert what in str(caught.value)
    left = load(whole(raises), disable=True)
    with pytest.raises(LeftOut), pytest.warns(PluginWarning):
        left.lowerings()[op]()
    assert left.lowerings() == {} and left.templates({}) == ()


def test_not_implemented_leaves_an_op_to_the_library():
    def declines(ctx):
        raise NotImplementedError("too large")

    op = OpOverload()
    with pytest.raises(NotImplementedError):
        load(plugin(register_lowerings=lambda: {op: declines})).lowerings()[op](None)


def test_a_plugin_that_failed_is_not_tried_again_in_this_process():
    calls = []

    def fails(options):
        calls.append(1)
        raise RuntimeError("no")

    obj = plugin(register_passes=fails)
    with pytest.warns(PluginWarning):
        first = load(obj, disable=True)
        second = load(obj, disable=True)  # made before it failed
        first.passes({})
    second.leave_out_failed()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(obj, disable=True).passes({}) == second.passes({}) == ()
    assert calls == [1] and second.failures == 1
    row = load(obj, disable=True).listing({})[0]
    assert row.status == "failed" and "RuntimeError: no" in row.error
    with pytest.raises(PluginHookError):  # who wants errors gets them
        load(obj).passes({})


def test_who_watches_is_told_of_each_call():
    seen: list[Called] = []
    plugins = load(plugin(estimate_runtime=lambda: Estimate(1.0, 1.0, 1.0, "one"), compile_started=lambda: 1 / 0))
    plugins.watchers.append(seen.append)
    plugins.estimate_runtime("op", Target("cpu"), None)
    with pytest.raises(PluginHookError):
        plugins.compile_started(None, {})
    assert [(call.plugin, call.what, call.failed) for call in seen] == [
        ("mine", "litz_estimate_runtime", False),
        ("mine", "litz_compile_started", True),
    ]
    assert seen[0].result.us == 1.0 and seen[0].seconds > 0


# ------------------------------------------------------------------------------------------------------- clashes of two


def test_of_two_that_clash_the_later_is_left_out():
    op = OpOverload()
    specs = [("a", plugin(register_lowerings=lambda: {op: min})), ("b", plugin(register_lowerings=lambda: {op: max}))]
    plugins = make_plugins(extra=specs, entry_points=(), on_plugin_error="disable")
    with pytest.warns(PluginWarning, match="'a' and 'b' both register the lowering of aten.relu.default"):
        assert plugins.lowerings()[op].function is min
    assert plugins.names() == ("a",)

    def ring(name, after):
        item = Pass(name, "graph", lambda noun, context: noun, after=(after,))
        return plugin(register_passes=lambda options: [item])

    extra = [("a", ring("one", "two")), ("b", ring("two", "one")), ("c", ring("three", "two?"))]
    plugins = make_plugins(extra=extra, entry_points=(), on_plugin_error="disable")
    with pytest.warns(PluginWarning):
        assert [item.name for item in plugins.passes({})] == ["three"]  # "one" names a pass that is gone by then


def test_who_is_to_mend_what(monkeypatch):
    """The caller what the caller passed in; a plugin's own error says what its user can do; else it is the authors'."""

    class Misuse(LitzError):
        pass

    def misused(graph):
        raise Misuse("no such tune", todo="name another tune")

    def broken(graph):
        raise ValueError("oh no")

    def todo(obj, **source):
        plugins = Plugins([Source("mine", obj, "external", **source)])
        with pytest.raises(PluginHookError) as caught:
            plugins.compile_started(None, {})
        return caught.value.repair

    own = SimpleNamespace(litz_compile_started=hookimpl(misused), __module__=__name__)
    assert todo(own, dist="litz-mine") == todo(own) == "name another tune"
    failing = plugin(compile_started=broken)
    assert todo(failing) == "mend the plugin where it is passed in"
    assert todo(failing, dist="litz-mine") == "report it to the plugin's authors"
    # Core's error out of a plugin's call says what is wrong with the plugin's work, and nothing that its user could do.
    monkeypatch.setattr(Misuse, "__module__", "litz.errors")
    assert todo(own, dist="litz-mine") == "report it to the plugin's authors"


def test_what_one_plugin_registers_twice_is_its_own_fault():
    twice = load(plugin(register_options=lambda: [OptionSpec("level", int, 1, "a level")] * 2))
    with pytest.raises(DuplicateRegistrationError, match="to do: register it once"):
        twice.options()


# ---------------------------------------------------------------------------------------------------- names and keys


def a_pass(stage="program", **order):
    return plugin(register_passes=lambda options: [Pass("own", stage, lambda noun, context: noun, **order)])


def options(*names):
    return plugin(register_options=lambda: [OptionSpec(name, int, 1, "a level") for name in names])


RELU = OpOverload()
NAMES = {
    "a packet as a lowering's key": (
        plugin(register_lowerings=lambda: {OpOverloadPacket(): min}),
        "use aten.relu.default or aten.relu.out",
    ),
    "a packet as a decomposition's key": (
        plugin(register_decompositions=lambda: {OpOverloadPacket(): None}),
        "use aten.relu.default or aten.relu.out",
    ),
    "a text as a key": (plugin(register_lowerings=lambda: {"aten.relu": min}), "key 'aten.relu' is no op"),
    "no function": (plugin(register_lowerings=lambda: {RELU: None}), "NoneType, which cannot be called"),
    "a kind": (
        plugin(register_templates=lambda: [TemplateSpec("t", ("admm",), lambda operation, context: [])]),
        "did you mean 'addmm'?",
    ),
    "before": (a_pass(before=("inline_pointwize",)), "did you mean 'inline_pointwise'?"),
    "after": (a_pass(after=("split_reduction",)), "did you mean 'split_reductions'?"),
    "nothing near": (a_pass(after=("zzz",)), "write 'zzz?'"),
    "a pass of another stage": (a_pass(after=("eliminate_dead_code",)), "a pass of the graph stage"),
    "a stage": (a_pass("programme"), "stage is one of traced, joint, partitioned, graph, program, schedule"),
    "a layout word": (plugin(register_layout_needs=lambda: {RELU: "contigous"}), "did you mean 'contiguous'?"),
    "a layout row": (plugin(register_layout_needs=lambda: {RELU: {"weigth": "any"}}), "did you mean 'weight'?"),
    "a command of core's": (plugin(register_commands=lambda: {"cache": print}), "'cache' is core's"),
    "no command": (plugin(register_commands=lambda: {"dance": print}), "a click.Command is expected"),
    "options of one variable": (options("b.c", "b_c"), "is set by LITZ_MINE_B_C, and so is the option 'mine.b.c'"),
}


@pytest.mark.parametrize("case", NAMES)
def test_a_wrong_name_is_found_by_check_plugin(case):
    obj, text = NAMES[case]
    with pytest.raises((PluginCheckError, PluginHookError)) as caught:
        check_plugin(obj, name="mine")
    assert text in str(caught.value) and "'mine'" in str(caught.value)


def test_a_variable_of_cores():
    with pytest.raises(PluginHookError, match=r"'cache\.dir' is set by LITZ_CACHE_DIR, and so is an option of core's"):
        check_plugin(options("dir"), name="cache")


def test_two_plugins_that_share_a_variable():
    extra = [("a", options("b.c")), ("a.b", options("c"))]
    with pytest.raises(DuplicateRegistrationError, match=r"'a' and 'a\.b' both register the variable LITZ_A_B_C"):
        make_plugins(extra=extra, entry_points=()).options()
    with pytest.warns(PluginWarning, match="to do: leave one of them out"):
        found = make_plugins(extra=extra, entry_points=(), on_plugin_error="disable").options()
    assert list(found) == ["a"]


def test_a_plugin_to_leave_out_that_is_not_there():
    with pytest.raises(UnknownPluginError, match=r"no plugin 'autotoon'.*\n.*\n.*did you mean 'autotune'"):
        make_plugins(entry_points=(), disable=["autotoon"])
    assert make_plugins(entry_points=(), disable=["autotune", "triton"]).names() == ()


def test_a_stage_that_is_none():
    with pytest.raises(ValueError, match="no stage 'progam'"):
        load(plugin()).run_passes("progam", Noun("graph"), {})


def test_a_pass_that_need_not_be_there():
    passes = load(a_pass(after=("of_another?", "inline_pointwise?"))).passes({})
    assert [item.name for item in passes] == ["own"]


def test_a_good_plugin_is_asked_once():
    asked = []
    obj = plugin(register_passes=lambda options: asked.append(1), select_layout=lambda graph: LayoutPlan({}))
    plugins, given = load(obj), {}
    for _ in range(3):
        plugins.passes(given)
    assert asked == [1] and plugins.select_layout(Noun("graph"), given)[0] == "mine"


def test_an_error_says_where_in_the_plugin_it_was_raised(tmp_path, monkeypatch):
    """The last line in the plugin's own package, though a library raised below; none where litz refused a result."""
    (tmp_path / "litz_soft").mkdir()
    (tmp_path / "litz_soft" / "__init__.py").write_text("")
    (tmp_path / "litz_soft" / "inner.py").write_text("import json\ndef look():\n    return json.loads('{')\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("litz_soft")
    inner = importlib.import_module("litz_soft.inner")
    module.litz_register_passes = hookimpl(lambda: inner.look(), specname="litz_register_passes")
    with pytest.raises(PluginHookError) as caught:
        load(module).passes({})
    assert caught.value.raised == "litz_soft/inner.py:3, in look"
    assert "raised in litz_soft/inner.py:3, in look" in caught.value.where
    with pytest.raises(PluginHookError) as caught:
        load(plugin(register_passes=lambda: 3)).passes({})
    assert caught.value.raised == ""


def test_a_call_that_was_ended_leaves_no_request_behind() -> None:
    """CPython 3.11 never begins a traced function while a request to raise is open and has nothing to raise."""
    import sys
    import threading
    import time

    from litz_plugins.watchdog import Running, TookTooLong, Watchdog

    def ended() -> None:
        dog, running = Watchdog(), Running(0.05)
        dog.begin(running)
        try:
            while True:
                time.sleep(0.01)
        except TookTooLong:
            assert dog.end(running)
        sys.settrace(lambda *given: None)
        (lambda: None)()
        sys.settrace(None)

    thread = threading.Thread(target=ended, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()

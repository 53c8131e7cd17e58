"""The manager: loading, checking, combining, and naming who is to blame."""

import importlib.metadata
import warnings
from types import ModuleType, SimpleNamespace

import pytest
import torch

from litz_plugins import (
    Choice,
    ChoiceContext,
    Codegen,
    DuplicatePluginError,
    DuplicateRegistrationError,
    EntryFacts,
    Estimate,
    HookSignatureError,
    LayoutPlan,
    LitzError,
    OptionSpec,
    Pass,
    PluginHookError,
    PluginLoadError,
    PluginWarning,
    Target,
    TargetSpec,
    TemplateSpec,
    UnknownHookError,
    hookimpl,
    make_plugins,
)
from support.third_party import write_dist

CPU = Target("cpu")


class OpOverload:
    """What an op is taken by, without torch: the name of its class."""

    def __init__(self, name):
        self.name = name

    def __str__(self):
        return self.name


ADD, MUL = OpOverload("aten.add.Tensor"), OpOverload("aten.mul.Tensor")


def plugin(**functions):
    """A plugin object from functions by hook name (without "litz_")."""
    return SimpleNamespace(**{f"litz_{name}": hookimpl(function) for name, function in functions.items()})


def load(*extra, builtins=(), **arguments):
    """Plugins named a, b, ... without anything installed."""
    named = [(chr(ord("a") + i), obj) for i, obj in enumerate(extra)]
    return make_plugins(builtins, extra=named, entry_points=(), **arguments)


def raises(*_):
    raise RuntimeError("out of cheese")


def estimate(us, why="test"):
    return Estimate(us, us, us, why)


# ------------------------------------------------------------------------------------------------------------- loading


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on sys.path to install dists into."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def installed(site):
    """Entry points of the dists in ``site`` only: what else is installed here is none of these tests' business."""
    return [e for d in importlib.metadata.distributions(path=[str(site)]) for e in d.entry_points if e.group == "litz"]


GOOD = """
from litz_plugins import OptionSpec, hookimpl

@hookimpl
def litz_register_options():
    return [OptionSpec("level", int, 1, "a level")]
"""


def test_entry_points_load_in_order_of_names(site):
    write_dist(site, "litz-z", {"alpha": "mod_z"}, {"mod_z": GOOD})
    write_dist(site, "litz-a", {"zeta": "mod_a"}, {"mod_a": GOOD})
    plugins = make_plugins(entry_points=installed(site))
    assert plugins.names() == ("alpha", "zeta")
    row = plugins.listing()[0]
    assert (row.status, row.dist, row.version) == ("external", "litz-z", "1.0")
    assert row.hooks == ("litz_register_options",)
    assert row.options == ("alpha.level",)


def test_two_dists_of_one_name(site):
    write_dist(site, "litz-one", {"twin": "twin_1"}, {"twin_1": GOOD})
    write_dist(site, "litz-two", {"twin": "twin_2"}, {"twin_2": GOOD}, version="2.0")
    with pytest.raises(DuplicatePluginError) as error:
        make_plugins(entry_points=installed(site))
    assert "litz-one 1.0" in str(error.value) and "litz-two 2.0" in str(error.value)
    assert "LITZ_DISABLE_PLUGINS=twin" in str(error.value)
    assert make_plugins(entry_points=installed(site), disable={"twin"}).names() == ()


def test_one_dist_found_twice_is_one_plugin(site):
    write_dist(site, "litz-one", {"once": "once_1"}, {"once_1": GOOD})
    assert make_plugins(entry_points=[*installed(site), *installed(site)]).names() == ("once",)


def test_a_dist_with_the_name_of_a_builtin(site):
    write_dist(site, "litz-mine", {"cpp": "cpp_1"}, {"cpp_1": GOOD})
    with pytest.raises(DuplicatePluginError, match="built into litz and from litz-mine"):
        make_plugins([("cpp", plugin())], entry_points=installed(site))


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_failing_import(site, source, cause):
    name = f"broken_{abs(hash(source))}"
    write_dist(site, "litz-broken", {"broken": name}, {name: source})
    with pytest.raises(PluginLoadError) as error:
        make_plugins(entry_points=installed(site))
    assert cause in str(error.value)
    assert "litz-broken 1.0" in str(error.value)
    assert "LITZ_DISABLE_PLUGINS=broken" in str(error.value)
    assert error.value.__cause__ is not None


def test_a_failing_import_can_be_gone_without(site):
    write_dist(site, "litz-broken", {"broken": "broken_x"}, {"broken_x": "import no_such_module"})
    write_dist(site, "litz-fine", {"fine": "fine_x"}, {"fine_x": GOOD})
    with pytest.warns(PluginWarning, match="broken"):
        plugins = make_plugins(entry_points=installed(site), on_plugin_error="disable")
    assert plugins.names() == ("fine",)
    assert [row.status for row in plugins.listing()] == ["failed", "external"]
    assert "no_such_module" in plugins.listing()[0].error
    assert isinstance(plugins.errors()[0], PluginLoadError)


def test_a_blocked_plugin_is_not_even_imported(site):
    write_dist(site, "litz-broken", {"broken": "broken_y"}, {"broken_y": "raise RuntimeError('imported')"})
    plugins = make_plugins(entry_points=installed(site), disable=["broken", "layout"])
    assert plugins.names() == ()
    assert [(row.name, row.status, row.dist) for row in plugins.listing()] == [
        ("broken", "blocked", "litz-broken"),
        ("layout", "blocked", ""),
    ]


def test_builtins_can_be_blocked():
    plugins = make_plugins([("core", plugin(register_options=raises))], entry_points=(), disable=["core"])
    assert plugins.option_specs() == ()


def test_a_class_is_no_plugin():
    with pytest.raises(PluginLoadError, match="module or an instance"):
        load(Codegen)


def test_one_object_under_two_names():
    one = plugin()
    with pytest.raises(PluginLoadError, match="plugin 'b' could not be loaded: its object is that of plugin 'a'"):
        load(one, one)


# ------------------------------------------------------------------------------------------------------------ checking


def test_a_misspelt_hook_suggests_the_right_one():
    with pytest.raises(UnknownHookError) as error:
        load(plugin(estimate_runtme=lambda operation: None))
    assert error.value.suggestion == "litz_estimate_runtime"
    assert "did you mean 'litz_estimate_runtime'" in str(error.value)


def test_a_module_that_has_changed_is_checked_again():
    module = ModuleType("changing")
    module.litz_register_lowerings = hookimpl(lambda: {ADD: len})
    assert load(module).lowerings().keys() == load(module).lowerings().keys() == {ADD}
    module.litz_register_lowerings = hookimpl(lambda: {MUL: len})
    assert load(module).lowerings().keys() == {MUL}
    module.litz_register_lowerngs = hookimpl(lambda: {})
    for _ in range(2):
        with pytest.raises(UnknownHookError):
            load(module)
    del module.litz_register_lowerngs, module.litz_register_lowerings
    assert not load(module).lowerings()


def test_an_optional_hook_may_be_unknown():
    later = hookimpl(optionalhook=True)(lambda: None)
    assert load(SimpleNamespace(litz_from_a_later_version=later)).names() == ("a",)


def test_an_unknown_parameter():
    with pytest.raises(HookSignatureError, match="did you mean 'options'") as error:
        load(plugin(register_passes=lambda option: []))
    assert "litz_register_passes(options)" in str(error.value)


def test_a_default_value():
    with pytest.raises(HookSignatureError, match="default value"):
        load(plugin(register_passes=lambda options=None: []))


def test_star_arguments():
    with pytest.raises(HookSignatureError, match="passed by name"):
        load(plugin(register_passes=lambda **options: []))


def test_a_forgotten_marker():
    with pytest.raises(HookSignatureError, match="@hookimpl"):
        load(SimpleNamespace(litz_register_passes=lambda options: []))


def test_importing_the_specs_is_no_hook():
    from litz_plugins import hookspecs

    module = SimpleNamespace(litz_register_passes=hookspecs.litz_register_passes)
    assert load(module).listing()[0].hooks == ()


def test_wrappers_are_refused():
    import pluggy

    @pluggy.HookimplMarker("litz")(wrapper=True)
    def wrapper(options):
        return (yield)

    with pytest.raises(HookSignatureError, match="wrapper"):
        load(SimpleNamespace(litz_register_passes=wrapper))


def test_parameters_may_be_left_out():
    plugins = load(plugin(estimate_runtime=lambda target: estimate(3.0, target.type)))
    assert plugins.estimate_runtime("op", CPU, None).why == "cpu"


def test_a_bad_plugin_is_dropped_in_disable_mode():
    with pytest.warns(PluginWarning, match="litz_nonsense"):
        plugins = load(plugin(nonsense=lambda: None), plugin(), on_plugin_error="disable")
    assert plugins.names() == ("b",)


# ----------------------------------------------------------------------------------------------------------- combining


def test_options_are_namespaced():
    spec = OptionSpec("level", int, 1, "a level")
    plugins = load(plugin(register_options=lambda: [spec]), plugin(register_options=lambda: [spec]))
    assert [s.name for s in plugins.option_specs()] == ["a.level", "b.level"]


def test_one_option_twice_in_one_plugin():
    spec = OptionSpec("level", int, 1, "a level")
    with pytest.raises(DuplicateRegistrationError, match=r"'a' registers the option a\.level twice"):
        load(plugin(register_options=lambda: [spec, spec])).options()


@pytest.mark.parametrize("hook", ["decompositions", "lowerings"])
def test_tables_merge_by_op(hook):
    mine = plugin(**{f"register_{hook}": lambda: {ADD: min}})
    other = plugin(**{f"register_{hook}": lambda: {MUL: max}})
    found = getattr(load(mine, other), hook)()
    assert {op: (rule.plugin, rule.function) for op, rule in found.items()} == {ADD: ("a", min), MUL: ("b", max)}


@pytest.mark.parametrize("hook", ["decompositions", "lowerings"])
def test_two_plugins_for_one_op(hook):
    two = [plugin(**{f"register_{hook}": lambda: {ADD: min}}) for _ in range(2)]
    with pytest.raises(DuplicateRegistrationError, match=r"'a' and 'b' both .* aten\.add"):
        getattr(load(*two), hook)()


def test_a_plugin_replaces_a_builtin():
    mine = plugin(register_lowerings=lambda: {ADD: min})
    core = plugin(register_lowerings=lambda: {ADD: max, MUL: max})
    found = load(mine, builtins=[("core", core)]).lowerings()
    assert found[ADD].function is min and found[MUL] is max


def target(type_: str) -> TargetSpec:
    return TargetSpec(type_, lambda device, options: Target(type_), object())  # type: ignore[arg-type]


def test_two_targets_for_one_device():
    two = [plugin(register_targets=lambda options: [target("xpu")]) for _ in range(2)]
    with pytest.raises(DuplicateRegistrationError, match="target for device 'xpu'"):
        load(*two).targets({})


def test_a_plugins_target_goes_before_cores():
    core, mine = target("cpu"), target("cpu")
    own = [("core", plugin(register_targets=lambda options: [core, target("cuda")]))]
    plugins = make_plugins(own, extra=[("a", plugin(register_targets=lambda options: [mine]))], entry_points=())
    found = plugins.targets({})
    assert found["cpu"].describe.function is mine.describe
    assert {type_: spec.plugin for type_, spec in found.items()} == {"cpu": "a", "cuda": "core"}


def test_templates_know_their_plugin():
    spec = TemplateSpec("tiles", ("mm",), lambda operation, context: [])
    plugins = load(plugin(register_templates=lambda options: [spec]))
    assert [(t.name, t.plugin) for t in plugins.templates({})] == [("tiles", "a")]
    two = load(plugin(register_templates=lambda options: [spec]), plugin(register_templates=lambda options: [spec]))
    with pytest.raises(DuplicateRegistrationError, match="template tiles"):
        two.templates({})


def test_templates_come_in_the_order_in_which_plugins_are_asked():
    """Core's first, as all that is registered; then who asks to be first, and the others by name."""

    def of(name, **order):
        spec = TemplateSpec(name, ("mm",), lambda operation, context: [])
        return SimpleNamespace(litz_register_templates=hookimpl(**order)(lambda: [spec]))

    others = (of("late", trylast=True), of("middle"), of("early", tryfirst=True))
    plugins = load(*others, builtins=[("core", of("core"))])
    assert [spec.name for spec in plugins.templates({})] == ["core", "early", "middle", "late"]


def test_passes_are_sorted_core_first_and_know_their_plugin():
    def register(name, **order):
        return plugin(register_passes=lambda options: [Pass(name, "graph", lambda noun, context: noun, **order)])

    core = register("fold")
    plugins = load(register("early", before=("fold",)), register("late"), builtins=[("core", core)])
    assert [(p.name, p.plugin) for p in plugins.passes({})] == [("early", "a"), ("fold", "core"), ("late", "b")]
    assert plugins.passes({}, "program") == ()


def test_first_result_plugins_before_builtins():
    core = plugin(estimate_runtime=lambda: estimate(9.0))
    quiet, loud = plugin(estimate_runtime=lambda: None), plugin(estimate_runtime=lambda: estimate(1.0))
    assert load(quiet, loud, builtins=[("core", core)]).estimate_runtime_from("op", CPU, None)[0] == "b"
    assert load(quiet, builtins=[("core", core)]).estimate_runtime("op", CPU, None).us == 9.0
    assert load(quiet).estimate_runtime("op", CPU, None) is None


def test_first_result_in_order_of_names_and_tryfirst():
    one, two = plugin(estimate_runtime=lambda: estimate(1.0)), plugin(estimate_runtime=lambda: estimate(2.0))
    assert load(one, two).estimate_runtime("op", CPU, None).us == 1.0
    eager = SimpleNamespace(litz_estimate_runtime=hookimpl(tryfirst=True)(lambda: estimate(3.0)))
    assert load(one, eager).estimate_runtime("op", CPU, None).us == 3.0


def test_builtins_are_asked_in_the_order_given():
    first, second = plugin(estimate_runtime=lambda: estimate(1.0)), plugin(estimate_runtime=lambda: estimate(2.0))
    assert load(builtins=[("z", first), ("y", second)]).estimate_runtime("op", CPU, None).us == 1.0


def test_select_choice_must_be_one_of_them():
    choices = [Choice("aten.mm", "extern"), Choice("tiles", "template")]
    context = ChoiceContext("mm", CPU, {})
    assert load(plugin(select_choice=lambda choices: choices[1])).select_choice(choices, context) == ("a", choices[1])
    with pytest.raises(PluginHookError, match="none of the choices"):
        load(plugin(select_choice=lambda: Choice("tiles", "template"))).select_choice(choices, context)


def test_select_layout():
    plan = LayoutPlan({"conv": (0, 2, 3, 1)})
    assert load(plugin(), plugin(select_layout=lambda graph: plan)).select_layout("graph", {}) == ("b", plan)
    assert load(plugin()).select_layout("graph", {}) is None


def test_observers_all_hear():
    heard = []
    plugins = load(
        plugin(compile_started=lambda graph: heard.append(("a", graph))),
        plugin(compile_started=lambda graph, options: heard.append(("b", graph))),
        plugin(compile_finished=lambda report: heard.append(report)),  # as before hooks were handed options
        plugin(compile_finished=lambda report, options: heard.append((report, options))),
    )
    plugins.compile_started("graph", {})
    plugins.compile_finished("report", {"debug": True})
    assert heard == [("a", "graph"), ("b", "graph"), "report", ("report", {"debug": True})]


# --------------------------------------------------------------------------------------------------- when a hook raises

CALLS = {
    "register_options": lambda p: p.options(),
    "register_decompositions": lambda p: p.decompositions(),
    "register_lowerings": lambda p: p.lowerings(),
    "register_passes": lambda p: p.passes({}),
    "register_templates": lambda p: p.templates({}),
    "register_targets": lambda p: p.targets({}),
    "register_commands": lambda p: p.commands(),
    "estimate_runtime": lambda p: p.estimate_runtime("op", CPU, None),
    "select_choice": lambda p: p.select_choice([], None),
    "register_layout_needs": lambda p: p.layout_needs(),
    "select_layout": lambda p: p.select_layout(None, {}),
    "wrap_entry": lambda p: p.wrap_entry(list, EntryFacts(), {}),
    "narrow": lambda p: p.lowerings(options={}),
    "watch_graph": lambda p: p.watch_graph("graph0", {}),
    "compile_started": lambda p: p.compile_started(None, {}),
    "pass_finished": lambda p: p.pass_finished(None, 1, 2, 0.1),
    "compile_failed": lambda p: p.compile_failed(None, KeyError(), {}),
    "compile_finished": lambda p: p.compile_finished(None, {}),
}


def doubled(function):
    return lambda x: 2 * function(x)


def test_plugins_narrow_what_is_registered_one_after_the_other():
    options, seen = {}, []

    def without_b(kind, registered, options):
        seen.append(kind)
        return {key: value for key, value in registered.items() if str(key) != "aten.relu.default"}

    def twice(kind, registered, options):
        return {key: doubled(value) for key, value in registered.items()} if kind == "lowering" else None

    relu, exp = torch.ops.aten.relu.default, torch.ops.aten.exp.default
    registers = plugin(register_lowerings=lambda: {relu: lambda x: -x, exp: lambda x: x + 1})
    plugins = load(registers, plugin(narrow=without_b), plugin(narrow=twice))
    assert plugins.lowerings().keys() == {relu, exp}, "nobody narrows without options"
    for _ in range(2):
        table = plugins.lowerings(options=options)
        assert table.keys() == {exp} and table[exp](3) == 8
    assert seen == ["lowering"], "asked once for what is the same"
    assert plugins.lowerings(options={}).keys() == {exp} and seen == ["lowering"] * 2, "and again for other options"


@pytest.mark.parametrize(
    "narrowed, problem",
    [
        (lambda registered: {torch.ops.aten.exp.default: len}, "aten.exp.default is none of what"),
        (lambda registered: dict.fromkeys(registered, 3), "is not what was registered"),
        (lambda registered: [*registered], "a mapping, or None, is expected"),
    ],
)
def test_narrowing_adds_nothing(narrowed, problem):
    registers = plugin(register_lowerings=lambda: {torch.ops.aten.relu.default: abs})
    plugins = load(registers, plugin(narrow=lambda kind, registered, options: narrowed(registered)))
    with pytest.raises(PluginHookError, match=problem):
        plugins.lowerings(options={})


@pytest.mark.parametrize("hook", CALLS)
def test_a_raising_hook_is_named(hook):
    with pytest.raises(PluginHookError) as error:
        CALLS[hook](load(plugin(), plugin(**{hook: lambda: raises()})))
    assert (error.value.plugin, error.value.hook) == ("b", f"litz_{hook}")
    assert "out of cheese" in str(error.value) and "LITZ_DISABLE_PLUGINS=b" in str(error.value)
    assert isinstance(error.value.__cause__, RuntimeError)


@pytest.mark.parametrize("hook", CALLS)
def test_a_raising_hook_can_be_gone_without(hook):
    plugins = load(plugin(**{hook: lambda: raises()}), plugin(), on_plugin_error="disable")
    with pytest.warns(PluginWarning, match=f"litz_{hook}"):
        CALLS[hook](plugins)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        CALLS[hook](plugins)
    assert plugins.names() == ("b",)
    assert plugins.listing()[0].status == "failed"


@pytest.mark.parametrize(
    "hook",
    ["register_options", "register_lowerings", "register_passes", "estimate_runtime", "wrap_entry", "watch_graph"],
)
def test_a_result_of_the_wrong_type_is_the_plugins_fault(hook):
    with pytest.raises(PluginHookError, match=r"returned|not iterable"):
        CALLS[hook](load(plugin(**{hook: lambda: 3})))


def test_one_record_in_place_of_a_list():
    with pytest.raises(PluginHookError, match="a list of OptionSpec"):
        load(plugin(register_options=lambda: OptionSpec("level", int, 1, "a level"))).options()


def test_builtins_errors_are_litzs_own():
    def fail():
        raise LitzError("no such register")

    with pytest.raises(LitzError) as error:
        load(builtins=[("core", plugin(register_lowerings=fail))]).lowerings()
    assert type(error.value) is LitzError
    with pytest.raises(PluginHookError, match="bug in litz"):
        load(builtins=[("core", plugin(register_lowerings=lambda: raises()))], on_plugin_error="disable").lowerings()


# ------------------------------------------------------------------------------------------------------- running passes


def with_pass(run, name="double", stage="program", **hooks):
    return plugin(register_passes=lambda options: [Pass(name, stage, run)], **hooks)


def test_passes_run_in_order_and_are_observed():
    seen, noted = [], []

    def double(noun, context):
        context.record("noun", str(noun * 2), "doubled")
        return noun * 2

    watcher = plugin(
        pass_finished=lambda pass_, before, after, seconds: seen.append((pass_.name, before, after, seconds >= 0))
    )
    plugins = load(with_pass(double), with_pass(lambda noun, context: noun + 1, "add"), watcher)
    assert plugins.run_passes("program", 5, {}, note=noted.append) == 11
    assert seen == [("double", 5, 10, True), ("add", 10, 11, True)]
    assert (noted[0].plugin, noted[0].stage, noted[0].chosen) == ("a", "program", "10")
    assert plugins.run_passes("graph", 5, {}) == 5


def test_a_raising_pass_is_named():
    with pytest.raises(PluginHookError, match=r"plugin 'a' failed in pass 'double' \(program stage\)"):
        load(with_pass(raises)).run_passes("program", 1, {})


def test_a_pass_that_forgets_to_return():
    with pytest.raises(PluginHookError, match="returned None"):
        load(with_pass(lambda noun, context: None)).run_passes("program", 1, {})


def test_a_pass_that_the_verifier_rejects():
    def verify(noun):
        raise ValueError(f"{noun} is odd")

    with pytest.raises(PluginHookError, match=r"double.*3 is odd"):
        load(with_pass(lambda noun, context: 3)).run_passes("program", 1, {}, verify=verify)


def test_without_a_failing_pass_the_noun_is_as_before_and_the_plugin_gone():
    plugins = load(
        plugin(
            register_passes=lambda options: [Pass("bad", "program", raises), Pass("worse", "program", raises)],
            register_lowerings=lambda: {ADD: min},
        ),
        with_pass(lambda noun, context: noun + 1, "add"),
        on_plugin_error="disable",
    )
    with pytest.warns(PluginWarning) as caught:
        assert plugins.run_passes("program", 1, {}) == 2
    assert len(caught) == 1
    assert plugins.lowerings() == {}


def test_passes_can_ask_for_estimates():
    asked = []

    def ask(noun, context):
        asked.append(context.estimate("op", CPU, noun).us)
        return noun

    load(with_pass(ask), plugin(estimate_runtime=lambda: estimate(7.0))).run_passes("program", 1, {})
    assert asked == [7.0]


def test_equal_plugins_are_two():
    """Two SimpleNamespaces of equal content are equal, which pluggy would take for one plugin under two names."""
    asked = []

    @hookimpl
    def litz_compile_started(graph):
        asked.append(graph)
        if graph == "fails":
            raise RuntimeError("no")

    first, second = (SimpleNamespace(litz_compile_started=litz_compile_started) for _ in range(2))
    assert first == second
    plugins = make_plugins(extra=[("first", first), ("second", second)], entry_points=())
    plugins.compile_started("graph", {})
    assert plugins.names() == ("first", "second") and asked == ["graph", "graph"]
    plugins = make_plugins(extra=[("first", first), ("second", second)], entry_points=(), on_plugin_error="disable")
    with pytest.warns(PluginWarning) as caught:
        plugins.compile_started("fails", {})
    assert len(caught) == 2 and plugins.names() == ()  # each was left out for itself, and not the other in its place

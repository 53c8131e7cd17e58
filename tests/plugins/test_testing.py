"""The test kit, on a good plugin and on bad ones."""

from types import SimpleNamespace

import pytest

from litz_plugins import Estimate, Exporter, OptionSpec, Pass, TargetSpec, TemplateSpec, hookimpl
from litz_plugins.testing import PluginCheckError, check_plugin, make_test_plugins


class Doubler:
    @hookimpl
    def litz_register_options(self):
        return [OptionSpec("times", int, 2, "factor")]

    @hookimpl
    def litz_register_passes(self, options):
        def run(noun, context):
            context.record("noun", "multiplied", f"by {options['doubler.times']}")
            return noun * options["doubler.times"]

        return [Pass("double", "program", run)]

    @hookimpl
    def litz_estimate_runtime(self, operation, target):
        return Estimate(1.0, 0.5, 2.0, "guess") if target.type == "cuda" else None


def test_harness():
    harness = make_test_plugins(Doubler())
    assert harness.name == "doubler"
    assert harness.run_passes("program", 4) == 8
    assert harness.decisions[0].reason == "by 2"
    assert harness.estimate("op", "cuda").us == 1.0
    assert harness.estimate("op") is None


def test_harness_sets_options_both_ways():
    assert make_test_plugins(Doubler(), doubler__times=3).run_passes("program", 4) == 12
    assert make_test_plugins(Doubler(), options={"doubler.times": 5}).run_passes("program", 4) == 20


def test_harness_refuses_an_option_the_plugin_does_not_have():
    with pytest.raises(KeyError, match=r"did you mean 'doubler\.times'"):
        make_test_plugins(Doubler(), doubler__tims=3)


def test_core_options_are_attributes():
    harness = make_test_plugins(Doubler(), options={"cpp.march": "native"})
    assert harness.options.cpp_march == "native"
    with pytest.raises(AttributeError, match="sets no option"):
        harness.options.cuda_graphs


def test_check_plugin_lists_what_there_is():
    found = check_plugin(Doubler())
    assert found.passes == ("double",)
    assert found.options == ("doubler.times",)
    assert len(found.hooks) == 3


def test_check_plugin_finds_faults():
    bad = SimpleNamespace(
        litz_register_passes=hookimpl(lambda: [Pass("p", "graph", lambda noun: noun)]),
        litz_register_templates=hookimpl(lambda: [TemplateSpec("t", ("mm",), lambda: [])]),
        litz_register_targets=hookimpl(
            lambda: [TargetSpec("cpu", lambda device, options: None, object(), qualify=lambda constructs: None)]
        ),
        litz_register_lowerings=hookimpl(lambda: {"aten.add": 3}),
        litz_select_exporter=hookimpl(lambda: Exporter("no_such_dist.packed")),
    )
    with pytest.raises(PluginCheckError) as error:
        check_plugin(bad, name="bad")
    text = str(error.value)
    for part in (
        "run(noun, context)",
        "make_choices",
        "lacks 'language'",
        "no_such_dist.packed, which is not",
        "qualify(constructs, context)",
        "key 'aten.add' is no op",
    ):
        assert part in text


def test_check_plugin_wants_a_hook():
    with pytest.raises(PluginCheckError, match="no hook"):
        check_plugin(SimpleNamespace(), name="empty")


def test_check_plugin_passes_errors_on():
    def fail(options):
        raise RuntimeError("no")

    with pytest.raises(PluginCheckError, match="RuntimeError: no"):
        check_plugin(SimpleNamespace(litz_register_passes=hookimpl(fail)), name="bad")

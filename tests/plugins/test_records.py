"""The records check their own fields, so that a plugin's mistake is found where it is made."""

import pytest

from litz_plugins import Choice, Decision, Estimate, LayoutPlan, OptionSpec, Pass, PassContext, Target, TemplateSpec
from litz_plugins.units import parse_size


def run(noun, context):
    return noun


@pytest.mark.parametrize(("low", "us", "high"), [(2, 1, 3), (0, 4, 3), (-1, 1, 2), (0, float("nan"), 1)])
def test_estimate_needs_an_interval(low, us, high):
    with pytest.raises(ValueError, match="low_us <= us <= high_us"):
        Estimate(us, low, high, "test")


def test_pass_refuses_a_string_for_after():
    with pytest.raises(TypeError, match=r"after=\('fuse',\)"):
        Pass("a", "graph", run, after="fuse")


def test_pass_refuses_an_unknown_stage():
    with pytest.raises(ValueError, match="graph, program, schedule"):
        Pass("a", "codegen", run)


def test_pass_takes_lists():
    assert Pass("a", "graph", run, after=["x"]).after == ("x",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Level", int, 1, "help"), "lower-case"),
        (("level", dict, {}, "help"), "type is one of"),
        (("level", int, "1", "help"), "default"),
        (("level", int, True, "help"), "default"),
        (("level", int, 1, ""), "help"),
        (("level", int, 1, "help", (2, 3)), "none of its choices"),
        (("size", str, "8G", "help", None, 0, parse_size), "belong together"),
        (("size", str, "8G", "help", None, 0, None, "a size"), "belong together"),
        (("size", str, "8 apples", "help", None, 0, parse_size, "a size"), "no size such as"),
    ],
)
def test_option_spec_is_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        OptionSpec(*arguments)


def test_option_spec_may_be_unset():
    assert OptionSpec("level", int, None, "help", (1, 2)).default is None


def test_choice_kind_is_checked():
    with pytest.raises(ValueError, match="extern"):
        Choice("x", "library")


def test_layout_plan_wants_permutations():
    LayoutPlan({"conv": (0, 2, 3, 1)})
    with pytest.raises(ValueError, match="permutation"):
        LayoutPlan({"conv": (0, 2, 2, 1)})


def test_template_kinds_is_a_tuple():
    with pytest.raises(TypeError, match="kinds"):
        TemplateSpec("t", "mm", lambda operation, context: [])


def test_device_prints_like_torch():
    assert str(Target("cuda", 1)) == "cuda:1"
    assert str(Target("cpu")) == "cpu"


def test_context_records_decisions_in_the_name_of_its_plugin():
    noted = []
    context = PassContext({}, "schedule", "reorder", "collectives", note=noted.append)
    context.record("all_reduce_0", "early", "hides 12 us", [("early", 3.0), ("late", None)])
    assert noted == [
        Decision("schedule", "all_reduce_0", "early", "hides 12 us", (("early", 3.0), ("late", None)), "collectives")
    ]
    assert str(noted[0]) == "all_reduce_0: early (hides 12 us); considered early 3 us, late"

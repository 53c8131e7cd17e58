"""What every compile asks of plugins costs little where nothing has changed."""

import functools
import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

from litz_plugins import HookSignatureError, hookimpl, make_plugins
from litz_plugins.loading import installed_entry_points
from support.third_party import write_dist

SOURCE = """
from litz_plugins import hookimpl

@hookimpl
def litz_register_lowerings():
    return {}
"""


def names() -> list[str]:
    return sorted(point.name for point in installed_entry_points() if point.dist and point.dist.name == "litz-late")


def test_dists_are_looked_for_again_where_a_folder_has_changed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    assert names() == []
    write_dist(tmp_path, "litz-late", {"late": "late_1"}, {"late_1": SOURCE})
    assert names() == ["late"]
    first, second = installed_entry_points(), installed_entry_points()
    assert all(one is other for one, other in zip(first, second, strict=True)) and first is not second
    sys.path.remove(str(tmp_path))
    assert names() == []
    sys.path.insert(0, str(tmp_path))
    (info,) = tmp_path.glob("*.dist-info")
    info.rename(tmp_path.parent / info.name)
    os.utime(tmp_path, ns=(1, 1))  # on a file system of coarse times
    assert names() == []


class OpOverload:
    """An op that counts how often it is hashed, which torch does in Python."""

    hashed = 0

    def __hash__(self):
        OpOverload.hashed += 1
        return id(self)


@pytest.mark.parametrize("hook", ["decompositions", "lowerings"])
def test_no_op_of_cores_table_is_hashed_again(hook):
    table = {OpOverload(): min for _ in range(50)}
    own, other = OpOverload(), next(iter(table))
    core = SimpleNamespace(**{f"litz_register_{hook}": hookimpl(lambda: table.copy())})
    mine = SimpleNamespace(**{f"litz_register_{hook}": hookimpl(lambda: {own: max, other: max})})
    plugins = make_plugins([("core", core)], extra=[("mine", mine)], entry_points=())
    before = OpOverload.hashed
    found = getattr(plugins, hook)()
    assert OpOverload.hashed - before <= 10
    assert found.keys() == {*table, own} and list(found)[:-1] == list(table)
    assert found[own].plugin == found[other].plugin == "mine" and set(map(type, found.values())) == {
        type(min),
        type(found[own]),
    }


def module(**functions):
    found = ModuleType("late_2")
    vars(found).update(functions, number=3, Other=OpOverload, helper=lambda late: late)
    return found


def listed(plugin):
    return make_plugins(extra=[("late", plugin)], entry_points=()).listing()[0].hooks


def test_a_module_has_the_hooks_that_are_marked():
    class Holder:
        @hookimpl
        def litz_register_lowerings(self):
            return {}

    assert listed(module(litz_register_lowerings=hookimpl(lambda: {}), other=hookimpl(specname="litz_tune")(len_of)))
    assert listed(module(litz_register_lowerings=Holder().litz_register_lowerings)) == ("litz_register_lowerings",)
    with pytest.raises(HookSignatureError, match="lacks its marker"):
        listed(module(litz_register_lowerings=lambda: {}))


def len_of(tuning):
    return None


def test_no_signature_is_taken_of_a_plain_function(monkeypatch):
    class Holder:
        @hookimpl
        def litz_register_passes(self, options):
            return []

    monkeypatch.setattr("litz_plugins.validate.inspect.signature", None)
    assert listed(Holder()) == listed(module(litz_register_passes=Holder().litz_register_passes))
    assert listed(module(litz_register_passes=hookimpl(lambda options: []))) == ("litz_register_passes",)
    with pytest.raises(TypeError):
        listed(module(litz_register_passes=hookimpl(lambda option: [])))


def test_a_wrapped_function_takes_what_its_signature_says():
    @functools.wraps(lambda options: [])
    def taken(*arguments, **named):
        return []

    @functools.wraps(lambda choice: [])
    def refused(options):
        return []

    assert listed(module(litz_register_passes=hookimpl(taken))) == ("litz_register_passes",)
    with pytest.raises(HookSignatureError, match="a parameter 'choice' that the hook does not"):
        listed(module(litz_register_passes=hookimpl(refused)))


@pytest.mark.parametrize("function", [lambda options=None: [], lambda *, options=None: [], lambda *options: []])
def test_what_a_signature_would_refuse_is_refused(function):
    with pytest.raises(HookSignatureError):
        listed(module(litz_register_passes=hookimpl(function)))

"""The order in which plugins with a hook are asked is what they say of one another, whatever the order of loading."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import pytest

from litz_plugins import HookSignatureError, PluginWarning, Target, hookimpl, make_plugins
from litz_plugins.manager import Plugins

CPU = Target("cpu")


def asked(**marks: Any) -> Callable[..., list[str]]:
    """Returns the order in which plugins with these marks are asked, for an order of loading."""

    def order(names: tuple[str, ...], **arguments: Any) -> list[str]:
        told: list[str] = []

        def of(name: str) -> object:
            return SimpleNamespace(litz_estimate_runtime=hookimpl(**marks[name])(lambda: told.append(name)))

        plugins: Plugins = make_plugins((), extra=[(name, of(name)) for name in names], entry_points=(), **arguments)
        assert plugins.estimate_runtime("op", CPU, None) is None
        return told

    return order


@pytest.mark.parametrize("marks", [{"before": ("b",)}, {"before": ("b?", "absent?")}])
def test_before_holds_in_each_order_of_loading(marks: dict[str, Any]) -> None:
    order = asked(a={"tryfirst": True, **marks}, b={"tryfirst": True}, c={})
    assert {tuple(order(names)) for names in permutations("abc")} == {("a", "b", "c")}


def test_after_holds_against_tryfirst_too() -> None:
    order = asked(a={"tryfirst": True, "after": ("b",)}, b={})
    assert order(("a", "b")) == order(("b", "a")) == ["b", "a"]


def test_what_nobody_orders_stays_as_loaded() -> None:
    order = asked(a={}, b={}, c={"before": ("d?",)}, d={})
    assert order(("d", "b", "c", "a")) == ["b", "c", "d", "a"]


def test_a_name_that_is_no_plugin_is_an_error_that_says_how_to_write_one_that_may_be_absent() -> None:
    with pytest.raises(HookSignatureError, match=r"'numbers' in .*which is no plugin.* write 'numbers\?'") as caught:
        asked(a={"before": ("numbers",)})(("a",))
    assert caught.value.plugin == "a" and caught.value.hook == "litz_estimate_runtime"


def test_plugins_that_wait_for_each_other_are_an_error_or_one_is_left_out() -> None:
    order = asked(a={"before": ("b",)}, b={"before": ("c",)}, c={"before": ("a",)}, d={})
    with pytest.raises(HookSignatureError, match="a -> b -> c -> a"):
        order(tuple("abcd"))
    with pytest.warns(PluginWarning, match="a -> b -> c -> a"):
        assert order(tuple("abcd"), on_plugin_error="disable") == ["a", "b", "d"]

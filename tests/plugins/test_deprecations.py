"""What is given up: it works and warns for two minor versions, then it is an error that says what took its place."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest

import litz_plugins
from litz_plugins import OptionSpec, PluginDeprecationWarning, UnknownHookError, deprecations, hookimpl, make_plugins
from litz_plugins.deprecations import DEPRECATIONS, WARNS_FOR, Deprecation
from litz_plugins.validate import HOOKS
from litz_plugins.versions import API_VERSION, minor

MAJOR, MINOR = minor(API_VERSION)


def version(later: int) -> str:
    return f"{MAJOR}.{MINOR + later}"


def rows(since: str) -> tuple[Deprecation, ...]:
    return (
        Deprecation("hook", "litz_register_settings", since, "write litz_register_options", "litz_register_options"),
        Deprecation("parameter", "litz_estimate_runtime.program", since, "the operation knows it"),
        Deprecation("name", "Setting", since, "write OptionSpec", "OptionSpec"),
    )


@pytest.fixture
def given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deprecations, "DEPRECATIONS", rows(API_VERSION))


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deprecations, "DEPRECATIONS", rows(version(-WARNS_FOR)))


def old_plugin() -> SimpleNamespace:
    return SimpleNamespace(litz_register_settings=hookimpl(lambda: [OptionSpec("level", int, 1, "a level")]))


def test_it_warns_for_two_minor_versions() -> None:
    row = Deprecation("name", "Old", "1.3", "write New", "New")
    assert row.gone_in == "1.5"
    assert [row.works(version) for version in ("1.3", "1.4", "1.5", "1.12", "2.0")] == [True, True, False, False, False]


@pytest.mark.usefixtures("given_up")
def test_a_deprecated_hook_warns_and_is_called_by_its_new_name() -> None:
    with pytest.warns(PluginDeprecationWarning, match="litz_register_settings") as caught:
        plugins = make_plugins(extra=[("old", old_plugin())], entry_points=())
    (warning,) = caught
    for part in (
        "plugin 'old'",
        f"since litz-plugins {API_VERSION}",
        "write litz_register_options",
        version(WARNS_FOR),
    ):
        assert part in str(warning.message)
    assert [spec.name for spec in plugins.option_specs()] == ["old.level"]
    assert plugins.listing()[0].hooks == ("litz_register_options",)


@pytest.mark.usefixtures("given_up")
def test_a_deprecated_parameter_warns_and_is_passed() -> None:
    plugin = SimpleNamespace(litz_estimate_runtime=hookimpl(lambda program: program))
    with pytest.warns(PluginDeprecationWarning, match="litz_estimate_runtime.program"):
        make_plugins(extra=[("old", plugin)], entry_points=())


@pytest.mark.usefixtures("given_up")
def test_a_deprecated_name_warns_and_is_the_new_one() -> None:
    with pytest.warns(PluginDeprecationWarning, match="'Setting' is deprecated"):
        assert litz_plugins.Setting is OptionSpec


@pytest.mark.usefixtures("gone")
def test_what_is_gone_says_what_took_its_place() -> None:
    with pytest.raises(UnknownHookError, match=f"given up in litz-plugins {API_VERSION}: write litz_register_options"):
        make_plugins(extra=[("old", old_plugin())], entry_points=())
    with pytest.raises(AttributeError, match="'Setting': write OptionSpec"):
        _ = litz_plugins.Setting


def test_what_was_never_there_is_no_deprecation() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(AttributeError, match=r"no attribute 'Nonsense'$"):
            _ = litz_plugins.Nonsense
        make_plugins(extra=[("new", SimpleNamespace(litz_register_options=hookimpl(lambda: [])))], entry_points=())


def test_the_table_is_true() -> None:
    """While a name works, what it stands for is there; once it is gone, nothing of it is left."""
    for row in DEPRECATIONS:
        hook, _, parameter = row.old.partition(".")
        there = {
            "hook": row.new in HOOKS or not row.new,
            "parameter": parameter in HOOKS.get(hook, ()),
            "name": hasattr(litz_plugins, row.new),
        }[row.kind]
        assert there == row.works() or row.kind != "parameter", row
        assert row.old not in HOOKS and row.old not in litz_plugins.__all__ and row.instead, row

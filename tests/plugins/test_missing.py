"""Plugins that somebody expects and that are not installed: each is named, with what to do."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from litz_plugins import PluginLoadError, PluginWarning, make_plugins
from litz_plugins.loading import installed_entry_points
from litz_plugins.missing import how_to_install, own_dists, projects, variables
from litz_plugins.words import OWN_COMMANDS, OWN_DISTS
from support.third_party import write_dist

PROJECT = """
[project]
name = "litz-gentle"
[project.entry-points.litz]
gentle = "litz_gentle:plugin"
"""


def installed(folder: Path) -> list[importlib.metadata.EntryPoint]:
    """The plugins of the dists in a folder."""
    return [
        e for d in importlib.metadata.distributions(path=[str(folder)]) for e in d.entry_points if e.group == "litz"
    ]


def test_own_dists_that_are_not_installed() -> None:
    names = [
        "aot",
        "autotune",
        "clients",
        "collectives",
        "contractions",
        "cudagraphs",
        "layout",
        "memory",
        "numerics",
        "operators",
        "passes",
        "tools",
        "triton_kernels",
    ]
    assert [one.plugin for one in own_dists(())] == names
    (one,) = own_dists(OWN_DISTS.keys() - {"layout"})
    assert (one.dist, one.todo, one.wanted) == (
        "litz-layout",
        "`pip install ./plugins_layout` in a checkout of litz",
        False,
    )
    assert own_dists(OWN_DISTS) == []


def test_the_table_of_own_dists_is_what_they_are() -> None:
    points = {point.name: point.dist.metadata["Name"] for point in installed_entry_points() if point.dist is not None}
    assert {name: dist for name, (dist, _) in OWN_DISTS.items()}.items() <= points.items()
    commands = make_plugins().commands_by_plugin()
    assert {name: plugin for name, (plugin, _) in commands.items() if plugin in OWN_DISTS} == OWN_COMMANDS


def test_a_project_that_was_never_installed(tmp_path: Path) -> None:
    inner = tmp_path / "work" / "litz-gentle"
    (inner / "src").mkdir(parents=True)
    (inner / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'no plugin'\n")
    for folder in (inner, inner.parent, inner / "src"):  # here, in a folder here, and above
        (one,) = projects(folder, ())
        assert (one.plugin, one.dist, one.todo) == ("gentle", "litz-gentle", f"pip install -e {inner}")
    assert projects(inner, {"gentle"}) == [] and projects(tmp_path / "nowhere", ()) == []


@pytest.mark.parametrize("text", ["[project", "project = 3", "[project]\nentry-points = 3", "\x00"])
def test_a_project_file_that_cannot_be_read_is_none_of_litzs(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    assert projects(tmp_path, ()) == []


def test_variables_of_a_plugin_that_is_not_installed() -> None:
    environ = ("LITZ_AUTOTUNE_SECONDS", "LITZ_LAYOUT_PAD", "LITZ_CACHE", "LITZ_LAYOUTS", "HOME")
    (one,) = variables(environ, (), {"layout"})
    assert one.plugin == "autotune" and "LITZ_AUTOTUNE_SECONDS is set" in one.what
    assert "`pip install ./plugins_autotune` in a checkout of litz, or unset LITZ_AUTOTUNE_SECONDS" in one.todo
    assert variables(environ, ("autotune.seconds",), {"autotune", "layout"}) == []


def test_what_to_do_about_a_name() -> None:
    how = "`pip install ./plugins_layout` in a checkout of litz"
    assert how_to_install("layout") == f"its plugin 'layout' is not installed: {how}"
    assert "no installed plugin is called 'gentle'" in how_to_install("gentle")


def test_why_the_options_of_an_installed_plugin_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    write_dist(tmp_path, "litz-broken", {"broken": "broken_missing"}, {"broken_missing": "import no_such_module"})
    write_dist(tmp_path, "litz-quiet", {"quiet": "quiet_missing"}, {"quiet_missing": ""})
    points = installed(tmp_path)
    with pytest.warns(PluginWarning):
        found = make_plugins(entry_points=points, disable=["quiet"], on_plugin_error="disable").missing()
    assert set(found) == {"broken", "quiet"}
    assert "No module named 'no_such_module'" in found["broken"] and "LITZ_DISABLE_PLUGINS" in found["quiet"]


@pytest.mark.parametrize(
    ("target", "source", "todo"),
    [
        ("gone_missing.plugin", None, "litz-half is installed without gone_missing: install it again"),
        ("half_missing", "import no_such_module.inner", "install the dist that has the module no_such_module"),
        ("odd_missing", "raise RuntimeError", "repair or uninstall litz-half 1.0"),
    ],
)
def test_an_import_that_fails_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, source: str | None, todo: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    write_dist(tmp_path, "litz-half", {"half": target}, {} if source is None else {target: source})
    with pytest.raises(PluginLoadError) as caught:
        make_plugins(entry_points=installed(tmp_path))
    assert todo in caught.value.todo and "LITZ_DISABLE_PLUGINS=half" in caught.value.todo

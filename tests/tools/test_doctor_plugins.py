"""What `litz doctor` says of plugins that cannot be loaded or are missing, and what `litz check-plugins` says of those
that clash, or with which nothing compiles."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from litz.cli import main as main_module
from litz.cli.main import main
from litz.driver.builtin import builtin_plugins
from litz_plugins import OptionSpec, Pass, Plugins, deprecations, hookimpl, make_plugins
from litz_plugins.deprecations import Deprecation
from litz_plugins.versions import API_VERSION
from litz_plugins.words import OWN_DISTS
from litz_tools import doctor, plugins_cli
from litz_tools.plugin_checks import check_compiling, check_registering


def loaded(**plugins: Any) -> Plugins:
    """Core's plugins, and some that are made of one hook each."""
    extra = [
        (name, SimpleNamespace(name=name, **{hook: hookimpl(function)})) for name, (hook, function) in plugins.items()
    ]
    return make_plugins(builtin_plugins(), extra=extra, entry_points=(), on_plugin_error="disable")


def fails() -> Any:
    raise RuntimeError("no luck")


def ordered(name: str, **places: Any) -> Any:
    return lambda: [Pass(name, "program", lambda program, context: program, **places)]


def test_good_plugins_have_no_rows() -> None:
    good = loaded(good=("litz_register_options", lambda: [OptionSpec("level", int, 1, "a level")]))
    assert check_registering(good) == []


def test_a_hook_that_raises_is_named() -> None:
    (row,) = check_registering(loaded(broken=("litz_register_templates", fails)))
    assert row.status == "fail" and row.name == "plugin broken" and "no luck" in row.detail
    assert "LITZ_DISABLE_PLUGINS=broken" in row.todo


def test_clashes_are_named() -> None:
    lowerings = ("litz_register_lowerings", lambda: {torch.ops.aten.add.Tensor: fails})
    rows = check_registering(
        loaded(
            one=lowerings,
            two=lowerings,
            three=("litz_register_passes", ordered("p", after=("q",))),
            four=("litz_register_passes", ordered("q", after=("p",))),
        )
    )
    found = {row.name: row for row in rows}
    assert {"plugin two", "plugin four"} <= set(found)  # the later of each pair would be left out
    assert "plugins 'one' and 'two' both register the lowering of aten.add.Tensor" in found["plugin two"].detail
    assert "p (plugin 'three') -> q (plugin 'four') -> p" in found["plugin four"].detail
    assert all(row.status == "fail" and row.todo for row in rows)


def test_what_is_deprecated_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Deprecation("hook", "litz_settings", API_VERSION, "write litz_register_options", "litz_register_options")
    monkeypatch.setattr(deprecations, "DEPRECATIONS", (row,))
    monkeypatch.setattr(doctor, "load_plugins", lambda: (loaded(old=("litz_settings", lambda: [])), ""))
    check, *_, last = doctor.check_plugins()
    assert check.status == "warn" and "plugin 'old'" in check.detail and "litz_register_options" in check.detail
    assert "old" in last.detail


def test_what_is_not_installed_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "litz-gentle"\n[project.entry-points.litz]\ngentle="g"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LITZ_LAYOUT_PAD", "1")
    monkeypatch.setattr(doctor, "load_plugins", lambda: (loaded(), ""))
    rows = {row.name: row for row in doctor.check_plugins()}
    assert {name: row.status for name, row in rows.items()} == {
        "plugins": "ok",
        "plugin layout": "warn",  # its variable is set
        "plugin gentle": "warn",
        "plugin aot": "ok",
        "plugin autotune": "ok",
        "plugin clients": "ok",
        "plugin collectives": "ok",
        "plugin contractions": "ok",
        "plugin cudagraphs": "ok",
        "plugin memory": "ok",
        "plugin numerics": "ok",
        "plugin operators": "ok",
        "plugin passes": "ok",
        "plugin tools": "ok",
        "plugin triton_kernels": "ok",
    }
    assert rows["plugin gentle"].todo == f"pip install -e {tmp_path}"
    assert "pip install ./plugins_autotune" in rows["plugin autotune"].todo
    assert "which the library runs without it" in rows["plugin contractions"].detail


def test_litz_plugins_lists_what_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("litz.cli.plugins.load_plugins", lambda: (loaded(), ""))
    rows = json.loads(CliRunner().invoke(main, ["plugins", "--json"]).output)
    found = {row["name"]: row for row in rows if row["status"] == "missing"}
    assert set(found) == set(OWN_DISTS)
    assert found["layout"]["dist"] == "litz-layout"
    text = CliRunner().invoke(main, ["plugins"]).output
    assert "pip install ./plugins_layout" in text and max(map(len, text.splitlines())) <= 80


def test_a_command_of_a_dist_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_module, "_plugin_commands", dict)
    for command, dist in (("tune", "litz-autotune"), ("bisect", "litz-tools"), ("bench-kernels", "litz-tools")):
        result = CliRunner().invoke(main, [command, "show"])
        assert result.exit_code == 2 and f"pip install ./{dist.replace('litz-', 'plugins_')}" in result.output
    assert "pip install" not in CliRunner().invoke(main, ["tuned"]).output


def test_a_plugin_with_which_nothing_compiles_is_named() -> None:
    def cut(program: Any, context: Any) -> Any:
        """Leaves out the first operation."""
        return replace(program, operations=program.operations[1:])

    plugins = loaded(
        breaks=("litz_register_passes", lambda: [Pass("cut", "program", cut, before=("inline_pointwise",))]),
        watches=("litz_compile_started", lambda: None),  # decides nothing: need not be tried
        idle=("litz_register_passes", ordered("idle")),
    )
    rows = {row.name: row for row in check_compiling(plugins)}
    assert set(rows) == {"plugin breaks", "plugin idle"}
    assert rows["plugin idle"].status == "ok"
    assert rows["plugin breaks"].status == "fail" and "breaks" in rows["plugin breaks"].detail
    assert "LITZ_DISABLE_PLUGINS=breaks" in rows["plugin breaks"].todo


def test_check_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(**plugins: Any) -> Any:
        for module in (doctor, plugins_cli):
            monkeypatch.setattr(module, "load_plugins", lambda: (loaded(**plugins), ""))
        return CliRunner().invoke(main, ["check-plugins"])

    good = run(idle=("litz_register_passes", ordered("idle")))
    assert good.exit_code == 0 and "compiles a small program" in good.output and "every plugin works" in good.output
    bad = run(broken=("litz_register_templates", fails))
    assert bad.exit_code == 1 and "no luck" in bad.output and "LITZ_DISABLE_PLUGINS=broken" in bad.output

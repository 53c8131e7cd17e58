"""Options that are text: what an option cannot read is refused before anything is compiled, with an example."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import litz_collectives.plugin
import litz_layout
from litz.cli.main import main
from litz.driver.builtin import builtin_plugins
from litz.errors import InvalidOptionError, UnknownOptionError
from litz.options import OptionRow, core_options, make_options, plugin_option_rows
from litz.pipeline import compile_backend, make_compiler
from litz_autotune.plugin import plugin as autotune
from litz_plugins import OptionSpec, PluginHookError, PluginWarning, Secret, UnknownPluginError, hookimpl, make_plugins
from litz_plugins.errors import in_short

OWN = [("autotune", autotune), ("collectives", litz_collectives.plugin), ("layout", litz_layout)]
SPECS = make_plugins(extra=OWN, entry_points=()).option_specs()
ROWS = [*core_options(), *plugin_option_rows(SPECS)]
NONSENSE = "? nonsense !"

ANY_TEXT = {
    "cache_shared": "any text without NUL is a path",
    "disable_plugins": "the plugins that there are say which names are wrong, before there are options",
    "cpp.compiler": "any text may be a command; one that is not there is an error where it is first needed (CXX may "
    "name one that a GPU never needs)",
}
"""Options that take any text, and why."""


def is_text(row: OptionRow) -> bool:
    return row.choices is None and (row.type in (str, Secret) or (row.type is tuple and row.item is str))


TEXTS = [row for row in ROWS if is_text(row)]


def refused(ask: Callable[[], Any]) -> InvalidOptionError:
    with pytest.raises(InvalidOptionError) as caught:
        ask()
    return caught.value


def test_there_are_text_options_of_core_and_plugins() -> None:
    names = {row.name for row in TEXTS}
    assert {"veto", "prefer", "trust", "collectives.cost", "collectives.memory_limit", "autotune.remote_cache"} <= names
    assert set(ANY_TEXT) <= names


@pytest.mark.parametrize("row", [row for row in TEXTS if row.name not in ANY_TEXT], ids=lambda row: row.name)
def test_nonsense_is_refused_at_once(row: OptionRow, monkeypatch: pytest.MonkeyPatch) -> None:
    value = [NONSENSE] if row.type is tuple else NONSENSE
    plugins = make_plugins(builtin_plugins(), extra=OWN, entry_points=())
    monkeypatch.setenv(row.env[0], NONSENSE)
    said = {
        "options=": refused(lambda: make_compiler(None, {row.name: value}, plugins)),
        row.env[0]: refused(lambda: make_compiler(None, {}, plugins)),
    }
    for source, error in said.items():
        assert error.option == row.name and error.todo.startswith("give it ")
        assert source in error.where
        # What nobody decides is known once all who decide are there, and the error lists those in place of an example.
        assert row.accepted in error.todo or (row.name == "veto" and "keys of choose, " in error.todo)
        assert ("***" if row.type is Secret else NONSENSE) in str(error)
        assert row.type is not Secret or NONSENSE not in str(error) + repr(vars(error))
    shown = CliRunner().invoke(main, ["options"])
    assert shown.exit_code != 0 and f"option {row.name!r} cannot be" in shown.output + str(shown.exception)


@pytest.mark.parametrize("name", ["collectives.profile", "layout.measurements"])
def test_a_file_that_a_plugin_reads_is_there(name: str, tmp_path: Path) -> None:
    error = refused(lambda: make_options(None, {name: tmp_path / "nothing"}, SPECS, environ={}))
    assert "No such file" in error.what and error.todo == "give it the path of a file that is there or None"
    (tmp_path / "nothing").touch()
    assert make_options(None, {name: tmp_path / "nothing"}, SPECS, environ={})[name].exists()


@pytest.mark.parametrize("row", [row for row in TEXTS if row.accepts], ids=lambda row: row.name)
def test_the_examples_of_errors_are_right(row: OptionRow) -> None:
    examples = re.findall(r'"([^"]+)"', row.accepts)
    assert examples
    for example in examples:
        if row.name != "trust":  # whose groups not each machine has
            assert make_options(None, {row.name: example}, SPECS, environ={})[row.name]


def test_what_takes_any_text_says_later_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownPluginError, match=r"there is no plugin '\? nonsense"):
        make_compiler(None, {"disable_plugins": [NONSENSE]})
    error = refused(lambda: make_options(None, {"cache_shared": ["a\0b"]}, environ={}))
    assert "no NUL" in error.what and error.option == "cache_shared"
    torch._dynamo.reset()
    f = torch.compile(lambda x: x + 1, backend="litz", options={"cpp.compiler": NONSENSE, "cache": False})
    with pytest.raises(Exception, match="no C\\+\\+ compiler was found") as caught:
        f(torch.ones(3))
    assert "compiler" in in_short(caught.value)


@pytest.mark.parametrize("row", [row for row in ROWS if row.type is Path], ids=lambda row: row.name)
def test_a_path_has_no_nul(row: OptionRow) -> None:
    error = refused(lambda: make_options(None, {row.name: "a\0b"}, SPECS, environ={}))
    assert error.option == row.name and "no NUL" in error.what


def test_a_wrong_option_is_refused_before_anything_is_traced() -> None:
    traced: list[int] = []

    def tanh(x: torch.Tensor) -> torch.Tensor:
        traced.append(1)
        return x

    mine = SimpleNamespace(litz_register_decompositions=hookimpl(lambda: {torch.ops.aten.tanh.default: tanh}))
    plugins = make_plugins(builtin_plugins(), extra=[*OWN, ("mine", mine)], entry_points=())
    options = {"collectives.memory_limit": "8GB!"}
    torch._dynamo.reset()
    f = torch.compile(
        lambda x: x.tanh(), backend=lambda gm, given: compile_backend(gm, given, options=options, plugins=plugins)
    )
    with pytest.raises(Exception, match=r"'collectives\.memory_limit' cannot be '8GB!'") as caught:
        f(torch.ones(3))
    assert "no size such as" in str(caught.value) and not traced


# ------------------------------------------------------------------------------------------------- a plugin's own check


def checking(check: Callable[[Any], object]) -> Any:
    spec = OptionSpec("tune", str, None, "a tune", check=check, accepts='a tune, as "waltz"')
    return SimpleNamespace(litz_register_options=hookimpl(lambda: [spec]))


def test_a_plugins_check_says_what_is_wrong() -> None:
    def check(text: str) -> None:
        if text != "waltz":
            raise ValueError("nobody dances that")

    plugins = make_plugins(builtin_plugins(), extra=[("mine", checking(check))], entry_points=())
    assert make_compiler(None, {"mine.tune": "waltz"}, plugins).options["mine.tune"] == "waltz"
    error = refused(lambda: make_compiler(None, {"mine.tune": "polka"}, plugins))
    assert str(error) == (
        "option 'mine.tune' cannot be 'polka': nobody dances that\n"
        "  where: options=\n"
        '  to do: give it a tune, as "waltz" or None'
    )


def test_a_check_that_fails_is_the_plugins_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(text: str) -> None:
        raise KeyError("oh no")

    def made(mode: Any) -> Any:
        plugins = make_plugins(
            builtin_plugins(), extra=[("mine", checking(broken))], entry_points=(), on_plugin_error=mode
        )
        return make_compiler(None, given, plugins)

    given = {"mine.tune": "waltz"}
    with pytest.raises(PluginHookError, match=r"plugin 'mine' failed in check of the option mine\.tune: KeyError"):
        made("raise")
    with (
        pytest.warns(PluginWarning, match=r"check of the option mine\.tune"),
        pytest.raises(UnknownOptionError, match="'mine' failed, and is left out"),
    ):
        made("disable")
    given = {}
    monkeypatch.setenv("LITZ_MINE_TUNE", "waltz")
    with pytest.warns(PluginWarning, match=r"check of the option mine\.tune"):
        assert "mine" not in made("disable").plugins.names()

"""Every setting of TorchInductor's has a row that says what litz has in its place; messages and page agree."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import click
import pytest
import torch
from website import from_inductor

from litz.cli.main import main
from litz.errors import InvalidOptionError, UnknownOptionError
from litz.options import core_options, make_options, plugin_option_rows
from litz.options.inductor_names import Equivalent, equivalents, in_litz, row_of
from litz_plugins import OptionSpec, hookspecs, make_plugins

KINDS = {"same", "different", "name", "plugin", "unneeded", "missing"}
SETTINGS = from_inductor.settings_by_version()
INSTALLED = ".".join(torch.__version__.split(".")[:2])
NOT_OPTIONS = {
    "library",
    "native",
    "triton",
    "exhaustive",
    "run_beside",
    "overlap",
    "lite",
    "trace.*",
    "dynamic_shapes",
}
"""Words of the rows that are values, passes and the like."""


@pytest.fixture(scope="module")
def options() -> set[str]:
    """The names of core's options and of the plugins' that are installed."""
    specs = make_plugins().option_specs()
    return {row.name for row in core_options()} | {row.name for row in plugin_option_rows(specs)}


def test_every_setting_of_the_installed_torch_has_a_row() -> None:
    unknown = sorted(name for name in from_inductor.settings_of_installed_torch() if row_of(name) is None)
    assert not unknown, "say in inductor_names.toml what litz has in place of these, or what one loses"


def test_every_setting_of_a_supported_torch_has_a_row() -> None:
    assert {version for versions in SETTINGS.values() for version in versions} >= {"2.11", "2.12", "2.13"}
    assert not sorted(name for name in SETTINGS if row_of(name) is None)


def test_the_list_of_settings_is_that_of_the_installed_torch() -> None:
    listed = {name for name, versions in SETTINGS.items() if INSTALLED in versions}
    assert listed == from_inductor.settings_of_installed_torch(), "python -m website.from_inductor --names"


def test_every_name_of_a_row_covers_a_setting() -> None:
    """A row that is behind one that takes all of its names covers nothing either."""
    names = [(row, each) for row in equivalents() for each in row.names]
    used = set()
    for setting in SETTINGS:
        row = row_of(setting)
        assert row is not None
        used.add((row, next(each for each in row.names if fnmatchcase(setting, each))))
    assert not [each for row, each in names if (row, each) not in used]


def test_the_first_row_that_fits_is_the_one_that_the_page_says_counts() -> None:
    for setting in SETTINGS:
        fits = [each for row in equivalents() for each in row.names if fnmatchcase(setting, each)]
        assert fits[0] == max(fits, key=lambda each: (each == setting, len(each))), (setting, fits)


def test_a_row_says_what_its_kind_needs() -> None:
    for row in equivalents():
        assert row.kind in KINDS, row
        assert bool(row.ours) == (row.kind not in ("unneeded", "missing")), row
        assert row.note or row.kind in ("same", "name", "plugin"), row
        assert not re.search(r"\]\(|[.;,]$", row.note), f"an error shows the note too: {row}"


def test_a_name_that_litz_has_too_is_said_to_mean_the_same_or_another_thing(options: set[str]) -> None:
    for name in options & {*SETTINGS}:
        row = row_of(name)
        assert row is not None and row.kind in ("same", "different"), name
        assert row.ours.startswith(f"`{name}`"), name
    for row in equivalents():
        if row.kind in ("same", "different"):
            assert {*row.names} <= options, f"{row.names} are said to be options of litz"
    text = (from_inductor.ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    section = text.partition("## Coming from TorchInductor")[2].partition("\n## ")[0]
    assert from_inductor.misleading() == {"debug", "memory_planning", "memory_pool"}
    assert all(f"`{name}`" in section for name in from_inductor.misleading())


def test_what_a_row_names_exists(options: set[str]) -> None:
    hooks = {name for name in vars(hookspecs) if name.startswith("litz_")}
    for row in equivalents():
        for word in re.findall(r"`([^`]+)`", f"{row.ours} {row.note}"):
            assert _exists(word, row, options, hooks), f"{row.names} names {word}, which litz does not have"


def _exists(word: str, row: Equivalent, options: set[str], hooks: set[str]) -> bool:
    if word.startswith("litz "):
        command: click.Command | None = main
        for part in word.split()[1:]:
            if part.startswith("-") or not isinstance(command, click.Group):
                break
            command = command.get_command(click.Context(command), part)
        return command is not None
    if word.startswith("litz_aot."):
        import litz_aot

        return hasattr(litz_aot, word.partition(".")[2])
    if word.startswith("torch."):
        return eval(word, {"torch": torch}) is not None
    if word in ("TORCH_LOGS", "NoValidChoicesError", "IndexRangeError") or word.startswith("mode="):
        return True
    return word in options or word in hooks or word in NOT_OPTIONS


def test_the_page_has_the_tables() -> None:
    page = from_inductor.PAGE.read_text(encoding="utf-8")
    assert {*re.findall(r"<!-- settings: (\w+) -->", page)} == {*from_inductor.tables()}
    assert page == from_inductor.with_tables(page), "python -m website.from_inductor --write"
    for row in equivalents():
        assert f"\n| {', '.join(f'`{name}`' for name in row.names)} | " in page, row.names


def test_a_row_that_is_changed_changes_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    page = from_inductor.PAGE.read_text(encoding="utf-8")
    monkeypatch.setattr(from_inductor, "equivalents", lambda: equivalents()[1:])
    assert page != from_inductor.with_tables(page)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("triton.cudagraphs", "litz's cuda_graphs"),
        ("shape_padding", "layout.pad"),
        ("coordinate_descent_tuning", "litz's max_autotune_pointwise"),
        ("search_autotune_cache", "litz's autotune.search_cache"),
        ("combo_kernels", "drop the option; litz needs no counterpart of TorchInductor's combo_kernels: the"),
        ("batch_invariant", "is litz's numerics.batch_invariant"),
        ("post_grad_custom_pre_pass", "write a plugin with the hook litz_register_passes"),
        ("rocm.arch", "needs a plugin with a target"),
        ("aot_inductor.package_cpp_only", "no C++ program can load a package"),
        ("cutlass.cutlass_dir", "litz_register_templates"),
        ("fusoin", "did you mean 'fusion'"),
    ],
)
def test_a_hint_does_not_mislead(name: str, says: str) -> None:
    with pytest.raises(UnknownOptionError) as caught:
        make_options(None, {name: True})
    assert says in str(caught.value) and "`" not in str(caught.value)
    assert "num_warps" not in str(caught.value) and "benchmark_kernels" not in str(caught.value)


def test_every_setting_that_litz_has_not_is_an_error_that_says_what_to_do(options: set[str]) -> None:
    for name in {*SETTINGS} - options:
        with pytest.raises(UnknownOptionError) as caught:
            make_options(None, {name: True})
        assert f"TorchInductor's {name}" in str(caught.value)
        assert "did you mean" not in str(caught.value)
    with pytest.raises(InvalidOptionError, match="memory_pool"):
        make_options(None, {"memory_pool": "intermediates"})


def test_a_misspelt_option_of_litz_is_not_taken_for_a_setting_of_inductors(options: set[str]) -> None:
    taken = []
    for name in options:
        wrong = {name + name[-1], *(name[:i] + name[i + 1 :] for i in range(1, len(name)))}
        taken += sorted(each for each in wrong - {*SETTINGS} if in_litz(each))
    assert not taken


def test_a_plugin_with_the_name_of_a_family_keeps_its_own_hints() -> None:
    specs = [OptionSpec("rocm.schedule", str, "", "how a device's kernels are scheduled")]
    with pytest.raises(UnknownOptionError, match=r"did you mean 'rocm\.schedule'"):
        make_options(None, {"rocm.shedule": "x"}, specs)
    with pytest.raises(UnknownOptionError, match="repair it") as caught:
        make_options(None, {"rocm.schedule": "x"}, missing={"rocm": "repair it"})
    assert "TorchInductor" not in str(caught.value)

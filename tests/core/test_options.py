"""Options: precedence, types, names, and what is part of the cache key."""

import dataclasses
import pickle
import re
import sys
from pathlib import Path

import pytest

from litz.errors import InvalidOptionError, UnknownOptionError
from litz.options import (
    MODES,
    Options,
    core_options,
    default_cache_dir,
    make_options,
    make_plugin_settings,
    plugin_option_rows,
)
from litz_plugins import OptionSpec, OptionsView

SPECS = (
    OptionSpec("autotune.seconds", float, 1.5, "time to measure for"),
    OptionSpec("autotune.space", str, "small", "what to try", ("small", "large")),
    OptionSpec("collectives.log", Path, None, "file to write to"),
    OptionSpec("collectives.groups", tuple, (), "groups to bucket"),
)


def make(mode=None, options=None, specs=(), **environ):
    return make_options(mode, options, specs, environ)


# ----------------------------------------------------------------------------------------------------------- precedence


def test_defaults_need_nothing():
    options = make()
    assert options.mode == "default" and options.fusion and not options.cuda_graphs
    assert options.cache_dir == default_cache_dir()
    assert options == make()
    assert options == Options()


def test_options_over_environment_over_mode_over_default():
    assert make().cuda_graphs is False
    assert make("reduce-overhead").cuda_graphs is True
    assert make("reduce-overhead", LITZ_CUDA_GRAPHS="0").cuda_graphs is False
    assert make("reduce-overhead", {"cuda_graphs": True}, LITZ_CUDA_GRAPHS="0").cuda_graphs is True


def test_what_a_plugins_option_implies_is_over_the_mode_and_under_what_the_user_sets():
    implies = {"exact": {"fallback_random": True, "cuda_graphs": False}}
    spec = OptionSpec("numbers.mode", str, "usual", "whose numbers", ("usual", "exact"), implies=implies)
    exact = {"numbers.mode": "exact"}
    assert not make(specs=[spec]).fallback_random
    assert make(None, exact, [spec]).fallback_random
    assert not make("reduce-overhead", exact, [spec]).cuda_graphs
    assert not make(None, {**exact, "fallback_random": False}, [spec]).fallback_random
    assert not make(None, exact, [spec], LITZ_FALLBACK_RANDOM="0").fallback_random
    assert make(None, None, [spec], LITZ_NUMBERS_MODE="exact").fallback_random
    with pytest.raises(ValueError, match="none of its choices"):
        OptionSpec("mode", str, "usual", "whose numbers", ("usual",), implies=implies)


@pytest.mark.parametrize(
    ("mode", "graphs", "autotune"),
    [
        ("default", False, False),
        ("reduce-overhead", True, False),
        ("max-autotune", True, True),
        ("max-autotune-no-cudagraphs", False, True),
    ],
)
def test_modes(mode, graphs, autotune):
    options = make(mode)
    assert (options.mode, options.cuda_graphs, options.max_autotune) == (mode, graphs, autotune)
    assert make(None, {"mode": mode}) == options
    assert make(None, LITZ_MODE=mode) == options


def test_an_unknown_mode():
    with pytest.raises(InvalidOptionError, match="reduce-overhead"):
        make("faster")


def test_the_process_environment_is_read(monkeypatch):
    monkeypatch.setenv("LITZ_DEBUG", "1")
    assert make_options().debug is True


# ---------------------------------------------------------------------------------------------------------------- types


@pytest.mark.parametrize("text", ["1", "true", "YES", "on"])
def test_words_for_true(text):
    assert make(LITZ_DEBUG=text).debug is True


@pytest.mark.parametrize("text", ["0", "False", "no", "OFF"])
def test_words_for_false(text):
    assert make(LITZ_FUSION=text).fusion is False


def test_an_empty_variable_is_unset():
    assert make(LITZ_FUSION="").fusion is True


@pytest.mark.parametrize(
    ("option", "value", "accepted"),
    [
        ("debug", 1, "True or False"),
        ("debug", "yes", "True or False"),
        ("debug", None, "True or False"),
        ("threads", 0, "1 or more"),
        ("threads", True, "a whole number"),
        ("threads", 2.0, "a whole number"),
        ("fallback", "retry", "one of error, eager"),
        ("cache_dir", 3, "a path"),
        ("disable_plugins", 3, "a list of strings"),
        ("disable_plugins", (1, 2), "a list of strings"),
        ("cpp.march", None, "a word that the compiler takes"),
        ("cpp.compiler", 3, "a string"),
        ("sizes", (16, 0), "a list of whole numbers (or a string of them, with commas), 1 or more"),
        ("sizes", "16, many", "a list of whole numbers"),
        ("sizes", [True], "a list of whole numbers"),
    ],
)
def test_a_wrong_value_says_what_is_accepted(option, value, accepted):
    with pytest.raises(InvalidOptionError) as error:
        make(None, {option: value})
    assert accepted in str(error.value) and option in str(error.value) and repr(value) in str(error.value)


@pytest.mark.parametrize("given", [[16, 64], (16, 64), "16,64", " 16, 64 "])
def test_lists_of_numbers(given):
    assert make(None, {"sizes": given}).sizes == (16, 64) and make(None, {"sizes": 16}).sizes == (16,)
    assert make(LITZ_SIZES="16, 64").sizes == (16, 64) and make().sizes == ()


@pytest.mark.parametrize(("variable", "text"), [("LITZ_DEBUG", "maybe"), ("LITZ_BUILD_WORKERS", "many")])
def test_a_wrong_variable_is_named(variable, text):
    with pytest.raises(InvalidOptionError, match=variable):
        make(**{variable: text})


def test_paths():
    assert make(None, {"cache_dir": "~/x"}).cache_dir == Path.home() / "x"
    assert make(None, {"cache_dir": Path("/x")}).cache_dir == Path("/x")
    assert make(LITZ_REPORT_DIR="/r").report_dir == Path("/r")
    assert make().report_dir is None


def test_lists():
    assert make(LITZ_DISABLE_PLUGINS="a, b,").disable_plugins == ("a", "b")
    assert make(None, {"disable_plugins": ["b", "a"]}).disable_plugins == ("b", "a")
    assert make(None, {"disable_plugins": {"b", "a"}}).disable_plugins == ("a", "b")


def test_numbers_that_may_be_none():
    assert make(LITZ_BUILD_WORKERS="3").threads == 3
    assert make(None, {"threads": None}, LITZ_BUILD_WORKERS="3").threads is None
    assert make(LITZ_BUILD_WORKERS="none").threads is None


def test_the_compiler_comes_from_cxx_unless_litz_has_its_own():
    assert make().cpp_compiler is None
    assert make(CXX="clang++").cpp_compiler == "clang++"
    assert make(CXX="clang++", LITZ_CXX="g++-13").cpp_compiler == "g++-13"


# ---------------------------------------------------------------------------------------------------------------- names


def test_dots_are_underscores_in_attributes():
    options = make(None, {"cpp.march": "x86-64-v3"})
    assert options.cpp_march == options["cpp.march"] == options.get("cpp.march") == "x86-64-v3"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("fusoin", "fusion"), ("cpp_march", "cpp.march"), ("cpp.compilr", "cpp.compiler")],
)
def test_an_unknown_option_suggests_the_nearest(wrong, right):
    with pytest.raises(UnknownOptionError, match=f"did you mean '{right}'") as error:
        make(None, {wrong: 1})
    assert error.value.suggestion == right


def test_an_option_of_a_plugin_that_is_not_there():
    with pytest.raises(
        UnknownOptionError,
        match=r"'autotune' is not installed: `pip install \./plugins_autotune` in a checkout of litz; or drop",
    ):
        make(None, {"autotune.seconds": 2.0})
    with pytest.raises(UnknownOptionError, match="plugin 'autotune' is not installed"):
        make(None, {"autotun.seconds": 2.0})
    with pytest.raises(UnknownOptionError, match="no installed plugin is called 'gentle'"):
        make(None, {"gentle.level": 2})
    with pytest.raises(UnknownOptionError, match="'autotune' failed, it did; or drop"):
        make_options(None, {"autotune.seconds": 2.0}, missing={"autotune": "its plugin 'autotune' failed, it did"})


def test_a_misspelt_option_of_a_plugin_that_is_there():
    with pytest.raises(UnknownOptionError, match=r"did you mean 'autotune\.seconds'"):
        make(None, {"autotune.second": 2.0}, SPECS)


def test_a_misspelt_variable_warns():
    with pytest.warns(UserWarning, match="did you mean LITZ_CACHE_DIR"):
        make(LITZ_CACHEDIR="/x")


def test_variables_of_others_do_not_warn(recwarn):
    make(LITZ_SOMETHING_ELSE_ENTIRELY="1", HOME="/root")
    assert not recwarn.list


def test_asking_for_an_option_that_is_not_there():
    with pytest.raises(KeyError, match="did you mean 'fusion'"):
        make()["fusoin"]
    assert make().get("absent.option") is None
    assert make().get("absent.option", 3) == 3


# -------------------------------------------------------------------------------------------------------------- plugins


def test_plugin_options():
    options = make(None, {"autotune.seconds": 3, "collectives.groups": ["a"]}, SPECS, LITZ_AUTOTUNE_SPACE="large")
    assert options["autotune.seconds"] == 3.0 and isinstance(options["autotune.seconds"], float)
    assert options["autotune.space"] == "large"
    assert options["collectives.log"] is None
    assert options.get("collectives.groups") == ("a",)
    with pytest.raises(InvalidOptionError, match="one of small, large"):
        make(None, {"autotune.space": "huge"}, SPECS)


def test_plugin_settings_come_before_plugins():
    settings = make_plugin_settings({"on_plugin_error": "disable", "unknown": 1}, {"LITZ_DISABLE_PLUGINS": "a"})
    assert (settings.disable, settings.on_error) == (("a",), "disable")
    with pytest.raises(InvalidOptionError):
        make_plugin_settings({"on_plugin_error": "ignore"}, {})


# ---------------------------------------------------------------------------------------------------------- as a value


def test_options_are_frozen_hashable_and_picklable():
    options = make(None, {"autotune.seconds": 3}, SPECS)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.fusion = False
    assert hash(options) == hash(make(None, {"autotune.seconds": 3}, SPECS))
    assert pickle.loads(pickle.dumps(options)) == options
    view: OptionsView = options
    assert view["autotune.seconds"] == 3


def test_cache_dir_without_platformdirs(monkeypatch):
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert default_cache_dir() == Path.home() / ".cache" / "litz"


# ------------------------------------------------------------------------------------------------------------ the table


def test_every_option_is_documented_and_has_a_variable():
    rows = core_options()
    assert len({row.name for row in rows}) == len(rows)
    variables = [variable for row in rows for variable in row.env]
    assert len(set(variables)) == len(variables), "one variable, one option"
    for row in rows:
        assert row.help and row.env and row.accepted
        assert row.attribute == row.name.replace(".", "_")


def test_every_mode_sets_options_that_exist():
    names = {row.name for row in core_options()}
    assert all(set(preset) <= names for preset in MODES.values())


def test_plugin_rows_say_how_to_set_them():
    (row,) = plugin_option_rows(SPECS[:1])
    assert row.env == ("LITZ_AUTOTUNE_SECONDS",) and row.accepted == "a number"


def test_only_options_reads_the_environment():
    """Of litz's packages; the command line, tests and their fixtures are theirs to run in."""
    root = Path(__file__).parents[2]
    sources = [p for p in root.glob("core/src/litz/**/*.py") if p.name != "table.py" and "cli" not in p.parts]
    sources += [p for p in root.glob("plugins*/src/**/*.py") if p.name != "pytest_plugin.py"]
    sources += root.glob("testing/src/**/*.py")
    reading = re.compile(r"\bos\.environ|\bgetenv|\benviron\b(?!ment)")
    offenders = [str(p.relative_to(root)) for p in sources if reading.search(p.read_text())]
    assert not offenders


def test_a_wrong_choice_is_the_users_and_names_the_nearest() -> None:
    """Of every option of core's and of a plugin's that has choices, alone or in a list; by option and by variable."""
    own = OptionSpec("kinds", tuple, ("fast",), "kinds", choices=("fast", "slow"))
    specs = [dataclasses.replace(own, name="mine.kinds")]
    rows = [row for row in (*core_options(), *plugin_option_rows(specs)) if row.choices and row.type in (str, tuple)]
    assert {"mode", "mine.kinds"} < {row.name for row in rows}
    for row in rows:
        assert row.choices is not None
        typo = str(row.choices[0]) + "s"
        environ = {} if row.name == "mode" else {row.env[0]: typo}
        for given, variables in (({row.name: typo}, {}), ({}, environ)):
            if not given and not variables:
                continue
            with pytest.raises(InvalidOptionError) as raised:
                make_options(None, given, specs, variables)
            assert raised.value.suggestion in row.choices and repr(raised.value.suggestion) in str(raised.value)
            assert raised.value.option == row.name and str(row.choices[-1]) in raised.value.accepted
    assert make_options(None, {"mine.kinds": "slow,fast"}, specs, {})["mine.kinds"] == ("slow", "fast")
    with pytest.raises(ValueError, match="none of its choices"):
        OptionSpec("kinds", tuple, ("other",), "kinds", choices=("fast", "slow"))

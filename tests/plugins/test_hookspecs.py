"""A hook that is not documented, typed and reachable through `Plugins` fails the build."""

import inspect
import re
from pathlib import Path

import pytest

import litz_plugins
from litz_plugins import Plugins, hookspecs
from litz_plugins.validate import HOOKS

OBSERVERS = {"litz_compile_started", "litz_pass_finished", "litz_compile_finished"}


@pytest.mark.parametrize("hook", sorted(HOOKS))
def test_hook_is_documented(hook):
    spec = getattr(hookspecs, hook)
    text = inspect.getdoc(spec)
    assert "Since 0." in text, "since which version?"
    assert "Called:" in text, "when, and how often?"
    assert "Combined:" in text, "how do results combine?"
    for parameter in inspect.signature(spec).parameters:
        assert re.search(rf"\b{parameter}\b[^:\n]*:", text), f"what is {parameter}?"
    if hook not in OBSERVERS:
        assert "Returns:" in text and "None" in text, "what does it return, and what does None mean?"


@pytest.mark.parametrize("hook", sorted(HOOKS))
def test_hook_is_typed_and_has_no_defaults(hook):
    signature = inspect.signature(getattr(hookspecs, hook))
    assert signature.return_annotation is not signature.empty
    for parameter in signature.parameters.values():
        assert parameter.annotation is not parameter.empty
        assert parameter.default is parameter.empty


@pytest.mark.parametrize("hook", sorted(HOOKS))
def test_hook_has_a_method(hook):
    """Whoever adds a hook must say how its results combine."""
    source = inspect.getsource(Plugins)
    assert f'"{hook}"' in source


def test_the_hooks_are_those_of_the_design():
    assert set(HOOKS) == {
        "litz_register_options",
        "litz_register_decompositions",
        "litz_register_lowerings",
        "litz_register_passes",
        "litz_register_templates",
        "litz_register_layout_needs",
        "litz_register_targets",
        "litz_register_commands",
        "litz_narrow",
        "litz_estimate_runtime",
        "litz_select_choice",
        "litz_select_layout",
        "litz_tune",
        "litz_partition",
        "litz_cache_fingerprint",
        "litz_wrap_entry",
        "litz_find_graph",
        "litz_keep_graph",
        "litz_select_exporter",
        "litz_select_saver",
        "litz_watch_graph",
        "litz_compile_failed",
        *OBSERVERS,
    }


def test_importing_the_api_loads_neither_litz_nor_torch():
    from support.third_party import run_python

    code = "import sys, litz_plugins.testing; print([m for m in ('torch', 'litz', 'triton') if m in sys.modules])"
    assert run_python("-c", code, warm=False).stdout.strip() == "[]"


def test_everything_exported_exists_and_the_package_is_typed():
    assert all(hasattr(litz_plugins, name) for name in litz_plugins.__all__)
    assert (Path(litz_plugins.__file__).parent / "py.typed").exists()

"""The plugin's hook: when it wraps, what it imports, and what is said where its dist is missing."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from litz.driver import unused_options as idle
from litz.options import MODES, make_options
from litz_cudagraphs import plugin
from litz_plugins import Entry, EntryFacts, OptionsView, hookimpl, make_plugins
from support.warm import run_warm

ON_GPU = EntryFacts("graph0", devices=("cuda:0",))


def entry(args: list[object]) -> tuple[object, ...]:
    return tuple(args)


@pytest.mark.parametrize("mode", MODES)
def test_the_modes_that_ask_for_recordings_get_them(mode: str) -> None:
    plugins, options = make_plugins(extra=[("cudagraphs", plugin)], entry_points=()), make_options(mode)
    assert (plugins.wrap_entry(entry, ON_GPU, options) is not entry) == options.cuda_graphs
    assert plugins.wrap_entry(entry, EntryFacts(obstacle="it is on a CPU"), options) is entry


def test_others_wrap_around_recordings() -> None:
    class First:
        @hookimpl
        def litz_wrap_entry(self, entry: Entry, facts: EntryFacts, options: OptionsView) -> Entry:
            return lambda args: entry(args)

    plugins = make_plugins(extra=[("a", First()), ("cudagraphs", plugin)], entry_points=())
    made = plugins.wrap_entry(entry, ON_GPU, make_options("reduce-overhead"))
    inside = made.__closure__[0].cell_contents  # type: ignore[attr-defined]
    assert type(inside).__name__ == "_Replayer" and inside.entry is entry


IMPORTED = """
import sys
from litz_cudagraphs import plugin
assert "litz_cudagraphs.recordings" not in sys.modules, "only where something is recorded"
from litz.options import make_options
from litz_plugins import EntryFacts
assert plugin.litz_wrap_entry(print, EntryFacts(), make_options("reduce-overhead")) is not print
known = ("litz.lower", "litz.schedule", "litz.ir", "litz.targets", "litz.codegen", "litz.pipeline")
print([name for name in sys.modules if name.startswith(known)])
"""


def test_a_graph_from_the_cache_is_recorded_without_the_compiler(tmp_path: Path) -> None:
    script = tmp_path / "imported.py"
    script.write_text(IMPORTED)
    done = run_warm([str(script)])
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_without_the_dist_what_to_install_is_said_once() -> None:
    idle.warn_once.cache_clear()
    none, there = make_plugins(entry_points=()), make_plugins(extra=[("cudagraphs", plugin)], entry_points=())
    asked = make_options("reduce-overhead")
    with pytest.warns(UserWarning, match="cuda_graphs records nothing here: .*pip install ./plugins_cudagraphs"):
        (note,) = idle.recorder_notes("graph0", asked, ON_GPU, none)
    assert note.chosen == "no CUDA graph" and "pip install ./plugins_cudagraphs" in note.reason
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once in a process
        assert idle.recorder_notes("graph1", asked, ON_GPU, none)
        assert not idle.recorder_notes("graph0", asked, ON_GPU, there)
        assert not idle.recorder_notes("graph0", make_options(), ON_GPU, none)
        assert not idle.recorder_notes("graph0", asked, EntryFacts(obstacle="a CPU", devices=("cpu",)), none)


def test_a_plugin_that_is_left_out_is_not_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    idle.warn_once.cache_clear()
    with pytest.warns(UserWarning, match="is left out by LITZ_DISABLE_PLUGINS"):
        (note,) = idle.recorder_notes(
            "graph0", make_options("max-autotune"), ON_GPU, make_plugins(disable=["cudagraphs"])
        )
    assert "pip install" not in note.reason

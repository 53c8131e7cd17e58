"""What was asked for and has nothing to do is said: by core, by litz-autotune, and in reports without times."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

from litz.backend import litz
from litz.driver import unused_options as idle
from litz.options import make_options
from litz.report import collect
from litz.target import target_of
from litz_plugins import Decision, Target, hookimpl, make_plugins
from litz_tools.groups import considered_text


class Tunes:
    @hookimpl
    def litz_tune(self, tuning: object) -> None:
        return None


def targets(*types: str) -> list[Target]:
    return [target_of(type) for type in types]


def notes(mode: str, devices: set[str], tunes: bool) -> list[str]:
    plugins = make_plugins(extra=[("tunes", Tunes())] if tunes else (), entry_points=())
    return [note.chosen for note in idle.idle_notes("graph0", make_options(mode), targets(*devices), plugins)]


def test_files_of_kernels_need_litz_tools() -> None:
    idle.warn_once.cache_clear()
    options = make_options(None, {"benchmark_kernels": True})
    with pytest.warns(UserWarning, match="benchmark_kernels writes nothing here: .*pip install ./plugins_tools"):
        (note,) = idle.idle_notes("graph0", options, targets("cpu"), make_plugins(entry_points=()))
    assert note.chosen == "no files of kernels" and "pip install ./plugins_tools" in note.reason
    there = make_plugins(extra=[("tools", Tunes())], entry_points=())
    assert idle.idle_notes("graph0", options, targets("cpu"), there) == []


def test_modes_with_nothing_to_do_say_so() -> None:
    idle.warn_once.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert notes("default", {"cpu"}, False) == notes("max-autotune", {"cpu", "cuda"}, True) == []
        assert notes("reduce-overhead", {"cpu"}, False) == ["no CUDA graphs"]
        vendor = replace(target_of("cuda"), type="xpu")  # what a device can do decides, not what it is called
        asked, plugins = make_options("reduce-overhead"), make_plugins(entry_points=())
        assert not idle.idle_notes("graph0", asked, [vendor], plugins)
        less = replace(vendor, abilities=vendor.abilities - {"recording"})
        assert "runs on xpu" in idle.idle_notes("graph0", asked, [less], plugins)[0].reason
    with pytest.warns(UserWarning, match="pip install ./plugins_autotune` in a checkout"):
        assert notes("max-autotune-no-cudagraphs", {"cuda"}, False) == ["nothing measured"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once in a process
        assert notes("max-autotune-no-cudagraphs", {"cuda"}, False) == ["nothing measured"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is something to measure on")
def test_autotune_says_that_a_cpu_has_nothing_to_measure() -> None:
    idle.warn_once.cache_clear()
    torch._dynamo.reset()
    options = {"mode": "max-autotune", "graph_cache": False, "autotune.local_cache": False}
    with collect() as reports, pytest.warns(UserWarning, match="nothing to measure on this CPU"):
        torch.compile(lambda a, b: (a @ b).relu(), backend=litz, options=options)(torch.ones(8, 8), torch.ones(8, 8))
    found = {(d.chosen, d.plugin) for d in reports[0].decisions}
    assert {("nothing measured", "autotune"), ("no CUDA graphs", "core")} <= found


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is something to measure on")
@pytest.mark.parametrize("options", [{"max_autotune_gemm": True}, {"max_autotune_pointwise": True}], ids=str)
def test_autotune_says_so_whichever_option_asks(options: dict[str, bool]) -> None:
    """At the first graph, and once."""
    idle.warn_once.cache_clear()
    given = {"graph_cache": False, "autotune.local_cache": False, **options}
    (name,) = options

    def run(size: int) -> set[tuple[str, str]]:
        torch._dynamo.reset()
        with collect() as reports:
            torch.compile(lambda a, b: (a @ b).relu(), backend=litz, options=given)(*2 * (torch.ones(size, size),))
        return {(d.chosen, d.plugin) for d in reports[0].decisions}

    with pytest.warns(UserWarning, match=f"{name} measured nothing: on a CPU"):
        assert ("nothing measured", "autotune") in run(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ("nothing measured", "autotune") in run(9)


def test_what_was_weighed_without_times_is_in_shares() -> None:
    decision = Decision("schedule", "a and b", "fused", "why", (("apart", 40.0), ("fused", 10.0), ("other", None)))
    assert considered_text(decision) == "a and b: apart 40 µs, fused 10 µs, other ?"
    assert considered_text(decision, timed=False) == "a and b: apart 100%, fused 25%, other ?"
    nothing = Decision("schedule", "a", "fused", "why", (("apart", 0.0), ("fused", 0.0)))
    assert considered_text(nothing, timed=False) == "a: apart ?, fused ?"

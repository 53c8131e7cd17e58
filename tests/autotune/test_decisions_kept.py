"""Tuned decisions and the graph cache: no graph that is found is one that was not tuned where a tuned one is known."""

from pathlib import Path

import pytest
import torch

from litz import graph_cache, pipeline
from litz import report as reports
from litz.driver.builtin import builtin_plugins
from litz.runtime.background import wait
from litz_autotune import Autotune
from litz_plugins.manager import make_plugins
from support.cost_models import BytesAlone
from support.fake_timer import FakeTimer
from support.own_plugins import CONTRACTIONS
from support.third_party import run_python

OTHERWISE = (("otherwise", 50.0),)
"""Whatever is tried is twice as fast."""


def again_and_again(x, w):
    """The row is expensive, and read by 256 others."""
    row = (torch.erf(torch.log1p(x.exp())).tanh() + torch.sin(x).exp()).atan()
    return w * row


X, W = torch.rand(1024), torch.rand(256, 1024)


class Runs:
    """One compile after the other, each as in a process of its own."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, tune=True, timer=None, **options):
        """What the graph cache said; the report is `self.report`."""
        torch._dynamo.reset()
        graph_cache.forget()
        self.timer = timer or FakeTimer(OTHERWISE)
        extra = [CONTRACTIONS, ("autotune", Autotune(self.timer)), ("cheap", BytesAlone())]
        plugins = make_plugins(builtin_plugins(), extra=extra, entry_points=())
        given = {"max_autotune": tune, "cache_dir": self.folder, "graph_cache": True, "cpp.qualify": False}
        given |= {name.replace("__", "."): value for name, value in options.items()}

        def backend(gm, inputs):
            return pipeline.compile_backend(gm, inputs, options=given, plugins=plugins)

        self.fn = torch.compile(again_and_again, backend=backend, dynamic=False)
        with reports.collect() as collected:
            found = self.fn(X, W)
        torch.testing.assert_close(found, again_and_again(X, W), rtol=1e-5, atol=1e-6)
        (self.report,) = collected
        return self.report.graph_cache.partition(" ")[0]

    @property
    def sources(self):
        return dict(self.report.kernel_sources)


@pytest.fixture
def run(tmp_path):
    return Runs(tmp_path)


def test_what_was_tuned_is_found_and_nothing_else_by_who_tunes(run):
    assert run(tune=False) == "miss"
    plain = run.sources
    assert run() == "miss", "a graph that was not tuned is no graph that was"
    tuned = run.sources
    assert run.timer.calls and tuned != plain
    assert run() == "hit" and run.sources == tuned and not run.timer.calls
    assert run.report.weighed and "prefer=" in run.report.attachments["decisions measured.txt"]
    assert run(tune=False) == "hit" and run.sources == plain, "variants that were measured have not taken its place"


def test_who_takes_what_is_known_finds_no_graph_from_before_it_was(run):
    known = {"tune": False, "autotune__search_cache": True}
    assert run(**known) == "miss"
    plain = run.sources
    assert run(**known) == "hit"
    run()
    tuned = run.sources
    assert run(**known) == "miss" and run.sources == tuned != plain
    assert run(**known) == "hit" and run.sources == tuned


def test_what_is_not_all_measured_is_not_kept(run):
    assert run(autotune__budget_s=0.0) == "not"
    assert "the budget was spent" in run.report.graph_cache
    assert run(autotune__budget_s=0.0) == "not", "the next process goes on"
    assert run(veto=("fuse",)) == "not"
    assert run() == "miss" and run.timer.calls
    assert run() == "hit"


def test_what_is_tuned_in_the_background_is_found_once_it_is_known(run):
    background = {"autotune__background": True}
    assert run(**background) == "not"
    plain = run.sources
    assert "in the background" in run.report.graph_cache
    assert wait(300) and run.timer.calls
    assert run(**background) == "miss" and run.sources != plain
    assert not run.timer.calls
    tuned = run.sources
    assert run(**background) == "hit" and run.sources == tuned


def test_preferences_are_part_of_the_key(run):
    assert run(tune=False) == "miss"
    key = next(key.partition(":")[2] for key in run.report.weighed if ":inline_pointwise/" in key)
    plain = run.sources
    prefer = (f"{key}=no",)
    assert run(tune=False, prefer=prefer) == "miss" and run.sources != plain
    other = run.sources
    assert run(tune=False, prefer=prefer) == "hit" and run.sources == other
    assert run(tune=False) == "hit" and run.sources == plain


SCRIPT = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from litz.report import collect
from litz_autotune.plugin import plugin
from support.fake_timer import FakeTimer

plugin._first.timer = plugin.timer = timer = FakeTimer((("otherwise", 50.0),))

def f(x, w):
    row = (torch.erf(torch.log1p(x.exp())).tanh() + torch.sin(x).exp()).atan()
    return w * row + w.sum(1, keepdim=True), row.exp() - w, torch.softmax(w, 1)

x, w = torch.rand(1024), torch.rand(256, 1024)
with collect() as reports:
    found = torch.compile(f, backend="litz", mode=sys.argv[2] if sys.argv[2] != "-" else None)(x, w)
torch.testing.assert_close(found, f(x, w), rtol=1e-4, atol=1e-5)
(report,) = reports
print(report.graph_cache.split()[0], len(timer.calls), report.wrapper_source.count("kernel"), len(report.steps))
"""


@pytest.mark.nightly
def test_another_process_finds_what_one_has_tuned(tmp_path):
    def say(mode):
        tests = str(Path(__file__).parents[1])
        done = run_python(
            "-c", SCRIPT, tests, mode, children=True, imported=True, LITZ_CACHE_DIR=str(tmp_path), LITZ_GRAPH_CACHE="1"
        )
        assert done.returncode == 0, done.stderr
        cache, calls, *rest = done.stdout.split()
        return cache, int(calls), rest

    plain = say("-")
    assert plain[:2] == ("miss", 0)
    cache, calls, tuned = say("max-autotune")
    assert cache == "miss" and calls and tuned != plain[2]
    assert say("max-autotune") == ("hit", 0, tuned)
    assert say("-") == ("hit", 0, plain[2])

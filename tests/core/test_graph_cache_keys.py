"""The graph cache: what changes its keys, so that nothing that has changed is found; and what says why one missed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch

from litz import pipeline
from litz_plugins import Pass, Plugins, Uncacheable, hookimpl
from litz_plugins.loading import Source
from litz_tools import cache_misses as explain
from litz_tools.device_file import Measured, write_file
from support.graph_cache import Guarding, Runs, called_with, of_product, product, with_plugin


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    with torch._functorch.config.patch(enable_autograd_cache=False):  # else graphs are found before litz has one
        yield


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def missed(runs: Runs, *call: Any, **more: Any) -> bool:
    runs.run(*call, **more)
    return "hit" not in runs.said


def test_another_dtype_stride_or_requirement_misses(runs: Runs) -> None:
    x, w = torch.randn(8, 16), torch.randn(16, 4)
    runs.run(called_with(x, w), product)
    assert missed(runs, called_with(x.double(), w.double()), product)
    assert missed(runs, called_with(x.t().contiguous().t(), w), product)
    assert missed(runs, called_with(x, w.requires_grad_()), product)
    w.requires_grad_(False)
    runs.run(called_with(x, w), product)
    assert runs.said == ["hit"]


def test_another_constant_misses(runs: Runs) -> None:
    def scaled(number: float) -> Any:
        return lambda x: x @ torch.tensor([[1.0, number], [0.0, 2.0]]) * number

    x = torch.randn(4, 2)
    runs.run(called_with(x), scaled(1.5))
    found = runs.run(called_with(x), scaled(2.5))
    assert runs.said == ["miss"]
    torch.testing.assert_close(found[0], scaled(2.5)(x))


OPTIONS: tuple[dict[str, Any], ...] = (
    *({"fusion": False}, {"max_fusion_size": 1}, {"memory_pool": False}, {"veto": ["fuse"]}, {"sizes": [64]}),
)


def test_another_option_misses(runs: Runs) -> None:
    """Of those before it, too."""
    runs.run(of_product(), product)
    for options in OPTIONS:
        assert missed(runs, of_product(), product, **options), options
        assert not missed(runs, of_product(), product, **options), options


def test_options_that_change_no_code_hit(runs: Runs, tmp_path: Path) -> None:
    runs.run(of_product(), product)
    assert not missed(runs, of_product(), product, threads=1, report_dir=tmp_path / "reports", fallback="eager")


OTHERWISE: dict[str, Any] = {
    "torch.__version__": "9.9",
    "litz.targets.cpp.build.cpu_flags": lambda: "fpu vme",
    "litz.targets.cpp.build.FLAGS": ("-O0", "-shared", "-fPIC", "-w"),
    "litz.graph_cache.fingerprints.version_of": lambda dist: "9.9",
    "litz.graph_cache.fingerprints.sources_digest": lambda folder: "edited",
    "litz.graph_cache.fingerprints.FORMAT": 99,
    "torch.get_num_threads": lambda: 64,
}


def test_another_machine_or_version_misses(runs: Runs) -> None:
    from litz.graph_cache import fingerprints
    from litz.targets.cpp import build as cpp_build

    runs.run(of_product(), product)
    for path, value in OTHERWISE.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(path, value)
            if path.startswith("torch.get"):
                patch.setitem(fingerprints._TORCH_SETTINGS, "num_threads", value)
            cpp_build.command.cache_clear()
            assert missed(runs, of_product(), product), path
    cpp_build.command.cache_clear()
    assert not missed(runs, of_product(), product)


def test_another_compiler_misses(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from litz.runtime.cpp_compiler import find_compiler

    other = tmp_path / "g++-other"
    other.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "g++ 99.1" && exit\nexec {find_compiler().words[0]} "$@"\n'
    )
    other.chmod(0o755)
    runs.run(of_product(), product)
    assert missed(runs, of_product(), product, cpp__compiler=str(other))


def test_torchs_settings_miss(runs: Runs) -> None:
    runs.run(of_product(), product)
    torch.use_deterministic_algorithms(True)
    try:
        assert missed(runs, of_product(), product)
    finally:
        torch.use_deterministic_algorithms(False)


def test_another_calibration_misses(runs: Runs, tmp_path: Path) -> None:
    """By its figures: the same file under another name is the same."""
    one, same, other = (tmp_path / f"{name}.toml" for name in ("one", "same", "other"))
    for path, bandwidth in ((one, 20.0), (same, 20.0), (other, 30.0)):
        write_file(path, "cpu", "", [Measured("measured", {"bandwidth_gb_s": bandwidth}, "a test", "", "")])
    runs.run(of_product(), product, calibration=one)
    assert missed(runs, of_product(), product, calibration=other)
    assert missed(runs, of_product(), product)
    assert not missed(runs, of_product(), product, calibration=one)


# Plugins.


def test_a_plugin_that_says_something_else_misses(tmp_path: Path) -> None:
    runs = Runs(tmp_path, with_plugin(Guarding(says="one")))
    runs.run(of_product(), product)
    runs.plugins = with_plugin(Guarding(says="one"))
    assert not missed(runs, of_product(), product)
    runs.plugins = with_plugin(Guarding(says="two"))
    assert missed(runs, of_product(), product)


def test_a_plugin_may_say_that_nothing_is_to_be_kept(tmp_path: Path) -> None:
    runs = Runs(tmp_path, with_plugin(Guarding(says=Uncacheable("it rolls dice"))))
    for _ in range(2):
        runs.run(of_product(), product)
        assert runs.said == ["not"] and "it rolls dice" in runs.reports[0].graph_cache
    assert not runs.entries()


def test_an_object_that_says_nothing_is_not_trusted(tmp_path: Path) -> None:
    class Silent:
        @hookimpl
        def litz_register_passes(self, options: Any) -> list[Pass]:
            return []

    class Watching:
        @hookimpl
        def litz_compile_finished(self, report: Any) -> None:
            pass

    runs = Runs(tmp_path, with_plugin(Silent()))
    runs.run(of_product(), product)
    assert "litz_cache_fingerprint" in runs.reports[0].graph_cache
    runs.plugins = with_plugin(Watching())
    runs.run(of_product(), product)
    assert runs.said == ["miss"], "who only watches is in no key"


def test_every_file_of_a_package_that_was_passed_in_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a test hands in the plugin that it is about, which may have changed since the last run."""
    from litz.graph_cache.fingerprints import plugin_sources, sources_digest

    (tmp_path / "handed_in").mkdir()
    files = [tmp_path / "handed_in" / name for name in ("__init__.py", "rules.py")]
    for file in files:
        file.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    source = Source("handed_in", importlib.import_module("handed_in"), "external")
    before = plugin_sources(source)
    files[1].write_text("NEW = 1")
    sources_digest.cache_clear()  # read once a process
    assert plugin_sources(source) != before


def test_another_target_of_an_entry_point_is_another_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """One file may hold two plugins: its digest, the dist and the version stay as they are."""
    from litz.graph_cache.fingerprints import plugin_parts
    from litz_plugins.loading import load_entry_points

    class Changing:
        @hookimpl
        def litz_register_passes(self, options: Any) -> Any:
            return []

        @hookimpl
        def litz_cache_fingerprint(self) -> str:
            return ""

    module = importlib.import_module(__name__)
    monkeypatch.setattr(module, "one", Changing(), raising=False)
    monkeypatch.setattr(module, "other", Changing(), raising=False)
    texts = []
    for name in ("one", "other"):
        (source,) = load_entry_points([EntryPoint("changing", f"{__name__}:{name}", "litz")])
        compiler = pipeline.make_compiler(plugins=Plugins([source]))
        texts += [part.text for part in plugin_parts(compiler) if part.name == "plugin changing"]
    assert len(set(texts)) == 2


def test_a_choice_that_is_not_settled_is_not_kept(tmp_path: Path) -> None:
    class Undecided(Guarding):
        @hookimpl
        def litz_select_choice(self, choices: Any, context: Any) -> Any:
            context.unsettled("more is to be measured")

    runs = Runs(tmp_path, with_plugin(Undecided()))
    x, w = torch.randn(2, 512), torch.randn(512, 2048)
    runs.run(called_with(x, w), lambda x, w: torch.nn.functional.linear(x, w.t()))
    assert runs.reports[0].contractions
    assert "more is to be measured" in runs.reports[0].graph_cache and not runs.entries()


def test_names_count_where_nobody_knows_what_a_plugin_goes_by(runs: Runs) -> None:
    from litz.graph_cache.fingerprints import goes_by_anything
    from litz.pipeline import make_compiler

    assert not goes_by_anything(make_compiler(None, {})), "litz's own plugins say what they go by"
    runs.run(of_product(), product)
    assert not any(part.name == "names" for part in runs.reports[0].key.parts)
    runs.run(of_product(), product, veto=["fuse"])
    assert any(part.name == "names" for part in runs.reports[0].key.parts)


# Why not.


def explained(runs: Runs, before: frozenset[str]) -> explain.Miss:
    (report,) = runs.reports
    return explain.explain_miss(report.key, explain.read_keys([runs.folder], before))


def test_a_miss_is_explained_by_the_nearest_key(runs: Runs) -> None:
    runs.run(of_product(), lambda x, w: torch.sin(x @ w).cos())
    runs.run(of_product(), product)
    near = runs.reports[0].key
    before = explain.kept([runs.folder])
    assert len(before) == 2
    runs.run(of_product(), product, memory_pool=False)
    miss = explained(runs, before)
    assert miss.nearest is not None and miss.nearest.digest == near.digest
    (part,) = miss.differences
    assert part.name == "option memory_pool" and "LITZ_MEMORY_POOL" in part.setter
    assert explain.shown(part) == ("True", "False")


def test_a_graph_that_differs_shows_where(runs: Runs) -> None:
    runs.run(of_product(), product)
    before = explain.kept([runs.folder])
    runs.run(called_with(torch.randn(8, 16), torch.randn(16, 5)), product)
    (part,) = explained(runs, before).differences
    assert part.name == "graph"
    was, now = explain.shown(part)
    assert "[16, 4]" in was and "[16, 5]" in now


def test_nothing_is_near_in_an_empty_cache(runs: Runs) -> None:
    runs.run(of_product(), product)
    assert explained(runs, frozenset()).nearest is None


def test_the_command_says_what_changed(tmp_path: Path) -> None:
    from support.third_party import run_python

    script = tmp_path / "script.py"
    script.write_text(
        "import torch, sys\n"
        "x = torch.ones(int(sys.argv[1]), 3)\n"
        "torch.compile(lambda x: x.sin().sum(0), backend='litz')(x)\n"
    )
    cache = {"LITZ_CACHE_DIR": str(tmp_path / "cache")}
    command = ("-m", "litz", "explain-miss", str(script))
    first = run_python(*command, "4", imported=True, **cache)
    assert first.returncode == 0 and "no graph in the cache yet" in first.stdout, first.stderr
    assert "hit" in run_python(*command, "4", imported=True, **cache).stdout
    other = run_python(*command, "5", imported=True, **cache).stdout
    assert "graph, set by the program" in other and "[4, 3]" in other and "[5, 3]" in other
    option = run_python(*command, "4", imported=True, **cache, LITZ_FUSION="0").stdout
    assert "option fusion" in option and "LITZ_FUSION" in option and "graph, set by" not in option

"""The graph cache: what is found is what would be compiled, and nothing that has changed is found."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch

from litz import graph_cache, pipeline
from litz import report as reports
from litz.cache import manifest
from litz.capture import torch_api
from litz.driver import stages
from litz.errors import StaleEntryError
from litz.ir.index import Mod
from litz.report.step import NOWHERE
from litz_plugins import Pass, Plugins, Uncacheable, hookimpl, make_plugins
from litz_plugins.loading import Source
from litz_tools import cache_misses as explain
from litz_tools.device_file import Measured, write_file
from support.graph_cache import Runs, called_with
from support.own_plugins import CONTRACTIONS


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    with torch._functorch.config.patch(enable_autograd_cache=False):  # else graphs are found before litz has one
        yield


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def product(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.relu(x @ w)
    return y.sum(1), y * 2


def of_product() -> Any:
    return called_with(torch.randn(8, 16), torch.randn(16, 4))


# What is found.


def test_a_graph_that_was_compiled_is_loaded(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    call = of_product()
    once = runs.run(call, product)
    assert runs.said == ["miss"]
    monkeypatch.setattr(stages, "prepare_graph", None)  # nobody gets there
    again = runs.run(call, product)
    assert runs.said == ["hit"]
    torch.testing.assert_close(again, once, rtol=0, atol=0)


def test_a_report_from_the_cache_says_what_was_decided(runs: Runs) -> None:
    call = of_product()
    runs.run(call, product)
    (first,) = runs.reports
    runs.run(call, product)
    (second,) = runs.reports
    assert second.plan is None and first.plan is not None
    assert (second.decisions, second.taken) == (first.decisions, first.taken)
    assert [replace(step, **NOWHERE) for step in first.steps] == [replace(step, **NOWHERE) for step in second.steps]
    assert second.contractions == first.contractions and second.externs == first.externs
    assert second.kernel_sources == first.kernel_sources and second.wrapper_path == first.wrapper_path
    assert all(path.is_file() for path in second.kernel_paths.values())
    for report, word in ((first, "miss"), (second, "hit")):
        (line,) = [line for line in reports.report_text(report).splitlines() if line.startswith("graph cache")]
        assert line.split()[2] == word


def test_equal_graphs_of_a_process_share_one_code(runs: Runs) -> None:
    call = of_product()
    kept = [torch.compile]  # what is compiled lives on in dynamo's cache
    runs.run(call, product)
    first = torch.compile

    def same(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(x @ w)
        return y.sum(1), y * 2

    runs.again(call, same)
    assert runs.said == ["hit"] and "of this process" in runs.reports[0].graph_cache
    assert kept and first


def test_training_gives_the_same_gradients(runs: Runs) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 5)
    )
    x, state = torch.randn(4, 3, 8, 8), {k: v.clone() for k, v in model.state_dict().items()}

    def step(compiled: Any) -> Any:
        model.load_state_dict(state)
        model.zero_grad(set_to_none=True)
        loss = compiled(x).square().mean()
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters()), *(b.clone() for b in model.buffers())]

    eager = step(model)
    once = runs.run(step, model)
    assert runs.said == ["miss", "miss"]
    again = runs.run(step, model)
    assert runs.said == ["hit", "hit"]
    torch.testing.assert_close(again, once, rtol=0, atol=0)
    torch.testing.assert_close(again, eager, rtol=1e-4, atol=1e-5)


def test_a_backward_comes_again_where_the_graph_is_kept(runs: Runs) -> None:
    """What owns its inputs is handed copies then, from the cache too."""
    layer, x, labels = torch.nn.Linear(16, 2051), torch.randn(128, 16), torch.randint(0, 2051, (128,))

    def gradients(compiled: Any) -> Any:
        loss, found = compiled(x, labels), []
        for more in (True, False):
            layer.zero_grad(set_to_none=True)
            loss.backward(retain_graph=more)
            found.append([p.grad.clone() for p in layer.parameters()])
        return found

    def loss(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(layer(x), labels)

    runs.run(gradients, loss)
    found = runs.run(gradients, loss)
    assert runs.said == ["hit", "hit"]
    assert any(json.loads((path / "graph.json").read_text())["overwritten"] for path in runs.entries())
    torch.testing.assert_close(found, gradients(loss))


def written(x: torch.Tensor, y: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    x.mul_(2).add_(y)
    y.index_copy_(0, at, x[: at.shape[0]] + 1)
    return x.t()[1:]


def views(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = x + y
    return x.view(-1), z, z[1:], z, y.expand(3, *y.shape), z.t(), 3, None


def strided(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x.transpose(0, 1) + 1, (x @ y.t()).t(), torch.empty_strided((2, 3), (1, 2)).fill_(4)


@pytest.mark.each_value
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [written, views, strided])
def test_writes_strides_and_aliases_are_as_compiled(runs: Runs, fn: Any, dynamic: bool) -> None:
    x, y = torch.randn(6, 5), torch.randn(6, 5)
    args = (x, y, torch.tensor([4, 0])) if fn is written else (x, y)
    call = called_with(*args)
    once = runs.run(call, fn, dynamic)
    again = runs.run(call, fn, dynamic)
    assert runs.said == ["hit"]
    expected = call(fn)
    for found in (once, again):
        torch.testing.assert_close(found, expected)
        tensors = [(a, b) for a, b in zip(_flat(found), _flat(expected)) if isinstance(a, torch.Tensor)]
        assert [a.stride() for a, _ in tensors] == [b.stride() for _, b in tensors]
        assert _aliases(found) == _aliases(expected)


def _flat(value: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(value)


def _aliases(value: Any) -> list[int]:
    storages = [leaf.untyped_storage()._cdata for leaf in _flat(value) if isinstance(leaf, torch.Tensor)]
    return [storages.index(storage) for storage in storages]


def test_constants_and_random_numbers_are_as_compiled(runs: Runs) -> None:
    table = torch.arange(12.0).view(3, 4).t()

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x @ torch.tensor([[1.0, 2.5], [0.25, 3.0]]) + table[:, :2].sum() + torch.rand_like(x[:, :2])

    def call(compiled: Any) -> Any:
        torch.manual_seed(3)
        return compiled(torch.ones(5, 2))

    once, again = runs.run(call, fn), runs.run(call, fn)
    assert runs.said == ["hit"]
    torch.testing.assert_close(again, once, rtol=0, atol=0)


# Sizes.


def test_dynamic_sizes_are_still_dynamic(runs: Runs) -> None:
    call = called_with(torch.randn(6, 8), torch.randn(8, 4))
    runs.run(call, product, True)

    def three(compiled: Any) -> Any:
        return [compiled(torch.ones(n, k), torch.ones(k, 4)) for n, k in ((6, 8), (9, 8), (3, 5))]

    found = runs.run(three, product, True)
    assert runs.said == ["hit"]
    torch.testing.assert_close(found, three(product))


class Guarding:
    """A pass that takes for granted that the first size is a multiple of `multiple`, and puts that on record."""

    def __init__(self, multiple: int = 4, says: Any = "4") -> None:
        self.multiple, self.says = multiple, says

    @hookimpl
    def litz_register_passes(self, options: Any) -> list[Pass]:
        return [Pass("granted", "graph", self.look)]

    @hookimpl
    def litz_cache_fingerprint(self, options: Any) -> Any:
        return self.says

    def look(self, graph: Any, context: Any) -> Any:
        if graph.shape_env is not None and graph.hints:
            size = torch_api.sympy_of(graph.placeholders[0].meta["val"])
            torch_api.evaluate_with_guard(graph.shape_env, sympy.Eq(Mod(size, self.multiple), 0))
        return graph


def with_plugin(plugin: object) -> Any:
    from litz.driver.builtin import builtin_plugins

    return make_plugins(builtin_plugins(), extra=[CONTRACTIONS, ("guarding", plugin)], entry_points=())


def test_what_a_compile_took_for_granted_is_on_record_again(tmp_path: Path) -> None:
    runs = Runs(tmp_path, with_plugin(Guarding()))

    def sizes(*numbers: int) -> Any:
        return lambda compiled: [compiled(torch.ones(n, 3)) for n in numbers]

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * x.shape[0] + 1

    runs.run(sizes(8), fn, True)
    assert json.loads((runs.entries()[0] / "graph.json").read_text())["guards"]
    found = runs.run(sizes(8, 16, 6, 10), fn, True)
    assert runs.said == ["hit", "miss"], "16 is granted; 6 is not, and is compiled for itself"
    torch.testing.assert_close(found, sizes(8, 16, 6, 10)(fn))


def test_other_hints_are_another_key(runs: Runs) -> None:
    for n in (6, 7):
        runs.run(called_with(torch.randn(n, 8), torch.randn(8, 4)), product, True)
        assert runs.said == ["miss"], "costs go by likely sizes"


def test_sizes_that_hang_on_data(runs: Runs) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.nonzero().sum(0) + x.sum()

    def call(compiled: Any) -> Any:
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            return [compiled(x) for x in (torch.tensor([0, 1, 0, 3]), torch.tensor([2, 1, 5, 3]))]

    runs.run(call, fn)
    found = runs.run(call, fn)
    assert set(runs.said) == {"hit"}
    torch.testing.assert_close(found, call(fn))


# No stale hit.


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


@pytest.mark.parametrize(
    "options", [{"fusion": False}, {"max_fusion_size": 1}, {"memory_pool": False}, {"veto": ["fuse"]}, {"sizes": [64]}]
)
def test_another_option_misses(runs: Runs, options: dict[str, Any]) -> None:
    runs.run(of_product(), product)
    assert missed(runs, of_product(), product, **options)
    assert not missed(runs, of_product(), product, **options)


def test_options_that_change_no_code_hit(runs: Runs, tmp_path: Path) -> None:
    runs.run(of_product(), product)
    assert not missed(runs, of_product(), product, threads=1, report_dir=tmp_path / "reports", fallback="eager")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("torch.__version__", "9.9"),
        ("litz.targets.cpp.build.cpu_flags", lambda: "fpu vme"),
        ("litz.targets.cpp.build.FLAGS", ("-O0", "-shared", "-fPIC", "-w")),
        ("litz.graph_cache.fingerprints.version_of", lambda dist: "9.9"),
        ("litz.graph_cache.fingerprints.sources_digest", lambda folder: "edited"),
        ("litz.graph_cache.fingerprints.FORMAT", 99),
        ("torch.get_num_threads", lambda: 64),
    ],
)
def test_another_machine_or_version_misses(runs: Runs, monkeypatch: pytest.MonkeyPatch, path: str, value: Any) -> None:
    from litz.graph_cache import fingerprints
    from litz.targets.cpp import build as cpp_build

    runs.run(of_product(), product)
    monkeypatch.setattr(path, value)
    if path.startswith("torch.get"):
        monkeypatch.setitem(fingerprints._TORCH_SETTINGS, "num_threads", value)
    cpp_build.command.cache_clear()
    try:
        assert missed(runs, of_product(), product)
    finally:
        monkeypatch.undo()
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


# Damage.


def damaged(folder: Path, name: str) -> None:
    (folder / name).write_bytes((folder / name).read_bytes()[:-3])


@pytest.mark.parametrize("name", ["graph.json", "wrapper.py", "key.json", "manifest.json"])
def test_a_damaged_entry_is_made_anew(runs: Runs, name: str) -> None:
    once = runs.run(call := of_product(), product)
    damaged(runs.entries()[0], name)
    again = runs.run(call, product)
    assert runs.said == ["miss"]
    torch.testing.assert_close(again, once)
    runs.run(call, product)
    assert runs.said == ["hit"]


def resummed(folder: Path) -> None:
    (folder / manifest.FILE).unlink()
    manifest.write(folder)


@pytest.mark.parametrize("text", ["{}", "[]", '{"functions": {"f": "no_such_module:f"}}', "null"])
def test_an_entry_that_is_none_is_a_miss(runs: Runs, text: str) -> None:
    once = runs.run(call := of_product(), product)
    (folder,) = runs.entries()
    (folder / "graph.json").write_text(text)
    resummed(folder)
    again = runs.run(call, product)
    assert runs.said == ["miss"]
    torch.testing.assert_close(again, once)


def test_debug_mode_finds_a_stale_entry(runs: Runs) -> None:
    runs.run(of_product(), product)
    runs.run(of_product(), product, debug=True)
    assert runs.said == ["miss"], "it is compiled to be compared"
    (folder,) = runs.entries()
    kernel = next(folder.glob("*.cpp"))
    kernel.write_text(kernel.read_text().replace("return 0;", "return  0;"))
    resummed(folder)
    with pytest.raises(Exception) as caught:
        runs.run(of_product(), product, debug=True)
    error = caught.value
    assert isinstance(error, StaleEntryError) or "StaleEntryError" in str(error)


# What cannot be kept.


def test_frozen_weights_are_not_kept(runs: Runs) -> None:
    model = torch.nn.Linear(4, 3)

    def call(compiled: Any) -> Any:
        with torch.no_grad():
            return compiled(torch.ones(2, 4))

    runs.run(call, model, freezing=True)
    assert runs.said == ["not"] and "freezing" in runs.reports[0].graph_cache


def test_what_nobody_thought_of_is_no_reason_not_to_compile(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: Any) -> str:
        raise ZeroDivisionError("no such thing")

    monkeypatch.setattr("litz.graph_cache.lookup.graph_text", broken)
    call = of_product()
    torch.testing.assert_close(runs.run(call, product), call(product))
    assert "no such thing" in runs.reports[0].graph_cache


def test_objects_and_users_kernels_are_not_kept(runs: Runs) -> None:
    model = torch.nn.Linear(4, 3)

    def call(compiled: Any) -> Any:
        with torch.no_grad():
            return compiled(torch.ones(2, 4))

    assert runs.run(call, lambda x: torch.cond(x.sum() > 0, lambda x: model(x).sin(), lambda x: model(x), (x,))).shape
    assert runs.said == ["not"] and "which no other process can import" in runs.reports[0].graph_cache


def test_it_can_be_turned_off(runs: Runs) -> None:
    for _ in range(2):
        runs.run(of_product(), product, graph_cache=False)
        assert runs.said == ["off"]
    assert not runs.entries()


def test_without_a_disk_cache_nothing_is_kept(runs: Runs) -> None:
    for _ in range(2):
        runs.run(of_product(), product, cache=False)
        assert runs.said == ["miss"]


def test_keys_are_the_same_in_every_run(runs: Runs) -> None:
    keys = []
    for _ in range(2):
        runs.run(of_product(), product)
        keys.append(runs.reports[0].graph_cache.split()[1])
    assert keys[0] == keys[1] and graph_cache.Key(()).digest


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
    first = run_python(*command, "4", **cache)
    assert first.returncode == 0 and "no graph in the cache yet" in first.stdout, first.stderr
    assert "hit" in run_python(*command, "4", **cache).stdout
    other = run_python(*command, "5", **cache).stdout
    assert "graph, set by the program" in other and "[4, 3]" in other and "[5, 3]" in other
    option = run_python(*command, "4", **cache, LITZ_FUSION="0").stdout
    assert "option fusion" in option and "LITZ_FUSION" in option and "graph, set by" not in option

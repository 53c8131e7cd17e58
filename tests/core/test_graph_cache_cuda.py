"""Graphs for CUDA in the graph cache, without a GPU: fake tensors are captured, and loads are looked at."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from litz import graph_cache, pipeline
from litz import report as reports
from litz.capture import torch_api
from litz.capture.eager import run_eagerly
from litz.capture.graph import Graph
from litz.driver import stages
from litz.driver.builtin import Device, builtin_plugins
from litz.driver.unused_options import warn_once
from litz.target import describe_cuda, target_named
from litz.targets.triton.build import expected_variant
from litz.targets.triton.codegen import TritonCodegen
from litz_cudagraphs import plugin
from litz_plugins import CodegenContext, KernelSource, TargetSpec
from litz_plugins.manager import make_plugins

Loaded = list[tuple[KernelSource, Any, Any]]


class Loading(TritonCodegen):
    """Notes what it is to load: the source, the target and the variant that is built at once."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded

    def load(self, source: KernelSource, context: CodegenContext) -> Callable[..., None]:
        self.loaded.append((source, context.target, expected_variant(source, context.program.hint)))
        return lambda *arguments: None


def compile_fake(
    fn: Any, args: Any, folder: Path, dynamic: bool, describe: Any = describe_cuda, extra: Any = (), **options: Any
) -> Any:
    """(what was loaded, compiled graphs, reports). extra: further plugins."""
    loaded: Loaded = []
    spec = TargetSpec("cuda", describe, Loading(loaded))
    builtins = [(name, Device(spec) if name == "triton" else plugin) for name, plugin in builtin_plugins()]
    plugins = make_plugins(builtins, extra=extra, entry_points=())
    given = {"cache_dir": folder, "graph_cache": True, **options}
    graphs: list[Any] = []
    with reports.collect() as found:
        compiler = pipeline.make_compiler(None, given, plugins)

        def keep(graph: Graph) -> Any:
            compiled = pipeline.compile_graph(graph, compiler)
            graphs.append(compiled)
            eager = run_eagerly(graph)

            def run(args: list[Any]) -> Any:
                with torch_api.fake_mode_around(args):
                    return eager(args)

            run.output_strides = getattr(compiled, "output_strides", None)  # type: ignore[attr-defined]
            return run

        def backend(gm: Any, inputs: Any) -> Any:
            return stages.capture(gm, inputs, keep, compiler)

        torch._dynamo.reset()
        graph_cache.forget()
        torch.compile(fn, backend=backend, dynamic=dynamic)(*args)
    return loaded, graphs, found


def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    y = torch.nn.functional.layer_norm(x @ w, (w.shape[1],), b)
    table = torch.tensor([0.5, 2.0, -1.0, 4.0]).to(x.device)
    return torch.softmax(y, -1) * table.sum(), y.sum(0), x.view(-1)


@pytest.fixture
def args() -> Any:
    with FakeTensorMode(allow_non_fake_inputs=True):
        sizes = ((24, 48), (48, 4096), (4096,))
        return [torch.empty(size, device="cuda:0") for size in sizes]


@pytest.mark.each_value
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_what_is_loaded_is_what_was_compiled(tmp_path: Path, args: Any, dynamic: bool, cuda_graphs: bool) -> None:
    first, made, said = compile_fake(norm, args, tmp_path, dynamic, cuda_graphs=cuda_graphs)
    again, found, then = compile_fake(norm, args, tmp_path, dynamic, cuda_graphs=cuda_graphs)
    assert [report.graph_cache.split()[0] for report in said] == ["miss"]
    assert [report.graph_cache.split()[0] for report in then] == ["hit"], then[0].graph_cache
    assert len(first) == len(again) > 0
    for (source, target, variant), (kept, here, expected) in zip(first, again, strict=True):
        assert (kept.text, kept.symbol, kept.language, kept.suffix) == (
            source.text,
            source.symbol,
            source.language,
            source.suffix,
        )
        assert kept.settings == source.settings and (here, expected) == (target, variant)
        assert len(kept.arguments) == len(source.arguments)
    for before, after in zip(made, found, strict=True):
        assert after.text == before.text and after.code.entry.facts == before.code.entry.facts
        assert after.code.entry.facts.devices == ("cpu", "cuda:0") and "on cpu" in after.code.entry.facts.obstacle
        assert after.code.entry.overwritten == before.code.entry.overwritten
        assert str(after.output_strides) == str(before.output_strides)


def test_graphs_are_recorded_by_who_is_there(tmp_path: Path, args: Any) -> None:
    """Whoever had compiled them: fresh graphs, and those of the cache."""
    warn_once.cache_clear()
    with pytest.warns(UserWarning, match="cuda_graphs records nothing here: .*pip install ./plugins_cudagraphs"):
        _, (plain,), (said,) = compile_fake(torch.sin, args[:1], tmp_path, False, cuda_graphs=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once in a process
        _, (again,), (then,) = compile_fake(torch.sin, args[:1], tmp_path, False, cuda_graphs=True)
    assert plain.entry is plain.code.call and again.entry is again.code.call
    for report in (said, then):
        assert "no CUDA graph" in {decision.chosen for decision in report.decisions}
    recorder = [("cudagraphs", plugin)]
    _, (recorded,), (found,) = compile_fake(torch.sin, args[:1], tmp_path, False, extra=recorder, cuda_graphs=True)
    assert found.graph_cache.startswith("hit") and "no CUDA graph" not in {each.chosen for each in found.decisions}
    assert recorded.entry.entry is recorded.code.call and recorded.ranged is None
    _, (fresh,), _ = compile_fake(torch.sin, args[:1], tmp_path / "new", False, extra=recorder, cuda_graphs=True)
    assert type(fresh.entry) is type(recorded.entry)


def test_another_gpu_misses(tmp_path: Path, args: Any) -> None:
    compile_fake(norm, args, tmp_path, False)
    for name, word in (("L4", "miss"), ("L4", "hit"), ("A100-SXM4-80GB", "miss")):
        describe = lambda device, options=None, name=name: target_named(name)
        _, _, (report,) = compile_fake(norm, args, tmp_path, False, describe)
        assert report.graph_cache.split()[0] == word, name


def test_another_index_misses(tmp_path: Path, args: Any) -> None:
    compile_fake(norm, args, tmp_path, False)
    with FakeTensorMode(allow_non_fake_inputs=True):
        moved = [torch.empty(one.shape, device="cuda:1") for one in args]
    _, _, (report,) = compile_fake(norm, moved, tmp_path, False)
    assert report.graph_cache.startswith("miss")

"""Builds begin as soon as a kernel's text is known, and what builds is started where something will be built."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from litz import graph_cache, pipeline
from litz.cache.disk import Cache
from litz.capture.eager import run_eagerly
from litz.capture.graph import Graph
from litz.driver import stages
from litz.driver.builtin import Device, builtin_plugins
from litz.driver.kernel_loading import Loads, load_kernels
from litz.errors import CodegenError, KernelBuildError
from litz.runtime.graph_entry import StoredKernel
from litz.target import describe_cuda
from litz.targets.triton.codegen import TritonCodegen
from litz_plugins import CodegenContext, KernelSource, TargetSpec, Verdict
from litz_plugins.manager import make_plugins

WAIT = 20.0
"""Seconds: more than a thread takes to begin, so that a test which fails ends."""


class Watched(TritonCodegen):
    """Builds nothing, and notes what it is asked for. Text number `fails` is never written."""

    def __init__(self, fails: int = -1) -> None:
        self.seen: list[str] = []
        self.fails, self.begun = fails, threading.Event()

    def prepare(self, options: Any) -> None:
        self.seen.append("prepare")

    def generate_tiled(self, *given: Any) -> KernelSource:
        number = sum(item == "generate" for item in self.seen)
        if number:
            assert self.begun.wait(WAIT), "the first kernel is built while the second is written"
        if number == self.fails:
            raise CodegenError("kernel", "there is no more ink")
        self.seen.append("generate")
        return super().generate_tiled(*given)

    def load(self, source: KernelSource, context: CodegenContext) -> Callable[..., None]:
        self.seen.append("load")
        self.begun.set()
        return lambda *arguments: None


def layers(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Three kernels of two texts."""
    return torch.softmax(torch.softmax(torch.softmax(x, -1) @ v, -1) @ w, -1)


def compile_fake(codegen: Watched, folder: Path, **options: Any) -> pipeline.CompiledGraph:
    """What becomes of `layers` on a GPU that is not there."""
    builtins = [
        (name, Device(TargetSpec("cuda", describe_cuda, codegen)) if name == "triton" else plugin)
        for name, plugin in builtin_plugins()
    ]
    given = {"cache_dir": folder, "graph_cache": True, "threads": 2, **options}
    compiler = pipeline.make_compiler(None, given, make_plugins(builtins, entry_points=()))
    graphs: list[Any] = []

    def keep(graph: Graph) -> Any:
        graphs.append(pipeline.compile_graph(graph, compiler))
        return run_eagerly(graph)

    torch._dynamo.reset()
    graph_cache.forget()
    with FakeTensorMode(allow_non_fake_inputs=True):
        args = [torch.empty(size, device="cuda:0") for size in ((64, 3000), (3000, 500), (500, 500))]
        torch.compile(layers, backend=lambda gm, inputs: stages.capture(gm, inputs, keep, compiler))(*args)
    (graph,) = graphs
    return graph


def test_a_build_begins_when_its_text_is_known(tmp_path: Path) -> None:
    codegen = Watched()
    compile_fake(codegen, tmp_path)
    assert codegen.seen[:3] == ["prepare", "generate", "load"], "and the second text is written after that"
    assert sorted(codegen.seen[3:]) == ["generate", "load"], "equal kernels are written once and built once"
    again = Watched()
    compile_fake(again, tmp_path)
    assert set(again.seen) == {"load"}, "nothing will be built for a graph that the cache has"
    unkept = Watched()
    compile_fake(unkept, tmp_path, graph_cache=False)
    assert "prepare" not in unkept.seen, "nobody knows whether anything will be built"


def test_what_fails_leaves_no_build_behind(tmp_path: Path) -> None:
    codegen = Watched(fails=1)
    with pytest.raises(Exception, match="there is no more ink"):
        compile_fake(codegen, tmp_path)
    assert codegen.seen == ["prepare", "generate", "load"]


class Built:
    """A code generator: "bad" does not compile, and "late" waits for `go`."""

    language = "made up"

    def __init__(self) -> None:
        self.go, self.begun = threading.Event(), threading.Event()
        self.loaded: list[str] = []

    def load(self, source: KernelSource, context: CodegenContext) -> Callable[..., str]:
        self.begun.set()
        if source.text == "late":
            assert self.go.wait(WAIT)
        context.cache.misses += source.text != "found"
        context.cache.hits += 1
        self.loaded.append(source.text)
        if source.text == "bad":
            raise KernelBuildError(source.name, "make", "it is bad")
        return lambda: source.text


def made_up(folder: Path, threads: int = 4) -> tuple[Built, Any]:
    """(the code generator, a compiler that has it for all devices)."""
    codegen = Built()
    known = {
        "specs": {"cpu": SimpleNamespace(codegen=codegen, plugin="")},
        "options": SimpleNamespace(threads=threads),
        "plugins": make_plugins((), entry_points=()),
        "cache": Cache(folder),
    }
    return codegen, SimpleNamespace(**known, target_of=lambda device: None)


def entry_of(*texts: str) -> Any:
    """With a kernel of each text, called k0, k1, ..."""
    source = KernelSource("k", "made up", "", "kernel")
    kernels = {f"k{n}": StoredKernel(replace(source, name=f"k{n}", text=text), "cpu") for n, text in enumerate(texts)}
    return SimpleNamespace(kernels=kernels)


def test_equal_kernels_are_loaded_once_and_all_are_counted(tmp_path: Path) -> None:
    codegen, compiler = made_up(tmp_path)
    entry = entry_of("a", "found", "a", "found", "late")
    counts: list[int] = []
    with Loads(compiler) as loads:
        early = loads.begin(entry.kernels["k0"].source, "cpu", None)
        early.result(WAIT)
        threading.Timer(0.05, codegen.go.set).start()
        launchers, hits = load_kernels(loads, entry, {}, built=counts.append)
    assert {name: launch() for name, launch in launchers.items()} == {
        "k0": "a", "k1": "found", "k2": "a", "k3": "found", "k4": "late"
    }  # fmt: skip
    assert sorted(codegen.loaded) == ["a", "found", "late"]
    assert hits == 2, "names of kernels that the cache had"
    assert counts == [3, 3, 3], "one of three, whenever it was built"


def test_the_first_kernel_that_does_not_build_is_the_error_and_no_more_are_begun(tmp_path: Path) -> None:
    codegen, compiler = made_up(tmp_path, threads=1)
    counts: list[int] = []
    words: Any = SimpleNamespace(origins={"k1": "layers.3.mlp (model.py:7)"})
    threading.Timer(0.1, codegen.go.set).start()
    with pytest.raises(KernelBuildError) as caught, Loads(compiler) as loads:
        load_kernels(loads, entry_of("a", "bad", "late", "later"), {}, words, counts.append)
    assert caught.value.kernel == "k1" and "layers.3.mlp (model.py:7)" in str(caught.value)
    assert "later" not in codegen.loaded
    assert counts == [4, 4], "what did not build is not counted"


def test_who_interrupts_a_compile_waits_for_no_build(tmp_path: Path) -> None:
    codegen, compiler = made_up(tmp_path, threads=1)
    entry = entry_of("late", "later")
    with pytest.raises(KeyboardInterrupt), Loads(compiler) as loads:
        late, later = (loads.begin(kernel.source, "cpu", None) for kernel in entry.kernels.values())
        assert codegen.begun.wait(WAIT)
        raise KeyboardInterrupt
    assert later.cancelled() and not late.done()
    codegen.go.set()
    late.result(WAIT)
    assert codegen.loaded == ["late"]


@pytest.mark.parametrize("right", [True, False])
def test_a_text_that_the_compiler_gets_wrong_is_begun_again(
    right: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[KernelSource | str] = []

    def qualify(constructs: Any, context: Any) -> Verdict:
        seen.append("verdict")
        return Verdict("g++", {} if right else dict.fromkeys(constructs, "unoptimized"))

    monkeypatch.setattr("litz.targets.cpp.qualify.qualify_target", qualify)
    compiler = pipeline.make_compiler(None, {"cache_dir": tmp_path})
    (schedule,) = pipeline.schedule_only(lambda x: torch.softmax(x, -1) @ x, [torch.rand(40, 40)])
    plan = pipeline.plan_schedule(schedule, compiler)
    sources = pipeline.generate(plan, compiler, begin=lambda source, device, program: seen.append(source))
    at = seen.index("verdict")
    assert sources and [source.text for source in seen[:at]] == [source.text for source in sources.values()]  # type: ignore[union-attr]
    assert seen[at + 1 :] == ([] if right else [*sources.values()])
    assert all(source.settings.get("forms") == (None if right else ["unoptimized"]) for source in sources.values())

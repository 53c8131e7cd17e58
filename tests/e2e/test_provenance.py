"""From a kernel back to the user's model: comments, reports, profiles and errors name modules, lines and parameters;
and no kernel is another for it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch._subclasses import FakeTensorMode

import litz_aot
from litz import pipeline, report
from litz.codegen.wrapper import annotated, generate_wrapper, words_of
from litz.driver import stages
from litz.errors import FrozenWeightsError, IndexRangeError, KernelBuildError, LoweringError
from litz.origins.words import ranged
from litz.report import CompileReport
from litz_tools.page import render_html
from litz_tools.text import render

LINE = "test_provenance.py:"


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(16, 32)
        self.fc2 = torch.nn.Linear(32, 16)
        self.register_buffer("scale", torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc2(torch.nn.functional.gelu(self.fc1(x.sin() * self.scale)))


class Model(torch.nn.Module):
    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.emb = torch.nn.Embedding(10, 16)
        self.layers = torch.nn.ModuleList([Block() for _ in range(layers)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x)
        return x


class Renamed(Model):
    """The same, with everything one name deeper."""

    def __init__(self, layers: int = 3) -> None:
        torch.nn.Module.__init__(self)
        self.inner = Model(layers)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.inner(ids)


IDS = torch.randint(0, 10, (2, 4))


def compiled(model: torch.nn.Module, backward: bool = False, **options: Any) -> Sequence[CompileReport]:
    with report.collect() as reports, torch.set_grad_enabled(backward):
        out = torch.compile(model, backend="litz", options=options)(IDS)
        if backward:
            out.sum().backward()
    torch._dynamo.reset()
    return reports


def test_the_wrapper_names_parameters_and_modules() -> None:
    (one,) = compiled(Model())
    text = one.wrapper_source
    assert ": layers.1.fc1.weight, f32[32, 16]" in text
    assert ": layers.2.scale, f32[16]" in text
    assert f"# layers.1.fc2 ({LINE}" in text
    assert "ids, i64[2, 4]" in text


def test_a_backward_names_what_was_saved_and_whose_gradients_it_returns() -> None:
    _, backward = compiled(Model(), backward=True)
    text = backward.wrapper_source
    assert "layers.1.fc1.weight" in text
    assert "# output" in text and ": gradient of layers.1.fc1.weight" in text
    assert f"# gradient of layers.1.fc1 ({LINE}" in text
    assert "gradient of output 0" in text
    assert "saved by layers.2" in text


def test_kernels_schedules_and_sharing_do_not_depend_on_names() -> None:
    torch.manual_seed(0)
    one, two = compiled(Model(2), backward=True), compiled(Renamed(2), backward=True)
    for a, b in zip(one, two, strict=True):
        assert a.kernel_sources == b.kernel_sources
        assert str(a.plan).partition("\n")[2] == str(b.plan).partition("\n")[2]
        assert "inner.layers.1" in b.wrapper_source and "inner.layers.1" not in a.wrapper_source
    # The middle layers are alike: their kernels have one text, so one build.
    deep = compiled(Model(6))[0]
    texts = list(deep.kernel_sources.values())
    assert len(set(texts)) <= len(texts) - 2 * 3


def test_reports_say_where_each_step_comes_from() -> None:
    (one,) = compiled(Model(4))
    step = next(step for step in one.steps if step.modules == ("layers.1.fc1",))
    assert step.origin.startswith(f"layers.1.fc1 ({LINE}") and step.places[0].startswith(__file__)
    assert one.to_json()["steps"][one.steps.index(step)]["modules"] == ("layers.1.fc1",)
    assert "layers.1.fc1 (" in render_html(one)
    stream = io.StringIO()
    render(one, Console(file=stream, width=80, no_color=True))
    assert f"layers.0-3.fc1 ({LINE}" in stream.getvalue()
    assert f"from: layers.0-3.fc1 ({LINE}" in stream.getvalue(), "its contraction's"
    assert '["from","layers.0-3.fc1 (' in render_html(one)
    lines = [line for line in stream.getvalue().splitlines() if not line.startswith("source")]  # a path to be copied
    assert max(map(len, lines)) <= 80


def test_a_profile_has_a_range_for_each_step_and_none_is_made_without_one() -> None:
    fn = torch.compile(Model(), backend="litz")
    with torch.no_grad(), report.collect() as reports:
        expected = fn(IDS)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            assert torch.equal(fn(IDS), expected)
        assert torch.equal(fn(IDS), expected)
    names = [event.name for event in profile.events()]
    steps = [step.name for step in reports[0].steps]
    ranges = [name for name in names if name.split(" ")[0] in steps]
    assert len(ranges) == len(steps), "one range for each step of one call"
    assert any(name.startswith("kernel") and " layers.1" in name for name in ranges)
    assert any("layers.1.fc1" in name and name.endswith(": addmm_2") for name in ranges)


def test_what_a_step_raises_says_where_it_is() -> None:
    fn = torch.compile(Model(), backend="litz")
    with torch.no_grad():
        fn(IDS)
        with pytest.raises(IndexRangeError) as caught:
            fn(IDS + 100)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            with pytest.raises(IndexRangeError) as profiled:
                fn(IDS + 100)
    for error in (caught.value, profiled.value):
        (note,) = error.__notes__
        assert "emb" in note and LINE in note and "kernel0" in note and "graph0_inference" in note


def test_a_failing_lowering_names_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        raise ValueError("on purpose")

    known = stages.lowerings
    table = {torch.ops.aten.erf.default: broken}
    monkeypatch.setattr(stages, "lowerings", lambda compiler: {**known(compiler), **table})
    with pytest.raises(Exception, match=rf"from: layers\.0 \({LINE}\d+\)") as caught:
        compiled(Model())
    cause: BaseException | None = caught.value
    while cause is not None and not isinstance(cause, LoweringError):
        cause = cause.__cause__ or getattr(cause, "inner_exception", None)
    assert isinstance(cause, LoweringError) and "layers.0" in cause.origin


def test_a_kernel_that_does_not_build_names_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(source: Any, options: Any, cache: Any, read: Any) -> Any:
        raise KernelBuildError(source.name, "g++", "on purpose")

    monkeypatch.setattr("litz.targets.cpp.build._use", broken)
    with pytest.raises(Exception, match=rf"from: (emb|layers)[^\n]*{LINE}\d+"):
        compiled(Model(), **{"cpp.qualify": False})


def test_a_function_that_closes_over_a_model_has_names_too() -> None:
    model = Model(1)

    def fn(ids: torch.Tensor) -> torch.Tensor:
        return model(ids).sin()

    with report.collect() as reports, torch.no_grad():
        torch.compile(fn, backend="litz")(IDS)
    assert "layers.0.fc1.weight" in reports[0].wrapper_source
    assert "layers.0.fc1 (" in reports[0].wrapper_source


def test_dynamic_sizes_and_frozen_weights_have_names() -> None:
    with report.collect() as reports, torch.no_grad():
        torch.compile(Model(1), backend="litz", dynamic=True)(IDS)
        torch._dynamo.reset()
        torch.compile(Model(1), backend="litz", options={"freezing": True})(IDS)
    for one in reports:
        assert "layers.0.fc2" in one.wrapper_source


def test_a_frozen_weight_that_changed_has_its_name() -> None:
    model = Model(1)
    fn = torch.compile(model, backend="litz", options={"freezing": True})
    with torch.no_grad():
        fn(IDS)
        model.layers[0].fc1.weight.mul_(2)  # type: ignore[union-attr, operator]
        with pytest.raises(FrozenWeightsError, match=r"the weight layers\.0\.fc1\.weight was written"):
            fn(IDS)


@pytest.mark.nightly
def test_a_package_names_its_weights(tmp_path: Path) -> None:
    litz_aot.compile(Model(1), (IDS,), tmp_path / "package")
    text = (tmp_path / "package" / "wrapper.py").read_text()
    assert "layers.0.fc1.weight" in text and "# layers.0.fc1 (" in text
    assert torch.equal(litz_aot.load(tmp_path / "package")(IDS), litz_aot.load(tmp_path / "package")(IDS))


def test_words_are_where_their_steps_are_in_a_cuda_wrapper_too() -> None:
    """Its steps stand below a `with` that makes the device the current one."""

    with FakeTensorMode():
        x, scale = torch.empty(8, 16, device="cuda"), torch.empty(16, device="cuda")

    def fn(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (x * scale).softmax(-1)

    (schedule,) = pipeline.schedule_only(fn, (x, scale))
    compiler = pipeline.make_compiler()
    plan = pipeline.plan_schedule(schedule, compiler)
    plain = generate_wrapper(plan, pipeline.generate(plan, compiler))
    assert LINE not in plain.text, "words come last"
    commented = annotated(plain, words_of(plan))
    assert f"        # {LINE}" in commented.text and ": scale, f32[16]" in commented.text
    for wrapper in (plain, commented, ranged(commented)):
        compile(wrapper.text, "wrapper", "exec")
        lines = wrapper.text.split("\n")
        for place in wrapper.places:
            if place.step.startswith("kernel"):
                assert any(f"{place.step}(" in line for line in lines[place.first - 1 : place.last])
    kernel = next(line for line in ranged(commented).text.split("\n") if "with _range('kernel0 " in line)
    assert kernel.startswith("        with")


# ------------------------------------------------------------------------------------------------------------ on a GPU

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@on_a_gpu
def test_a_gpus_kernels_are_in_ranges_of_their_steps() -> None:
    fn, ids = torch.compile(Model().cuda(), backend="litz"), IDS.cuda()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.no_grad(), report.collect() as reports:
        expected = fn(ids)
        with torch.profiler.profile(activities=activities) as profile:
            found = fn(ids)
            torch.cuda.synchronize()
        with torch.autograd.profiler.emit_nvtx():
            assert torch.allclose(fn(ids), expected)
    assert torch.allclose(found, expected)
    steps = [step.name for step in reports[0].steps]
    ranges = {event.name for event in profile.events() if event.name.split(" ")[0] in steps}
    assert len(ranges) == len(steps) and any("layers.1.fc1" in name for name in ranges)


@pytest.mark.gpu
@on_a_gpu
def test_with_cuda_graphs_results_and_notes_are_as_without() -> None:
    fn, ids = torch.compile(Model().cuda(), backend="litz", mode="reduce-overhead"), IDS.cuda()
    with torch.no_grad():
        expected = [fn(ids).clone() for _ in range(4)][-1]
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            assert torch.allclose(fn(ids), expected)
    assert any(event.name == "litz graph0_inference" for event in profile.events())


@pytest.mark.gpu
@on_a_gpu
def test_running_out_of_memory_names_the_module() -> None:
    class Large(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide = torch.nn.Linear(4, 1 << 20, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.wide(x)

    fn = torch.compile(Large().cuda().bfloat16(), backend="litz", dynamic=True)
    with torch.no_grad():
        fn(torch.ones(8, 4, device="cuda", dtype=torch.bfloat16))
        with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
            fn(torch.ones(1 << 20, 4, device="cuda", dtype=torch.bfloat16))  # 2 TiB
    assert any("wide" in note for note in caught.value.__notes__)

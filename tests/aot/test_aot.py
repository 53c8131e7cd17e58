"""litz-aot: what one process compiles another runs, or refuses with its reason."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import litz_aot
from litz import report as reports
from litz.cache.disk import Cache
from litz.driver.builtin import builtin_plugins
from litz.errors import MissingMemoryError
from litz.options import make_options
from litz.targets.cpp.qualify import verdict
from litz.targets.triton import build as triton_build
from litz.targets.triton import native_launch
from litz_aot import package, triton_kernels
from litz_aot import plugin as aot_plugin
from litz_aot.errors import PackageError, PackageInputError
from litz_plugins import Exporter, KernelSource, PluginHookError, TargetSpec, hookimpl
from litz_plugins.manager import make_plugins
from support.compare import NO_GPU

pytestmark = pytest.mark.xdist_group("aot")

F = torch.nn.functional
X = torch.randn(4, 16)


class Counting(torch.nn.Module):
    """Writes to a buffer, takes a dict and a keyword, returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 8)
        self.weight = torch.nn.Parameter(torch.randn(3, 16, 2).permute(2, 1, 0))  # not row-major
        self.register_buffer("calls", torch.zeros(2))
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    def forward(self, given: dict[str, torch.Tensor], times: int = 1, *, shift: torch.Tensor) -> Any:
        self.calls.add_(times)
        y = F.gelu(self.linear(given["x"])) * self.scale
        return {"y": y + shift, "w": self.weight.sum(0)}, self.calls * times


def saved(path: Path, fn: Callable[..., Any], *args: Any, **options: Any) -> Callable[..., Any]:
    litz_aot.compile(fn, args, path, **options)
    return litz_aot.load(path)


@pytest.fixture(scope="module")
def softmax(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("aot") / "softmax"
    litz_aot.compile(lambda x: torch.softmax(x * 2, -1).sum(0), (X,), path)
    return path


def test_another_process_loads_and_runs_it_with_no_compiler(softmax: Path, tmp_path: Path) -> None:
    script = (
        "import sys, torch, litz_aot\n"
        "given, folder, result = sys.argv[1:]\n"
        "torch.save(litz_aot.load(folder)(torch.load(given)), result)\n"
        "none = {'litz.pipeline', 'litz.driver', 'litz.ir', 'triton', 'torch._dynamo'}\n"
        "assert not none & set(sys.modules), 'no compiler'\n"
    )
    given, result = tmp_path / "given.pt", tmp_path / "result.pt"
    torch.save(X, given)
    environment = {**os.environ, "PATH": "", "LITZ_CACHE_DIR": str(tmp_path / "empty")}
    subprocess.run([sys.executable, "-c", script, given, softmax, result], env=environment, check=True)
    torch.testing.assert_close(torch.load(result), torch.softmax(X * 2, -1).sum(0))


def test_state_trees_keywords_and_constants(tmp_path: Path) -> None:
    module = Counting()
    given, shift = {"x": X}, torch.ones(8)
    call = saved(tmp_path / "p", module, given, 3, kwargs={"shift": shift})
    module.calls.zero_()
    for _ in range(2):
        (found, calls), (wanted, expected) = call(given, 3, shift=shift), module(given, 3, shift=shift)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(calls, expected)
        assert not found["y"].requires_grad
    with pytest.raises(PackageInputError, match="is 4; the package was made for 3"):
        call(given, 4, shift=shift)
    with pytest.raises(PackageInputError, match="the arguments are built as"):
        call(X, 3, shift=shift)


def test_an_argument_that_is_written_to(tmp_path: Path) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1

    x = torch.ones(5)
    call = saved(tmp_path / "p", fn, x.clone())
    torch.testing.assert_close(call(x), torch.full((5,), 3.0))
    torch.testing.assert_close(x, torch.full((5,), 2.0))


def test_an_exported_program(tmp_path: Path) -> None:
    """With buffers, one of them written, a parameter, dicts, a constant, a keyword and a size that may vary."""
    module, rows = Counting(), torch.export.Dim("rows", min=2, max=32)
    example, keywords = ({"x": X}, 3), {"shift": torch.ones(8)}
    shapes = {"given": {"x": {0: rows}}, "times": None, "shift": None}
    program = torch.export.export(module, example, keywords, dynamic_shapes=shapes)
    before = str(program)
    call = litz_aot.load(litz_aot.compile(program, None, tmp_path / "p"))
    for n in (4, 2, 7, 32):
        given, shift = {"x": torch.randn(n, 16)}, torch.randn(8)
        (found, calls), (wanted, expected) = call(given, 3, shift=shift), module(given, 3, shift=shift)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(calls, expected)
    with pytest.raises(PackageInputError, match="32"):
        call({"x": torch.randn(33, 16)}, 3, shift=shift)
    assert str(program) == before


def test_an_exported_program_of_a_file_and_its_arguments(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU()).eval()
    file = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(module, (X,), strict=True), file)
    call = saved(tmp_path / "p", torch.export.load(file), X)
    torch.testing.assert_close(call(X).double(), module.double()(X.double()), rtol=1e-4, atol=1e-5)
    with pytest.raises(PackageError, match=r"do not fit the ExportedProgram(.|\n)*5(.|\n)*args=None"):
        litz_aot.compile(torch.export.load(file), (torch.randn(5, 16),), tmp_path / "q")
    with pytest.raises(PackageError, match="do not fit the ExportedProgram"):
        litz_aot.compile(torch.export.load(file), ({"x": X},), tmp_path / "q")
    with pytest.raises(PackageError, match="dynamic shapes already"):
        litz_aot.compile(torch.export.load(file), None, tmp_path / "q", dynamic_shapes=({0: 4},))
    with pytest.raises(PackageError, match="no arguments"):
        litz_aot.compile(torch.sin, None, tmp_path / "q")


def test_another_default_device(tmp_path: Path) -> None:
    """Where the user has made another device the default, tensors of litz's own, the probes of the C++ compiler and
    temporary memory among them, are still the CPU's: a kernel cannot read another device's addresses."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(torch.softmax(x @ x, -1)[None, None], scale_factor=1.5, mode="bilinear")

    x = torch.randn(300, 300)
    options = {"cache_dir": tmp_path / "cache"}
    verdict._found_here().clear()
    with torch.device("meta"):
        package = litz_aot.load(litz_aot.compile(fn, (x,), tmp_path / "package", options=options))
        got = package(x)
    torch.testing.assert_close(got.double(), fn(x.double()), rtol=1e-4, atol=1e-5)


def test_sizes_may_vary_within_what_was_asked_for(tmp_path: Path) -> None:
    rows = torch.export.Dim("rows", min=2, max=32)

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, 0) + y.t()

    call = saved(tmp_path / "p", fn, X, torch.randn(16, 4), dynamic_shapes=({0: rows}, {1: rows}))
    for n in (2, 7, 32):
        x, y = torch.randn(n, 16), torch.randn(16, n)
        torch.testing.assert_close(call(x, y), fn(x, y))
    with pytest.raises(PackageInputError, match=r"made for sizes with 2 <= \w+ <= 32"):
        call(torch.randn(33, 16), torch.randn(16, 33))
    with pytest.raises(PackageInputError, match=r"has the sizes \[16, 5\]"):
        call(torch.randn(4, 16), torch.randn(16, 5))


@pytest.mark.parametrize(
    "x, message",
    [
        (torch.randn(5, 16), r"has the sizes \[5, 16\]; the package was made for \[4, 16\]"),
        (torch.randn(64), "has 1 dimensions"),
        (X.double(), "is torch.float64 on cpu; the package was made for torch.float32 on cpu"),
        (torch.randn(16, 4).t(), r"has the strides \[1, 4\]"),
        (3.0, "is float; the package was made for a tensor"),
    ],
)
def test_other_inputs_are_refused(softmax: Path, x: Any, message: str) -> None:
    with pytest.raises(PackageInputError, match=message):
        litz_aot.load(softmax)(x)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"torch": "1.0"}, "made with torch 1.0, and this is torch"),
        ({"version": 0}, "this is litz-package 0, not litz-package 3"),
        ({"device": {"type": "cpu", "name": "CPU", "made_for": "another"}}, "made for CPU, another; this is CPU"),
        ({"sums": {"wrapper.py": "0" * 64}}, "wrapper.py is missing or damaged"),
    ],
)
def test_what_was_made_for_something_else_is_refused(
    softmax: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    data = json.loads((softmax / package.MANIFEST).read_text()) | change
    for file in (package.WRAPPER, package.WEIGHTS):
        (tmp_path / file).write_bytes((softmax / file).read_bytes())
    (tmp_path / package.MANIFEST).write_text(json.dumps(data))
    with pytest.raises(PackageError, match=message):
        litz_aot.load(tmp_path)


BROKEN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no object": lambda data: [data],
    "nothing": lambda data: None,
    "no sums": lambda data: {**data, "sums": {}},
    "sums that are a list": lambda data: {**data, "sums": list(data["sums"])},
    "a sum of something outside": lambda data: {**data, "sums": {**data["sums"], "../wrapper.py": "0" * 64}},
    "no wrapper": lambda data: {**data, "sums": {k: v for k, v in data["sums"].items() if k != package.WRAPPER}},
    "no library": lambda data: {**data, "sums": {k: v for k, v in data["sums"].items() if not k.startswith("kernels")}},
    "a library outside": lambda data: {
        **data, "kernels": {k: {**v, "data": {"library": "../../x.so"}} for k, v in data["kernels"].items()}
    },
    "kernels of no kind": lambda data: {**data, "kernels": {"kernel0": 3}},
    "another exporter": lambda data: {
        **data, "kernels": {k: {**v, "exporter": "litz.logs.units"} for k, v in data["kernels"].items()}
    },
    "a symbol that is not there": lambda data: {
        **data, "kernels": {k: {**v, "symbol": "nobody"} for k, v in data["kernels"].items()}
    },
    "a tensor beyond the file": lambda data: {
        **data, "tensors": {"x": {"at": 0, "dtype": "float32", "size": [9], "order": [0], "device": "cpu"}}
    },
    "a function that is not there": lambda data: {**data, "functions": {"f": "no.such.module:f"}},
    "needs that are text": lambda data: {**data, "needs": "litz"},
    "no inputs": lambda data: {k: v for k, v in data.items() if k != "inputs"},
    "guards that are no Python": lambda data: {**data, "guards": ["(("]},
    "a device that is text": lambda data: {**data, "device": "cpu"},
}  # fmt: skip


@pytest.mark.parametrize("damage", BROKEN)
def test_a_damaged_package_is_refused(softmax: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "p"
    shutil.copytree(softmax, folder)
    data = json.loads((folder / package.MANIFEST).read_text())
    (folder / package.MANIFEST).write_text(json.dumps(BROKEN[damage](data)))
    with pytest.raises(PackageError, match=r"damaged|cannot be read|no sum vouches|not litz-package"):
        litz_aot.load(folder)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\0" * 100])
def test_a_package_without_a_list_is_refused(softmax: Path, tmp_path: Path, text: str) -> None:
    shutil.copytree(softmax, tmp_path / "p")
    (tmp_path / "p" / package.MANIFEST).write_text(text)
    with pytest.raises(PackageError, match="cannot be read"):
        litz_aot.load(tmp_path / "p")


def test_a_package_takes_no_tensor_without_memory(tmp_path: Path) -> None:
    call = saved(tmp_path / "p", lambda x: x * 2 + 1, X)
    torch.testing.assert_close(call((-X)._neg_view()), X * 2 + 1)
    torch.testing.assert_close(call(torch._efficientzerotensor(X.shape)), torch.ones_like(X))
    freed = X.clone()
    freed.untyped_storage().resize_(0)
    with pytest.raises(MissingMemoryError):
        call(freed)
    with pytest.raises(PackageInputError, match=r"layout torch\.sparse_coo"):
        call(X.to_sparse())


def test_a_gpus_package_is_refused_without_a_gpu(tmp_path: Path) -> None:
    device = {"type": "cuda", "name": "NVIDIA H100", "made_for": "sm_90"}
    data = {"format": package.FORMAT, "version": package.VERSION, "torch": torch.__version__, "device": device}
    data |= {"exporter": "litz_aot.triton_kernels", "needs": []}
    (tmp_path / package.MANIFEST).write_text(json.dumps(data))
    with pytest.raises(PackageError, match="made for a NVIDIA H100, and there is no CUDA device here"):
        litz_aot.load(tmp_path)


def test_nothing_is_overwritten_and_no_folder_is_half_written(softmax: Path, tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="there is something already"):
        litz_aot.compile(torch.cos, (X,), softmax)
    with pytest.raises(PackageError, match="cannot be read"):
        litz_aot.load(tmp_path / "nothing")
    assert not list(softmax.parent.glob(".litz-*"))


def test_what_is_fused_just_in_time_is_fused_ahead(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32)).eval()
    torch._dynamo.reset()
    with reports.collect() as ahead:
        call = saved(tmp_path / "p", module, X)
    with reports.collect() as just_in_time, torch.no_grad():
        expected = torch.compile(module, backend="litz")(X)
    torch.testing.assert_close(call(X), expected)
    steps = [
        [f"{step.kind} {step.what} {len(step.fused)}" for step in report[0].steps] for report in (ahead, just_in_time)
    ]
    assert steps[0] == steps[1] and len(steps[0]) == 2


def test_every_variant_of_a_triton_kernel_is_stored(tmp_path: Path) -> None:
    settings = {"unaligned": [0], "sizes": 1, "limits": ["s0"], "pointers": ["*fp32"]}
    source = KernelSource("k", "triton", "text", "f", ("p", "s"), settings)
    asked: list[triton_build.Variant] = []

    def binary(variant: triton_build.Variant) -> triton_build.Binary:
        asked.append(variant)
        return triton_build.Binary(b"cubin", "f", 128, 0, 2)

    found = triton_kernels.packed(source, tmp_path, binary, 3)
    assert len(set(asked)) == 8 and sorted(found["variants"]) == sorted(p.stem for p in tmp_path.iterdir())
    assert all(triton_build.Variant.of(variant.number) == variant for variant in asked)
    assert json.loads(json.dumps(found))["variants"]["3"]["threads"] == 128


@pytest.mark.gpu
@NO_GPU
def test_on_a_gpu_kernels_come_from_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128)).eval().cuda()
    x = torch.randn(32, 64, device="cuda")
    litz_aot.compile(module, (x,), tmp_path / "p", options={"mode": "max-autotune-no-cudagraphs"})
    monkeypatch.setattr(triton_build, "build", None)  # nothing is compiled from here on
    call = litz_aot.load(tmp_path / "p")
    native = native_launch.find(None, Cache(tmp_path / "cache"))
    assert [file.name for file in (tmp_path / "p" / package.COMMON).iterdir()] == (
        [] if native is None else [native.name]
    )
    with torch.no_grad():
        torch.testing.assert_close(call(x), module(x), atol=1e-3, rtol=1e-3)
    rows = torch.randn(4 * 32 * 64 + 1, device="cuda")[1:].view(128, 64)[:32]  # starts at no multiple of 16 bytes
    with torch.no_grad():
        torch.testing.assert_close(call(rows), module(rows), atol=1e-3, rtol=1e-3)


PLUGIN = """
import ctypes
from pathlib import Path
from types import SimpleNamespace

from litz.targets.cpp.codegen import CppCodegen
from litz.target import describe_cpu
from litz_aot import cpp_kernels
from litz_plugins import Exporter, TargetSpec, hookimpl

here, made_for = cpp_kernels.here, lambda target: "a machine of mine"


def pack(source, context, folder, common):
    (common / "note.txt").write_text("for all kernels")
    return {"inner": cpp_kernels.pack(source, context, folder, common)}


def unpack(source, files, data):
    assert files["note.txt"].read_text() == "for all kernels" and not source.text
    return cpp_kernels.unpack(source, files, data["inner"])


@hookimpl
def litz_register_targets(options):
    return [TargetSpec("cpu", describe_cpu, CppCodegen())]


@hookimpl
def litz_select_exporter(target, source):
    assert target.plugin == "mine" and (source is None or source.language == "cpp" and source.text)
    return Exporter(EXPORTER) if EXPORTER else None
"""


def test_the_target_of_a_plugin_packs_its_own_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package says which plugin, and which version, it needs; without, loading is refused."""
    site, folder = tmp_path / "site", tmp_path / "p"
    metadata = site / "litz_mine-1.5.dist-info"
    metadata.mkdir(parents=True)
    (site / "litz_mine.py").write_text(f"EXPORTER = 'litz_mine'\n{PLUGIN}")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: litz-mine\nVersion: 1.5\n")
    (metadata / "entry_points.txt").write_text("[litz]\nmine = litz_mine\n")
    monkeypatch.syspath_prepend(str(site))
    call = saved(folder, lambda x: torch.softmax(x * 2, -1).sum(0), X)
    torch.testing.assert_close(call(X), torch.softmax(X * 2, -1).sum(0))
    data = json.loads((folder / package.MANIFEST).read_text())
    assert data["needs"] == [["mine", "litz-mine", "1.5"]] and data["device"]["made_for"] == "a machine of mine"

    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: litz-mine\nVersion: 1.6\n")
    with pytest.raises(PackageError, match=r"needs the plugin 'mine' \(litz-mine 1\.5\), and 1\.6 is here"):
        litz_aot.load(folder)
    shutil.rmtree(metadata)
    with pytest.raises(PackageError, match=r"needs the plugin 'mine' \(litz-mine 1\.5\), and none is here") as caught:
        litz_aot.load(folder)
    assert caught.value.todo == "pip install litz-mine==1.5"


def test_who_exports_a_kernel(tmp_path: Path) -> None:
    """litz-aot answers last, and for what core's generators write alone. Each kernel and the package are asked about
    once; another plugin may have one kernel, and the package needs its dist then."""
    asked: list[str] = []

    @hookimpl
    def litz_select_exporter(target: TargetSpec, source: KernelSource | None) -> Exporter | None:
        asked.append("package" if source is None else source.language)
        return None if source is None else Exporter("litz_aot.cpp_kernels")

    extra = [("mine", SimpleNamespace(litz_select_exporter=litz_select_exporter)), ("aot", aot_plugin)]
    plugins = make_plugins(builtin_plugins(), extra=extra, entry_points=())
    folder = Path(litz_aot.compile(lambda x: torch.softmax(x, -1).sum(0), (X,), tmp_path / "p", plugins=plugins))
    kernels = json.loads((folder / package.MANIFEST).read_text())["kernels"]
    assert sorted(asked) == sorted(["package", *("cpp" for _ in kernels)])
    options, spec = make_options(), plugins.targets(make_options())["cpu"]
    foreign = KernelSource("k", "sycl", "", "k")
    own = make_plugins(builtin_plugins(), extra=[("aot", aot_plugin)], entry_points=())
    assert own.select_exporter(spec, foreign, options) is None
    assert own.select_exporter(spec, None, options) == Exporter("litz_aot.cpp_kernels", "aot")
    assert own.select_exporter(replace(spec, plugin="mine"), None, options) is None


def test_an_exporter_that_fails_is_named(tmp_path: Path) -> None:
    class Mine:
        @hookimpl
        def litz_select_exporter(self, source: KernelSource | None) -> Exporter | None:
            return None if source is None else Exporter("no_such_dist.packed")

    extra = [("mine", Mine()), ("aot", aot_plugin)]
    plugins = make_plugins(builtin_plugins(), extra=extra, entry_points=())
    with pytest.raises(PluginHookError, match=r"'mine'.*pack of no_such_dist.packed.*ModuleNotFoundError"):
        litz_aot.compile(torch.sin, (X,), tmp_path / "p", plugins=plugins)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"full name of a module, not '.x'"):
        Exporter(".x")


def test_a_target_that_packs_nothing_is_an_error(tmp_path: Path) -> None:
    namespace: dict[str, Any] = {"EXPORTER": ""}
    exec(PLUGIN, namespace)
    extra = [("mine", SimpleNamespace(**namespace)), ("aot", aot_plugin)]
    plugins = make_plugins(builtin_plugins(), extra=extra, entry_points=())
    with pytest.raises(
        PackageError, match=r"the plugin 'mine' compiles for devices of type 'cpu', and no plugin exports"
    ):
        litz_aot.compile(torch.sin, (X,), tmp_path / "p", plugins=plugins)
    assert not list(tmp_path.iterdir())
    with pytest.raises(PackageError, match="the plugin 'meta' compiles for devices of type 'meta'"):
        litz_aot.compile(torch.sin, (X.to("meta"),), tmp_path / "p")

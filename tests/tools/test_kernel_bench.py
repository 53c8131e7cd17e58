"""The option `benchmark_kernels`: every kernel of a graph can be run and timed alone, from its file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from litz import report as reports
from litz.cli.main import main
from litz.options import make_options
from litz.pipeline import generate, make_compiler, plan_schedule
from litz.targets.triton.codegen import TritonCodegen
from litz_plugins import COUNTERS
from litz_tools.errors import KernelFileError
from litz_tools.kernel_bench import kernel_data, time_kernel
from litz_tools.kernel_files import kernel_files
from support.retarget import cuda_schedules

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def compiled(fn: Callable[..., Any], *args: Any, **options: Any) -> reports.CompileReport:
    torch._dynamo.reset()
    with reports.collect() as collected:
        torch.compile(fn, backend="litz", dynamic=options.pop("dynamic", None), options=options)(*args)
    return collected[-1]


def folder_of(report: reports.CompileReport) -> Path:
    return next(iter(report.kernel_paths.values())).parent


def some(x: torch.Tensor, index: torch.Tensor) -> Any:
    """A reduction, a gather, a mask of bools and a library call between kernels."""
    y = x.softmax(-1) @ x.t()
    return y[index] + 1, (x > 0).any(0), x.half().cumsum(0)


ARGS = (torch.randn(30, 20), torch.tensor([3, 1, 29]))


@pytest.mark.parametrize("dynamic", [False, True])
def test_every_kernel_can_be_timed_alone(tmp_path: Path, dynamic: bool) -> None:
    report = compiled(some, *ARGS, benchmark_kernels=True, cache_dir=tmp_path, dynamic=dynamic)
    files = kernel_files(folder_of(report))
    times = [time_kernel(file, 0.01) for file in files]
    assert [time.name for time in times] == list(report.kernel_paths) and len(times) > 1
    for time in times:
        assert time.problem == "" and time.us is not None and time.us > 0 and time.gb_s is not None and time.bytes > 0
    steps = {step.name: step for step in report.steps}
    assert [time.does for time in times] == [" + ".join(dict.fromkeys(steps[time.name].origins)) for time in times]


def test_a_kernel_that_works_in_place_gets_one_tensor_for_both(tmp_path: Path) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).relu() @ x

    report = compiled(fn, torch.randn(64, 64), benchmark_kernels=True, cache_dir=tmp_path)
    (path,) = kernel_files(folder_of(report))
    arguments = json.loads(path.read_text())["arguments"]
    assert [item.get("same_as") for item in arguments] == [None, 0]
    assert time_kernel(path, 0.01).problem == "" and time_kernel(path, 0.01).bytes == 4 * 64 * 64


def test_nothing_is_written_unless_asked_for(tmp_path: Path) -> None:
    report = compiled(some, *ARGS, cache_dir=tmp_path)
    assert not list(tmp_path.rglob("kernel*.json"))
    with pytest.raises(KernelFileError, match="benchmark_kernels"):
        kernel_files(folder_of(report))


def test_a_changed_source_is_what_is_timed(tmp_path: Path) -> None:
    """The file on disk is built, with the options that the compile had."""
    report = compiled(torch.sin, torch.rand(100), benchmark_kernels=True, cache_dir=tmp_path, **{"cpp.march": "x86-64"})
    (path,) = report.kernel_paths.values()
    assert json.loads(path.with_suffix(".json").read_text())["options"]["cpp.march"] == "x86-64"
    assert time_kernel(path.with_suffix(".json"), 0.01).problem == ""
    path.write_text(path.read_text() + "\n#error changed\n")
    with pytest.raises(Exception, match="#error changed"):
        time_kernel(path.with_suffix(".json"), 0.01)


def test_what_a_kernel_refuses_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    options = {"benchmark_kernels": True, "cache_dir": tmp_path, "dynamic": True}
    report = compiled(lambda x, i: x[i], torch.rand(5), torch.tensor([1, 2, 3]), **options)
    (path,) = kernel_files(folder_of(report))
    data = json.loads(path.read_text())
    assert time_kernel(path, 0.01).problem == ""  # made-up indices are 0, which is in range
    data["arguments"] = [0 if item == 5 else item for item in data["arguments"]]  # but not of no elements
    path.write_text(json.dumps(data))
    assert "index" in time_kernel(path, 0.01).problem


@pytest.mark.parametrize("source", ["nothing.cpp", "../kernel0.cpp", ""])
def test_a_source_that_is_not_there_is_an_error(tmp_path: Path, source: str) -> None:
    report = compiled(torch.sin, torch.rand(100), benchmark_kernels=True, cache_dir=tmp_path)
    (path,) = kernel_files(folder_of(report))
    data = json.loads(path.read_text())
    data["source"] = source
    path.write_text(json.dumps(data))
    with pytest.raises(KernelFileError, match="source"):
        time_kernel(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "litz-kernel", "version": 0}'])
def test_what_is_no_kernels_file_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kernel0.json"
    path.write_text(text)
    for action in (kernel_files, time_kernel):
        with pytest.raises(KernelFileError):
            action(tmp_path if action is kernel_files else path)
    with pytest.raises(KernelFileError, match="no such file"):
        kernel_files(tmp_path / "nothing")


def test_the_command_and_the_report(tmp_path: Path) -> None:
    options = {"benchmark_kernels": True, "cache_dir": tmp_path / "cache", "report_dir": tmp_path / "reports"}
    compiled(lambda x: x.exp().sum(-1), torch.rand(64, 64), **options)
    (folder,) = (path for path in (tmp_path / "reports").iterdir() if path.is_dir())
    run = CliRunner().invoke
    result = run(main, ["bench-kernels", str(folder), "--seconds", "0.01"])
    assert result.exit_code == 0 and "kernel0" in result.output and "exp + sum" in result.output
    result = run(main, ["bench-kernels", str(folder / "kernels/kernel0.cpp"), "--seconds", "0.01", "--json"])
    (row,) = json.loads(result.output)
    assert row["name"] == "kernel0" and row["us"] > 0 and row["gb_s"] > 0 and row["bytes"] == 4 * (64 * 64 + 64)
    assert run(main, ["bench-kernels", str(tmp_path / "nothing")]).exit_code == 1


def test_a_gpus_kernels_have_files_too(tmp_path: Path) -> None:
    """Of a graph of the CPU made out to be a GPU's: counters, copies of numbers, and no device to time them on."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.sin().sum(0), y.cos().amax(0)

    torch._dynamo.reset()
    compiler = make_compiler(None, {"benchmark_kernels": True})
    tensors = torch.rand(65536, 16), torch.rand(32768, 48)
    (schedule,) = cuda_schedules(lambda backend: torch.compile(fn, backend=backend)(*tensors), compiler)
    plan = plan_schedule(schedule, compiler)
    sources = generate(plan, compiler)
    for kernel in plan.kernels:
        text = kernel_data(kernel, sources[kernel.name], f"{kernel.name}.py", plan, make_options())
        data = json.loads(text)
        assert data["language"] == TritonCodegen().language and data["device"] == "cuda:0"
        given, wanted = data["arguments"], sources[kernel.name].arguments
        assert [isinstance(item, dict) and "zeros" in item for item in given] == [item == COUNTERS for item in wanted]
        (tmp_path / f"{kernel.name}.json").write_text(text)
        (tmp_path / f"{kernel.name}.py").write_text(sources[kernel.name].text)
    assert any(COUNTERS in source.arguments for source in sources.values())
    assert {time_kernel(file).problem for file in kernel_files(tmp_path)} == {"there is no CUDA device here"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_every_kernel_of_a_gpu_can_be_timed_alone(tmp_path: Path) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.softmax(-1), x.sin().sum(0), y.cos().amax(0), x @ x.t()

    tensors = torch.rand(4096, 256, device="cuda"), torch.rand(32768, 48, device="cuda")
    report = compiled(fn, *tensors, benchmark_kernels=True, cache_dir=tmp_path)
    times = [time_kernel(file, 0.02) for file in kernel_files(folder_of(report))]
    assert times and all(time.problem == "" and time.us is not None and time.us > 0.5 for time in times)

"""Building and launching Triton kernels, with the CUDA driver replaced by a recorder."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from litz.cache.disk import Cache
from litz.errors import KernelBuildError
from litz.target import target_of
from litz.targets.triton import cuda_driver, native_launch
from litz.targets.triton.build import build, load
from litz.targets.triton.compile import Job, Variant, compile_job, retried
from litz_plugins import CodegenContext
from support.triton_cases import CASES, Case


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """(kernel's name, grid, arguments) of each launch; and (kernel's name, None, shared) of each cubin loaded."""
    seen: list[Any] = []

    def load_function(cubin: bytes, name: str, device: int, threads: int, shared: int, *counts: int) -> Any:
        assert cubin[:4] == b"\x7fELF"
        assert counts[1] >= counts[0]
        number = sum(grid is None for _, grid, _ in seen)
        seen.append((name, None, shared))
        return cuda_driver.Function(name, number, device, threads, shared, *counts)

    def make_launch(function: cuda_driver.Function, native: ModuleType | None) -> Any:
        return lambda grid, *values: seen.append((function.handle, grid, values))

    def make_fixed_launch(function: cuda_driver.Function, native: ModuleType | None, grid: int, *rest: Any) -> Any:
        aligned, otherwise = rest

        def launch(*values: int) -> None:
            if any(values[n] % 16 for n in aligned):
                return otherwise(*values)
            return seen.append((function.handle, grid, values))

        return launch

    for stand_in in (load_function, make_launch, make_fixed_launch):
        monkeypatch.setattr(cuda_driver, stand_in.__name__, stand_in)
    for name, result in (("load", ModuleType("native")), ("prepare", None)):
        monkeypatch.setattr(native_launch, name, lambda compiler, cache, result=result: result)
    return seen


def _context(case: Case, folder: Path) -> CodegenContext:
    return CodegenContext(None, target_of("cuda:0"), case.program, Cache(folder))  # type: ignore[arg-type]


def test_static_sizes_have_a_fixed_grid(launches: list[Any], tmp_path: Path) -> None:
    case = CASES["bias"]()
    launch = load(case.source, _context(case, tmp_path))
    launch(16, 32, 48)
    assert launches[-1] == (0, 14, (16, 32, 48))


def test_nothing_is_launched_for_nothing(launches: list[Any], tmp_path: Path) -> None:
    for name, arguments in (("empty-float32", (16, 32)), ("symbolic-empty", (16, 32, 48, 0, 37))):
        case = CASES[name]()
        load(case.source, _context(case, tmp_path))(*arguments)
    assert all(grid is None for _, grid, _ in launches)


def test_sizes_choose_grid_and_variant(launches: list[Any], tmp_path: Path) -> None:
    case = CASES["symbolic"]()
    launch = load(case.source, _context(case, tmp_path))
    block = int(case.source.text.split("XBLOCK: tl.constexpr = ")[1].split()[0])
    launch(16, 32, 48, 64, 32)
    assert launches[-1] == (0, 2048 // block, (16, 32, 48, 64, 32))
    launch(16, 32, 48, 5, 7)  # no multiples of 16: another variant, built now
    assert launches[-1] == (1, -(-35 // block), (16, 32, 48, 5, 7))
    launch(16, 32, 48, 2**20, 2**12)  # more than 32 bits count
    assert launches[-1][0] == 2
    launch(16, 32, 48, 5, 9)
    assert launches[-1][0] == 1


def test_unaligned_pointers_choose_a_variant(launches: list[Any], tmp_path: Path) -> None:
    case = CASES["scatter-rows"]()
    launch = load(case.source, _context(case, tmp_path))
    launch(16, 32, 48)
    launch(16, 32, 52)
    assert [number for number, grid, _ in launches if grid is not None] == [0, 1]


def test_what_is_built_is_found_again(launches: list[Any], tmp_path: Path) -> None:
    case = CASES["softmax"]()
    binary = build(case.source, (9, 0), Cache(tmp_path), Variant())
    code = f"""
import sys
from pathlib import Path
from litz.cache.disk import Cache
from litz.targets.triton.build import build
from litz.targets.triton.compile import Variant
from litz_plugins import KernelSource
source = {case.source!r}
binary = build(source, (9, 0), Cache(Path({str(tmp_path)!r})), Variant())
assert "triton" not in sys.modules or "triton.compiler" not in sys.modules
print(len(binary.cubin), binary.name, binary.parameters)
"""
    path = [entry for entry in sys.path if entry]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": ":".join(path), "PATH": ""}
    )
    assert done.stdout.split() == [str(len(binary.cubin)), binary.name, str(binary.parameters)], done.stderr[-2000:]
    assert len(Cache(tmp_path)._entries()) == 1


def test_kernels_are_built_in_parallel(launches: list[Any], tmp_path: Path) -> None:
    names = ["bias", "softmax", "layer-norm", "bias"]
    case = CASES["bias"]()
    with ThreadPoolExecutor(4) as pool:
        functions = list(pool.map(lambda name: load(CASES[name]().source, _context(case, tmp_path)), names))
    assert len(functions) == 4
    assert len(Cache(tmp_path)._entries()) == 3  # equal texts are one entry


def test_variants_of_one_kernel_may_be_built_by_several_threads(launches: list[Any], tmp_path: Path) -> None:
    case = CASES["symbolic"]()
    launch = load(case.source, _context(case, tmp_path))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: launch(16, 32, 48, n, 3), range(1, 5)))
    assert sum(grid is not None for _, grid, _ in launches) == 4


def test_a_kernel_that_wants_memory_of_its_own_is_given_it(
    launches: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Descriptors that are made on the device lie in global memory: so many bytes for each program."""
    case = CASES["bias"]()
    text = case.source.text
    first = next(line for line in text.splitlines() if "tl.load(" in line)
    made = "    d = tl.make_tensor_descriptor(p0, [16, 64], [64, 1], [16, 64])\n    d.store([0, 0], d.load([0, 0]))"
    source = replace(case.source, text=text.replace(first, f"{made}\n{first}"))
    asked: list[int] = []

    def empty(nbytes: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        asked.append(nbytes)
        return torch.zeros(nbytes, dtype=dtype)

    monkeypatch.setattr("litz.targets.triton.build.torch.empty", empty)
    load(source, _context(case, tmp_path))(16, 32, 48)
    _, grid, values = launches[-1]
    assert len(asked) == 1 and asked[0] >= 128 * grid and asked[0] % grid == 0
    assert values[:-1] == (16, 32, 48) and values[-1] > 0


def test_a_kernel_that_does_not_compile(launches: list[Any], tmp_path: Path) -> None:
    case = CASES["bias"]()
    source = replace(case.source, text=case.source.text.replace("tmp0 + tmp1", "tmp0 + nothing"))
    with pytest.raises(KernelBuildError, match="nothing") as caught:
        load(source, _context(case, tmp_path))
    assert caught.value.kernel == "kernel"
    assert Path(caught.value.source).read_text() == source.text
    Path(caught.value.source).unlink()


def test_kernels_are_compiled_where_the_options_say(
    launches: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of another variant, too, which a call needs later."""
    asked: list[Any] = []

    def compiling(options: Any) -> Any:
        def compile_(job: Job, folder: Path) -> str:
            asked.append((options.name, job.variant))
            return compile_job(job, folder)

        return compile_

    monkeypatch.setattr("litz.targets.triton.workers.compiling", compiling)
    case = CASES["scatter-rows"]()
    options: Any = SimpleNamespace(name="given")
    context = replace(_context(case, tmp_path), options=options)
    launch = load(case.source, context)
    launch(16, 32, 52)
    assert asked == [("given", Variant()), ("given", Variant(aligned=False))]


def test_a_parser_that_tripped_over_a_thread_tries_again() -> None:
    problems = [SystemError("AST constructor recursion depth mismatch (before=72, after=75)")] * 3

    def compile_() -> str:
        if problems:
            raise problems.pop()
        return "compiled"

    assert retried(compile_) == "compiled"
    problems = [SystemError("AST constructor recursion depth mismatch (before=90, after=136)")]

    def wrapped() -> str:
        """As Triton reports it of a function that a kernel calls."""
        try:
            return compile_()
        except SystemError as error:
            raise ValueError("at 29:12") from error

    assert retried(wrapped) == "compiled" and not problems

    def broken() -> str:
        raise SystemError("something else")

    with pytest.raises(SystemError, match="something else"):
        retried(broken)

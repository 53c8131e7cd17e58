"""A kernel that calls BLAS: linked by the name of torch's library, which the linker need not read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from litz.cache.disk import Cache
from litz.options import Options
from litz.runtime import builders, cpp_compiler
from litz.target.processors import has_blas
from litz.targets.cpp import build as cpp_build
from litz_plugins import KernelSource

pytestmark = pytest.mark.skipif(not has_blas(), reason="torch's library has no BLAS to call")

TEXT = """
extern "C" void sgemm_(const char*, const char*, const int*, const int*, const int*, const float*, const float*,
                       const int*, const float*, const int*, const float*, float*, const int*);
extern "C" int product(const float* a, const float* b, float* c) {
  const int n = 8;
  const float one = 1, none = 0;
  sgemm_("N", "N", &n, &n, &n, &one, a, &n, b, &n, &none, c, &n);
  return 0;
}
"""


def test_the_linker_reads_an_empty_library_in_place_of_torchs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    run = cpp_compiler.run_program

    def traced(line: Sequence[str], seconds: float | None = None) -> builders.Done:
        done = run([*line, "-Wl,--trace"] if "/dev/null" not in line and "--version" not in line else line, seconds)
        lines.extend(done.output.splitlines())
        return done

    monkeypatch.setattr(cpp_compiler, "run_program", traced)
    built_and_right(tmp_path)
    (read,) = [line for line in lines if line.endswith(cpp_build.TORCH)]
    assert not read.startswith(str(Path(torch.__file__).parent)), read


def test_without_it_the_linker_reads_torchs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp_build, "_stand_in", lambda compiler, folder: f"-L{folder}")
    built_and_right(tmp_path)


def built_and_right(folder: Path) -> None:
    settings = {"blas": True, "bounds": [], "sizes": 0}
    source = KernelSource("product", "cpp", TEXT, "product", ("a", "b", "c"), settings)
    launch = cpp_build.load_kernel(source, SimpleNamespace(options=Options(), cache=Cache(folder)))
    a, b, c = torch.randn(8, 8), torch.randn(8, 8), torch.empty(8, 8)
    launch(b.data_ptr(), a.data_ptr(), c.data_ptr())
    torch.testing.assert_close(c, a @ b)
    assert not [*folder.rglob(cpp_build.TORCH)], "the empty library is not kept"

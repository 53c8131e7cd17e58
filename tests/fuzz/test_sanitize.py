"""AddressSanitizer in a run: what leaves a buffer ends the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from litz.options import make_options
from litz.targets.cpp.build import find_compiler
from litz_testing.fuzz.run import run
from litz_testing.fuzz.sanitize import settings

COMPILER = find_compiler(make_options().cpp_compiler)
pytestmark = pytest.mark.skipif(COMPILER.clang, reason="the sanitizer's libraries are g++'s")


def test_an_access_beyond_the_end_is_told(tmp_path: Path) -> None:
    (tmp_path / "kernel.cpp").write_text('extern "C" void put(int* p, int at) { p[at] = 1; }')
    library, environment = tmp_path / "kernel.so", settings(COMPILER, tmp_path)
    compiler = next(item.partition("=")[2] for item in environment if item.startswith("LITZ_CXX="))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "kernel.cpp"], check=True)
    code = (
        "import ctypes, sys; libc = ctypes.CDLL(None); libc.malloc.restype = ctypes.c_void_p\n"
        f"ctypes.CDLL({str(library)!r}).put(ctypes.c_void_p(libc.malloc(16)), int(sys.argv[1]))"
    )
    for at, status in (("3", 0), ("4", -6)):
        done = subprocess.run(
            ["env", *environment, sys.executable, "-c", code, at], capture_output=True, text=True, encoding="utf-8"
        )
        assert done.returncode == status and ("heap-buffer-overflow" in done.stderr) == bool(status), done.stderr


@pytest.mark.nightly
def test_programs_run_with_it(tmp_path: Path) -> None:
    record = run("sanitized", 4, workers=1, sanitize=True, folder=tmp_path)
    assert record.programs == 4 and not record.failures and record.counts["runs, compiled"] >= 4

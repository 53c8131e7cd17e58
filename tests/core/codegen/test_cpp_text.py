"""Golden text, canonical names, the builder and its errors."""

from __future__ import annotations

import stat
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from litz.cache.disk import Cache
from litz.errors import CompilerNotFoundError, KernelBuildError
from litz.ir import Store, build
from litz.options import Options
from litz.target import target_of
from litz.targets.cpp import build as cpp_build
from litz.targets.cpp.prelude import PIECES, prelude
from litz_plugins.records import CodegenContext, KernelSource
from support.cpp_kernels import CACHE, CODEGEN, Case, I, R, load

F32 = torch.float32


def bias_case(x: str = "x", bias: str = "bias", name: str = "case") -> Case:
    a, b = torch.randn(4, 8), torch.randn(8)
    value = build.call("add", load(x, a), build.call("exp", load(bias, b, I[1])))
    return Case([4, 8], [Store("o", (I[0], I[1]), value)], {x: a, bias: b}, {"o": torch.empty(4, 8)}, name=name)


def body(source: KernelSource) -> str:
    return source.text[source.text.index('extern "C" int kernel') :]


def test_golden_pointwise() -> None:
    source = bias_case().check()
    assert source.text.startswith("// pointwise kernel [4, 8]: exp, add\n")
    assert body(source) == textwrap.dedent("""\
        extern "C" int kernel(const float* p0, const float* p1, float* p2) {
          for (int i0 = 0; i0 < 4; ++i0) {
            #pragma omp simd
            for (int i1 = 0; i1 < 8; ++i1) {
              const float v0 = p0[i0 * 8 + i1];
              const float v1 = p1[i1];
              const float v2 = exp(v1);
              const float v3 = v0 + v2;
              p2[i0 * 8 + i1] = v3;
            }
          }
          return 0;
        }
        """)


def test_golden_softmax() -> None:
    x = torch.randn(512, 300)
    row = build.load("x", (I[0], R[0]), F32)
    e = build.call("exp", build.call("sub", row, build.reduce("max", row)))
    store = Store("o", (I[0], R[0]), build.call("div", e, build.reduce("sum", e)))
    source = Case([512], [store], {"x": x}, {"o": torch.empty(512, 300)}, [300]).check()
    assert source.text.startswith("// row kernel [512 | 300]: reduce max, sub, exp, reduce sum, div\n")
    assert body(source) == textwrap.dedent("""\
        extern "C" int kernel(const float* p0, float* p1) {
          #pragma omp parallel for schedule(static)
          for (int i0 = 0; i0 < 512; ++i0) {
            float max0 = -__builtin_inff();
            int nan1 = 0;
            #pragma omp simd reduction(greatest : max0) reduction(| : nan1)
            for (int r0 = 0; r0 < 300; ++r0) {
              const float v2 = p0[i0 * 300 + r0];
              max0 = v2 > max0 ? v2 : max0;
              nan1 |= v2 != v2;
            }
            max0 = nan1 ? __builtin_nanf("") : max0;
            const float v3 = max0;
            alignas(64) float row5[300];
            float sum4 = 0;
            #pragma omp simd reduction(+ : sum4)
            for (int r0 = 0; r0 < 300; ++r0) {
              const float v6 = p0[i0 * 300 + r0];
              const float v7 = v6 - v3;
              const float v8 = exp(v7);
              row5[r0] = v8;
              sum4 += v8;
            }
            const float v9 = sum4;
            #pragma omp simd
            for (int r0 = 0; r0 < 300; ++r0) {
              const float v10 = row5[r0] / v9;
              p1[i0 * 300 + r0] = v10;
            }
          }
          return 0;
        }
        """)


def test_equal_kernels_have_equal_text() -> None:
    one, two = bias_case().source(), bias_case("left", "right", "other").source()
    assert one.text == two.text and one.settings == two.settings
    assert one.arguments == ("x", "bias", "o") and two.arguments == ("left", "right", "o")
    assert (one.name, two.name) == ("case", "other")


def test_owned_scatter_has_no_atomics() -> None:
    """Threads that own columns of a table do not meet, and sums come out the same every time."""
    source, index = torch.randn(600, 128), torch.randint(0, 40, (600,))
    row = build.bounded(build.load("index", (I[0],), torch.int64), 40)
    from litz.ir.index import placeholder

    store = Store("t", (placeholder(0), I[1]), build.load("x", (I[0], I[1]), F32), (row,), "add")
    t = torch.zeros(40, 128)
    case = Case([600, 128], [store], {"x": source, "index": index, "t": t}, {"t": t})
    text = case.check(rtol=1e-4, atol=1e-4).text
    assert "atomic" not in text and "omp parallel" in text
    assert torch.equal(case.run()["t"], case.run()["t"])


def test_prelude_has_what_is_used_and_no_more() -> None:
    assert prelude("int x;") == ""
    text = prelude("to_bf16(maximum(v0, v1))")
    assert "typedef unsigned short bf16" in text and "minimum" in text and "to_f16" not in text
    assert text.index("bits(float x)") < text.index("bf16 to_bf16")


def test_every_piece_of_the_prelude_builds(tmp_path: Path) -> None:
    names = " ".join(name for names in PIECES for name in names)
    text = prelude(names) + '\nextern "C" int kernel() { return 0; }\n'
    assert cpp_build.build(KernelSource("prelude", "cpp", text, "kernel"), Options(), CACHE).exists()


# ---------------------------------------------------------------------- the builder


def context(cache: Cache, **options: object) -> CodegenContext:
    return CodegenContext(Options().replace(**options), target_of("cpu"), None, cache)


def test_build_error_says_what_and_where(tmp_path: Path) -> None:
    source = KernelSource("litz_broken", "cpp", 'extern "C" int kernel() { return nothing; }\n', "kernel")
    with pytest.raises(KernelBuildError, match="litz_broken") as caught:
        CODEGEN.load(source, context(Cache(tmp_path)))
    error = caught.value
    assert "nothing" in error.stderr and Path(error.source).read_text() == source.text
    assert error.source in error.command
    assert not list((tmp_path / "cpp").glob("[0-9a-f]*"))


def test_no_compiler() -> None:
    with pytest.raises(CompilerNotFoundError, match="no-such-compiler"):
        cpp_build.find_compiler("/opt/no-such-compiler")


def test_built_once(tmp_path: Path) -> None:
    """Threads that ask at once, and a second process, find one entry."""
    cache = Cache(tmp_path)
    source = KernelSource("k", "cpp", 'extern "C" int kernel() { return 0; }\n', "kernel")
    with ThreadPoolExecutor(4) as threads:
        functions = list(threads.map(lambda _: CODEGEN.load(source, context(cache)), range(8)))
    assert all(function() == 0 for function in functions)
    (folder,) = [p for p in (tmp_path / "cpp").iterdir() if p.is_dir()]
    assert (folder / "kernel.cpp").read_text() == source.text
    before = (folder / "kernel.so").stat().st_mtime_ns
    CODEGEN.load(source, context(Cache(tmp_path)))
    assert (folder / "kernel.so").stat().st_mtime_ns == before


def test_damaged_entry_is_built_anew(tmp_path: Path) -> None:
    source = KernelSource("k", "cpp", 'extern "C" int kernel() { return 3; }\n', "kernel")
    path = cpp_build.build(source, Options(), Cache(tmp_path))
    path.chmod(path.stat().st_mode | stat.S_IWUSR)
    path.write_bytes(b"not a library")
    assert CODEGEN.load(source, context(Cache(tmp_path)))() == 3


def test_flags_are_part_of_the_key(tmp_path: Path) -> None:
    source = KernelSource("k", "cpp", 'extern "C" int kernel() { return 0; }\n', "kernel")
    safe = replace(source, settings={"forms": ["unoptimized"]})
    cache = Cache(tmp_path)
    native = cpp_build.build(source, Options(), cache)
    other = cpp_build.build(source, Options().replace(cpp_march="x86-64-v2"), cache)
    assert len({native, other, cpp_build.build(safe, Options(), cache)}) == 3


def test_one_pool_of_threads() -> None:
    """The kernel uses the OpenMP runtime that torch uses: no second one is loaded."""
    n = 1 << 20
    x = torch.randn(n)
    Case([n], [Store("o", (I[0],), build.call("exp", load("x", x)))], {"x": x}, {"o": torch.empty(n)}).check()
    maps = Path("/proc/self/maps")
    if not maps.exists() or cpp_build.openmp_library() is None:
        pytest.skip("no /proc, or torch brings no OpenMP")
    loaded = {line.split()[-1] for line in maps.read_text().splitlines() if "gomp" in line}
    assert len(loaded) == 1

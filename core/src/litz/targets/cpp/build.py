"""Build C++ kernels with the system's compiler and load them.

In: a source text, options and the cache. Out: a function that launches the kernel. A kernel is found in the cache by
its text, the compiler, the flags and the processor; equal texts are built once, by whoever is first.

Kernels are linked against the OpenMP runtime that torch itself loaded, so that both share one pool of threads and
`torch.set_num_threads` counts for both.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from litz.cache.disk import Cache, digest, folder_for_texts
from litz.errors import CacheError, KernelBuildError, out_of_bounds
from litz.runtime.builders import run_program
from litz.runtime.cpp_compiler import FORMS, WIDEST, Compiler, compile_library, find_compiler
from litz.runtime.libraries import Library, load_library

SOURCE, LIBRARY = "kernel.cpp", "kernel.so"
TORCH = "libtorch_cpu.so"
"""torch's library, which has BLAS."""
FLAGS = (
    "-std=c++17", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math",
    # Eager rounds after every operation, and memory-bound kernels do not miss the fused multiply-add.
    "-ffp-contract=off", "-fno-builtin-sin", "-fno-builtin-sinf",  # and no call for sine and cosine, of other bits
    # Memory is reused between buffers of different types.
    "-fno-strict-aliasing", "-fno-semantic-interposition", "-fvisibility=default", "-w",
    "-fno-exceptions",  # nothing throws, and a handler would need C++'s library, which is not linked
)  # fmt: skip


@functools.lru_cache
def cpu_flags() -> str:
    """Returns what tells processors apart: a kernel that is built with -march=native runs on its like only."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("flags", "Features")):
                return line.split(":", 1)[1].strip()
    return f"{platform.machine()} {platform.processor()}"


@functools.lru_cache
def openmp_library() -> Path | None:
    """Returns the path of the OpenMP runtime that torch bundles (its name may contain a hash); None without one."""
    here = Path(torch.__file__).parent
    for folder in (here / "lib", here.parent / "torch.libs"):
        for pattern in ("libgomp*.so*", "libomp*.so*", "libiomp5*.so*", "libomp*.dylib"):
            found = sorted(folder.glob(pattern))
            if found:
                return found[0]
    return None


@functools.lru_cache
def vector_math() -> bool:
    """Returns whether the C library has SIMD variants of all functions that the prelude declares as VECTOR, as glibc
    from 2.35 on has on x86-64."""
    if platform.machine() not in ("x86_64", "AMD64") or not sys.platform.startswith("linux"):
        return False
    try:
        library = ctypes.CDLL("libmvec.so.1")
    except OSError:
        return False
    return hasattr(library, "_ZGVdN8v_tanhf") and hasattr(library, "_ZGVdN4v_erfc")


@functools.lru_cache
def command(compiler: Compiler, march: str, forms: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Returns the compiler's flags, without source and output. forms: keys of `FORMS`, for a kernel in a safe form."""
    flags = [*compiler.words, *FLAGS, f"-march={march}"]
    if platform.machine() in ("x86_64", "AMD64"):
        # Without AVX, g++ parks halves of vectors in MMX registers and does not clear them: libm's next fmod is NaN.
        # With AVX-512, g++ 12 parks vectors in the red zone below the stack pointer, at unaligned addresses, and stores
        # them by an instruction for aligned ones: the process dies.
        flags += ["-mno-mmx", "-mno-red-zone"]
    # Without this flag g++ makes vectors of marked loops at any cost: 40 s of compiling, and 100 times as slow code.
    flags += [] if compiler.clang else ["-fsimd-cost-model=dynamic"]
    if sys.platform == "darwin":
        flags += ["-undefined", "dynamic_lookup"]  # Apple's clang has no OpenMP; pragmas are ignored
    else:
        openmp = openmp_library()
        other = compiler.clang and openmp is not None and "libgomp" in openmp.name
        flags.append("-fopenmp-simd" if other else "-fopenmp")
        if vector_math():
            wide = 256 if compiler.clang else 8 * WIDEST  # as the variants that give all results (`prelude._SIMD`)
            flags += ["-DLITZ_LIBMVEC=1", f"-mprefer-vector-width={wide}", *["-fveclib=libmvec"] * compiler.clang]
    return (*flags, *(flag for form in FORMS if form in forms for flag in FORMS[form][compiler.clang]))


def libraries(compiler: Compiler, blas: bool = False) -> tuple[str, ...]:
    """Returns what to link against, to be placed after the source. blas: torch's own BLAS too."""
    if sys.platform == "darwin":
        return ()
    found = ["-Wl,--as-needed"]
    if blas:
        folder = Path(torch.__file__).parent / "lib"
        found += [f"-L{folder}", "-Wl,--no-as-needed", f"-l:{TORCH}", "-Wl,--as-needed"]
        found += [f"-Wl,-rpath,{folder}", "-Wl,--allow-shlib-undefined"]
    openmp = openmp_library()
    if openmp is not None and "libgomp" in openmp.name and not compiler.clang:
        found += [str(openmp), f"-Wl,-rpath,{openmp.parent}"]
    found += ["-lmvec"] if vector_math() else []
    # Kernels use none of C++'s library, which the linker takes a sixth of a small build to read.
    return (*found, "-lm") if compiler.clang else (*found, "-nodefaultlibs", "-lm", "-lgcc", "-lc")


def toolchain(options: Any, forms: Sequence[str] = (), blas: bool = False) -> tuple[str, ...]:
    """Returns everything besides a kernel's text that its binary depends on: the compiler, its flags, the libraries
    and the processor."""
    compiler = find_compiler(options.cpp_compiler)
    flags, linked = command(compiler, options.cpp_march, tuple(forms)), libraries(compiler, blas)
    return compiler.version, " ".join(flags), " ".join(linked), cpu_flags()


def build(source: Any, options: Any, cache: Cache) -> Path:
    """Returns the shared object of a KernelSource. settings["forms"]: the safe forms that it needs (`FORMS`); "blas":
    does it call BLAS?

    Errors: CompilerNotFoundError, KernelBuildError, CacheError.
    """
    return _use(source, options, cache, lambda folder: folder / LIBRARY)


def _use(source: Any, options: Any, cache: Cache, read: Callable[[Path], Any]) -> Any:
    """Returns what `read` makes of the folder in which a kernel's library lies."""
    name, text, forms = source.name, source.text, tuple(source.settings.get("forms", ()))
    compiler = find_compiler(options.cpp_compiler)
    blas = bool(source.settings.get("blas", False))
    flags, linked = command(compiler, options.cpp_march, forms), libraries(compiler, blas)
    key = digest(text, *toolchain(options, forms, blas))

    def make(folder: Path) -> None:
        written, library = folder / SOURCE, folder / LIBRARY
        written.write_text(text, encoding="utf-8")
        first = [_stand_in(compiler, folder)] if blas else []
        problem = compile_library([*flags, "-o", str(library), str(written), *first, *linked], library)
        if blas:
            (folder / TORCH).unlink(missing_ok=True)
        if problem:
            kept = _keep(cache, key, text)
            again = [*flags, "-o", "/dev/null", str(kept or SOURCE), *linked]
            raise KernelBuildError(name, again, problem, str(kept or ""))

    return cache.use("cpp", key, make, read, needs=(LIBRARY,))


def _stand_in(compiler: Compiler, folder: Path) -> str:
    """Makes an empty library by the name of torch's, and returns the flag by which the linker finds the library. The
    linker takes a third of a second to read torch's own, and needs of the library only its name: the process has
    loaded it. Where nothing can be made, the linker goes on to torch's own."""
    path = folder / TORCH
    line = [*compiler.words, "-shared", "-nostdlib", f"-Wl,-soname,{TORCH}", "-o", str(path), "-x", "c", "/dev/null"]
    run_program(line)
    return f"-L{folder}"


def _keep(cache: Cache, key: str, text: str) -> Path | None:
    """The source of a kernel that did not build, where the user can look at it; None where it cannot be written."""
    try:
        path = folder_for_texts(cache.root) / f"{key}.cpp"
        path.write_text(text, encoding="utf-8")
    except (OSError, CacheError):
        return None
    return path


def load_kernel(source: Any, context: Any) -> Callable[..., Any]:
    """Builds and loads a KernelSource; returns the function that launches it, which takes ints.

    A kernel with `bounded` indices raises an IndexRangeError (for a divisor an IntegerDivisionError) where one does not
    hold; any other is the bare C function.
    """
    library = _loaded(source, context.options, context.cache)
    try:
        function = library[source.symbol]
    except AttributeError as cause:
        problem = f"the library that the compiler made has no function {source.symbol}"
        raise KernelBuildError(source.name, "the C++ compiler", problem) from cause
    return bind(function, source)


def _loaded(source: Any, options: Any, cache: Cache) -> Library:
    """The library of a KernelSource."""
    library: Library = _use(source, options, cache, lambda folder: load_library(folder / LIBRARY))
    return library


def bind(function: Any, source: Any) -> Callable[..., Any]:
    """Returns a C function of a loaded library in the form in which `load_kernel` returns it."""
    sizes = int(source.settings.get("sizes", 0))
    pointers = len(source.arguments) - sizes
    function.argtypes = [ctypes.c_void_p] * pointers + [ctypes.c_int64] * sizes
    function.restype = ctypes.c_int
    bounds = tuple((size, what) for size, what in source.settings.get("bounds", ()))
    if not bounds:
        return function
    return _checked(function, source.name, bounds, pointers)


def _checked(
    function: Callable[..., int], name: str, bounds: tuple[tuple[str, str], ...], pointers: int
) -> Callable[..., None]:
    """A launch function that turns the number of a check that failed into its error."""

    def launch(*arguments: int) -> None:
        failed = function(*arguments)
        if failed:
            bound, what = bounds[failed - 1]
            values = {f"s{n}": value for n, value in enumerate(arguments[pointers:])}
            known = ", ".join(f"{size} = {value}" for size, value in values.items() if size in bound)
            raise out_of_bounds(name, f"{bound} ({known})" if known else bound, what)

    return launch

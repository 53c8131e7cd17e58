"""`litz doctor`: whether this machine has what litz needs, and what to do about what it lacks.

Each check is a function that returns `Check` rows; none raises. The compiler check builds and runs a small OpenMP
kernel, since a compiler that is there often lacks one part (headers, OpenMP, permission to run what it wrote).
"""

from __future__ import annotations

import ctypes
import shlex
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from litz.cache.disk import Cache
from litz.cli.common import current_options, load_plugins, missing_plugins, no_plugin_warnings
from litz.errors import KernelBuildError, LitzError, compiler_install_hint
from litz.logs.units import size_text
from litz.options import Options, default_cache_dir
from litz.origins.trust import OWN, Trust, make_trust
from litz.runtime.cpp_compiler import COMPILERS, compile_library, find_command
from litz_plugins import CodegenContext, PluginDeprecationWarning, Verdict, unknown_target

from .checks import Check, show_checks

_OLDEST_TORCH = (2, 11)
_LITTLE_SPACE = 1 << 30  # bytes; a big model's kernels take some hundred MiB

_KERNEL = r"""
#ifdef _OPENMP
#include <omp.h>
#endif
#include <cmath>
extern "C" double litz_doctor(long n, int* threads) {
    double sum = 0;
    *threads = 1;
#ifdef _OPENMP
    *threads = omp_get_max_threads();
#endif
    #pragma omp parallel for reduction(+:sum)
    for (long i = 0; i < n; ++i) sum += std::sqrt((double)i) * std::sqrt((double)i);
    return sum;
}
"""


def check_all() -> list[Check]:
    """Returns the rows of every check, each after those that it depends on. Kernels are not checked where an earlier
    check fails."""
    options, checks = _check_options()
    for check in (_check_torch, _check_devices, _check_triton):
        checks += _guarded(check)
    checks += _guarded(lambda: check_compiler(options.cpp_compiler, options.cpp_march))
    checks += _guarded(lambda: check_cache(options.cache_dir, options.cache, make_trust(options.trust)))
    if all(check.status != "fail" for check in checks):
        checks += _guarded(lambda: check_kernels(options))
    checks += _guarded(lambda: _check_launch(options))
    checks += _guarded(check_plugins)
    return checks


def _guarded(check: Callable[[], list[Check]]) -> list[Check]:
    """A check's rows; a row that says so when the check itself goes wrong."""
    try:
        return check()
    except Exception as cause:
        name = getattr(check, "__name__", "check").removeprefix("_check_")
        return [Check(name, "fail", f"{type(cause).__name__}: {cause}", "please report this as a bug in litz")]


def _check_options() -> tuple[Options, list[Check]]:
    try:
        return current_options(), []
    except LitzError as error:
        return Options(), [Check("options", "fail", str(error), "correct or unset the variable")]


def _check_torch() -> list[Check]:
    try:
        import torch
    except Exception as cause:
        return [Check("torch", "fail", f"cannot be imported: {cause}", "pip install torch")]
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < _OLDEST_TORCH:
        return [Check("torch", "fail", f"{torch.__version__} is too old", "pip install 'torch>=2.11'")]
    return [Check("torch", "ok", f"{torch.__version__}, Python {sys.version.split()[0]}")]


def _check_devices() -> list[Check]:
    import torch

    rows = [Check("cpu", "ok", f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}")]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        detail = f"{properties.name}, sm_{properties.major}{properties.minor}, {size_text(properties.total_memory)}"
        old = properties.major < 8 and torch.version.hip is None
        todo = "litz is tested on compute capability 8.0 and later" if old else ""
        rows.append(Check(f"cuda:{index}", "warn" if old else "ok", detail, todo))
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        detail = f"none, though torch was built for {built}" if built else "none (torch is a CPU build)"
        todo = "check the driver with nvidia-smi, and CUDA_VISIBLE_DEVICES" if built else ""
        rows.append(Check("cuda", "warn" if built else "ok", detail, todo))
    return rows


def _check_triton() -> list[Check]:
    import torch

    try:
        import triton

        return [Check("triton", "ok", triton.__version__)]
    except Exception as cause:
        if torch.cuda.is_available():
            return [Check("triton", "fail", f"cannot be imported: {cause}", "pip install triton")]
        return [Check("triton", "ok", "not installed; only GPUs need it")]


def check_compiler(compiler: str | None, march: str, candidates: Sequence[str] = COMPILERS) -> list[Check]:
    """Finds a C++ compiler, builds a shared library with OpenMP, loads it and returns a row on what it computes."""
    looked = compiler or ", ".join(candidates)
    command = next(filter(None, map(find_command, [compiler] if compiler else candidates)), None)
    if command is None:
        return [Check("compiler", "fail", f"none found; looked for {looked}", compiler_install_hint())]
    with tempfile.TemporaryDirectory(prefix="litz-doctor-") as folder:
        library = Path(folder) / "kernel.so"
        openmp = _build(command, march, library, openmp=True) is None
        problem = None if openmp else _build(command, march, library, openmp=False)
        if problem is not None:
            return [Check("compiler", "fail", f"{shlex.join(command)}: {problem}", compiler_install_hint())]
        row = _run_kernel(command, library)
    if openmp or row.status == "fail":
        return [row]
    todo = "install the compiler's OpenMP library (libgomp or libomp)"
    if sys.platform == "darwin":
        todo = "brew install libomp"
    return [Check("compiler", "warn", f"{shlex.join(command)} has no OpenMP: kernels run on one thread", todo)]


def check_kernels(options: Options) -> list[Check]:
    """Returns a row for each target that tries what builds its kernels: which constructs are built right, by the
    verdict that compiles share (`TargetSpec.qualify`)."""
    import torch

    cache = Cache(options.cache_dir, options.cache, trust=make_trust(options.trust))
    rows = []
    for spec in load_plugins()[0].targets(options).values():
        if spec.qualify is not None:
            context = CodegenContext(options, unknown_target(torch.device(spec.type)), cache=cache)
            name = "kernels" if spec.plugin == "cpp" else f"kernels for {spec.type}"
            rows.append(_row_of(name, spec.qualify(None, context)))
    return rows


def _row_of(name: str, verdict: Verdict) -> Check:
    if not verdict.constructs:
        return Check(name, "ok", f"{verdict.toolchain}: not tested (cpp.qualify is off)")
    if not verdict.safe_forms:
        right = f"{verdict.constructs} constructs right, in {verdict.seconds:.1f} s"
        return Check(name, "ok", f"{verdict.toolchain}: {right}")
    wrong = ", ".join(f"{what} ({form or 'no form is right'})" for what, form in verdict.safe_forms.items())
    if None in verdict.safe_forms.values():
        todo = "name another compiler: CXX=/path/to/g++"
        return Check(name, "fail", f"{verdict.toolchain} gets wrong: {wrong}", todo)
    todo = "another compiler makes faster kernels: CXX=/path/to/g++"
    return Check(name, "warn", f"{verdict.toolchain} gets wrong, and litz builds otherwise: {wrong}", todo)


def _build(command: Sequence[str], march: str, library: Path, *, openmp: bool) -> str | None:
    """None if it built, else the compiler's last words."""
    source = library.with_suffix(".cpp")
    source.write_text(_KERNEL, encoding="utf-8")
    flags = ["-O2", "-std=c++17", "-shared", "-fPIC", f"-march={march}"]
    if openmp:
        flags += ["-Xpreprocessor", "-fopenmp", "-lomp"] if sys.platform == "darwin" else ["-fopenmp"]
    full = [*command, str(source), "-o", str(library), *flags]
    return compile_library(full, library).strip()[-500:] or None


def _run_kernel(command: Sequence[str], library: Path) -> Check:
    name = shlex.join(command)
    try:
        function = ctypes.CDLL(str(library)).litz_doctor
    except OSError as cause:
        todo = "the temporary folder may be mounted noexec; set TMPDIR to one that is not"
        return Check("compiler", "fail", f"{name}: what it built cannot be loaded: {cause}", todo)
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_long, ctypes.POINTER(ctypes.c_int)]
    count, threads = 100_000, ctypes.c_int()
    result = function(count, ctypes.byref(threads))
    expected = count * (count - 1) / 2
    if abs(result - expected) > 1e-6 * expected:
        return Check(
            "compiler", "fail", f"{name}: its kernel computed {result}, not {expected}", "use another compiler"
        )
    return Check("compiler", "ok", f"{name}, {threads.value} threads")


def check_cache(folder: Path, enabled: bool = True, trust: Trust = OWN) -> list[Check]:
    """Returns whether the cache folder can be written, and has room."""
    if not enabled:
        return [Check("cache", "ok", "off: every process compiles anew")]
    todo = "name another folder: LITZ_CACHE_DIR=/path, or use none: LITZ_CACHE=0"
    try:
        trust.make(folder)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-"):
            pass
        free = shutil.disk_usage(folder).free
    except OSError as cause:
        return [Check("cache", "fail", f"{folder} cannot be written: {cause.strerror or cause}", todo)]
    problem = trust.problem_of(folder)
    if problem:
        return [Check("cache", "fail", f"nothing in {folder} is used: {problem}", todo)]
    detail = f"{folder}, {size_text(free)} free"
    if free < _LITTLE_SPACE:
        return [Check("cache", "warn", detail, f"`litz cache clear`, or {todo}")]
    return [Check("cache", "ok", detail + (" (default)" if folder == default_cache_dir() else ""))]


def _check_launch(options: Options) -> list[Check]:
    import torch

    return check_launch(options) if torch.cuda.is_available() else []


def check_launch(options: Options) -> list[Check]:
    """Returns a row on what launches CUDA kernels: the native module, or ctypes where the module cannot be had."""
    from litz.targets.triton import native_launch

    try:
        path = native_launch.build(
            options.cpp_compiler, Cache(options.cache_dir, options.cache, trust=make_trust(options.trust))
        )
        problem = "" if native_launch.load_library(path) else f"{path} cannot be loaded"
    except KernelBuildError as cause:
        problem = cause.stderr.strip()[-300:] or "it did not build"
    except (LitzError, OSError) as cause:
        problem = str(cause).splitlines()[0]
    if not problem:
        return [Check("launch", "ok", "native")]
    todo = f"install Python's headers (`apt install python3-dev`) and a C++ compiler: {compiler_install_hint()}"
    return [Check("launch", "warn", f"through ctypes, 2 to 3 µs more a kernel: {problem}", todo)]


def check_plugins() -> list[Check]:
    """Returns rows on plugins: each that cannot be loaded, what of them is deprecated, what is expected and missing."""
    with warnings.catch_warnings(record=True) as caught, no_plugin_warnings():
        warnings.simplefilter("always", PluginDeprecationWarning)
        try:
            loaded, problem = load_plugins()
        except LitzError as cause:
            return [Check("plugins", "fail", cause.what, cause.todo)]
    rows = []
    if problem:
        rows.append(Check("core", "fail", f"litz's own plugins cannot be loaded: {problem}", "reinstall litz"))
    rows += [Check(f"plugin {error.plugin}", "fail", error.what, error.todo) for error in loaded.errors()]
    old = {str(one.message): None for one in caught if issubclass(one.category, PluginDeprecationWarning)}
    rows += [Check("plugins", "warn", text, "ask the plugin's authors for a later version") for text in old]
    rows += [
        Check(f"plugin {one.plugin}", "warn" if one.wanted else "ok", one.what, one.todo)
        for one in missing_plugins(loaded)
    ]
    return [*rows, Check("plugins", "ok", ", ".join(loaded.names()) or "none")]


@click.command(short_help="Say what works on this machine, and what does not.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of a table.")
def doctor(as_json: bool) -> None:
    """Check torch, Triton, the C++ compiler, devices, the cache, and whether plugins load.

    Says what to do about whatever does not work. Exit status 1 if litz cannot work here. `litz check-plugins` tries
    each plugin.
    """
    show_checks(check_all(), as_json, "litz can work here")

"""Building Triton kernels: from the text of a `KernelSource` to a cubin in the cache, and from there to a launcher.

An entry of the cache's kind "triton" holds `kernel.py` (the text), `kernel.cubin` and `kernel.json` (what the launch
needs). A process that finds its kernels there imports no Triton at all; it loads cubins through the CUDA driver.

One text may be compiled into several variants, which the launcher tells apart by its arguments: are the sizes
multiples of 16 (then masks leave 16-byte accesses whole), do all pointers start at multiples of 16 bytes, are 64-bit
indices needed. The one that the hints expect is built ahead of time, others when they are first needed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import json
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch

from litz.errors import KernelBuildError
from litz.target.devices import nearest_family
from litz_plugins import CodegenContext, KernelSource

from . import cuda_driver, native_launch
from .cache import Cache, digest

FORMAT = "2"
"""Part of every key: to be raised when what an entry holds changes."""

_modules = itertools.count()
_import_lock = threading.Lock()


@dataclass(frozen=True)
class Variant:
    """What one compilation of a text may assume of its arguments."""

    aligned: bool = True
    """The pointers of settings["unaligned"] start at multiples of 16 bytes too."""
    multiples: bool = False
    """All sizes are multiples of 16."""
    wide: bool = False
    """Indices are 64 bits wide."""

    @property
    def number(self) -> int:
        """The variant's number, as the launcher computes it from its arguments."""
        return self.aligned | self.multiples << 1 | self.wide << 2

    @staticmethod
    def of(number: int) -> Variant:
        """The variant of a number."""
        return Variant(bool(number & 1), bool(number & 2), bool(number & 4))


@dataclass(frozen=True)
class Binary:
    """A compiled kernel: the cubin, its function's name, and what a launch needs besides the arguments.

    parameters: how many the function has; those after the kernel's own are null. shared: bytes of shared memory.
    scratch: bytes of global memory that each program wants for itself (tensor descriptors made on the device), which go
    by the parameter after the kernel's own.
    """

    cubin: bytes
    name: str
    threads: int
    shared: int
    parameters: int
    scratch: int = 0


def evaluate_host_text(text: str | int, sizes: Sequence[int]) -> int:
    """The value of a grid or a limit of `KernelSource.settings` for the size arguments."""
    return int(eval(_compiled(str(text)), {f"s{n}": size for n, size in enumerate(sizes)}))


@cache
def _compiled(text: str) -> CodeType:
    return compile(text, "<litz size>", "eval")


def load_module(text: str, folder: Path | None = None) -> ModuleType:
    """The generated module, imported from a file: Triton reads its functions' source."""
    scratch = tempfile.TemporaryDirectory(prefix="litz-") if folder is None else nullcontext(folder)
    with _import_lock, scratch as place:
        return _import(f"litz_generated_triton_{next(_modules)}", text, Path(place))


def _import(name: str, text: str, folder: Path) -> ModuleType:
    path = folder / "kernel.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    kept = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # the folder becomes a cache entry, and holds what we put there only
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = kept
    return module


# Compiling.


def compile_kernel(source: KernelSource, target: Any, variant: Variant = Variant(), folder: Path | None = None) -> Any:
    """Triton's CompiledKernel. target: a `triton.backends.compiler.GPUTarget`. Needs no GPU."""
    import triton
    import triton.language as tl
    from triton.compiler import ASTSource

    settings = source.settings
    kernel = getattr(load_module(source.text, folder), source.symbol)
    names = list(kernel.arg_names)
    pointers: list[str] = list(settings["pointers"])
    size_type = "i64" if variant.wide else "i32"
    types = pointers + [size_type] * settings["sizes"]
    signature = dict(zip(names, types, strict=False))
    constants: dict[tuple[int, ...], Any] = {}
    if settings["limits"]:
        signature[names[-1]] = "constexpr"
        constants[(len(types),)] = tl.int64 if variant.wide else tl.int32
    divisible = [n for n in range(len(pointers)) if variant.aligned or n not in settings["unaligned"]]
    if variant.multiples:
        divisible += range(len(pointers), len(types))
    attributes = {(n,): [["tt.divisibility", 16]] for n in divisible}
    options = {
        "num_warps": settings["num_warps"],
        "num_stages": settings.get("num_stages", 1),
        # Assertions are compiled in debug mode only; the checks of integer overflow that come with it are not wanted.
        "debug": settings["asserts"],
        "sanitize_overflow": False,
        # Denormals count, as in eager.
        "enable_reflect_ftz": False,
    }
    source_ast = ASTSource(kernel, signature, constants, attributes)
    return retried(lambda: triton.compile(source_ast, target=target, options=options))


PARSES = 8
"""Tries before a parser's failure counts: each needs another thread in the parser at the same moment."""


def retried(compile_: Callable[[], Any]) -> Any:
    """Run a compilation again when Python's parser tripped over another thread.

    Before 3.11.8 and 3.12.2 all threads of an interpreter share the parser's count of its recursion (python/cpython
    issue 106905): one that parses while another does may find the count changed, and gives up.
    """
    for _ in range(PARSES):
        try:
            return compile_()
        except Exception as error:
            if not _tripped(error):
                raise
    return compile_()


def _tripped(error: BaseException | None) -> bool:
    """Is Python's parser the cause? Triton wraps an error in a function that a kernel calls in one of its own."""
    while error is not None:
        if isinstance(error, SystemError) and "recursion depth mismatch" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def make_target(capability: tuple[int, int]) -> Any:
    """Triton's target for a compute capability."""
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", capability[0] * 10 + capability[1], 32)


@cache
def _toolchain() -> str:
    """What besides the source decides how a kernel comes out: Triton's version and the helpers' text."""
    helpers = "".join(
        Path(__file__).with_name(f"triton_{name}.py").read_text() for name in ("helpers", "bytes", "float8")
    )
    return digest(FORMAT, importlib.metadata.version("triton"), helpers)


_BUILD_SETTINGS = ("pointers", "sizes", "unaligned", "num_warps", "num_stages", "limits", "asserts")


def build(source: KernelSource, capability: tuple[int, int], cache: Cache, variant: Variant) -> Binary:
    """The kernel's binary, from the cache or compiled. KernelBuildError if it does not compile."""
    settings = json.dumps([source.settings.get(name, 1) for name in _BUILD_SETTINGS])
    key = digest(_toolchain(), source.text, settings, repr(variant), repr(capability))
    needs = ("kernel.json", "kernel.cubin")
    folder = cache.build("triton", key, lambda folder: _make(source, capability, variant, folder), needs)
    info = json.loads((folder / "kernel.json").read_text())
    return Binary((folder / "kernel.cubin").read_bytes(), **info)


def _compile_fitting(source: KernelSource, capability: tuple[int, int], variant: Variant, folder: Path) -> Any:
    """The kernel with as many stages as shared memory has room for: Triton's versions differ in what a stage takes."""
    most = nearest_family(capability[0] * 10 + capability[1]).shared_kib << 10
    asked = source.settings.get("num_stages", 1)
    for stages in range(asked, 0, -1):
        fewer = replace(source, settings={**source.settings, "num_stages": stages})
        compiled = compile_kernel(fewer, make_target(capability), variant, folder)
        if compiled.metadata.shared <= most:
            return compiled
    raise ValueError(f"{compiled.metadata.shared} bytes of shared memory with one stage; a block has {most}")


def _make(source: KernelSource, capability: tuple[int, int], variant: Variant, folder: Path) -> None:
    try:
        compiled = _compile_fitting(source, capability, variant, folder)
    except Exception as error:
        kept = Path(tempfile.gettempdir()) / f"litz-{source.name}-{digest(source.text)[:8]}.py"
        kept.write_text(source.text)
        command = f"triton.compile for sm_{capability[0]}{capability[1]} with {variant}"
        raise KernelBuildError(source.name, command, _problem(error), source=str(kept)) from error
    info = {
        "name": compiled.metadata.name,
        "threads": compiled.metadata.num_warps * 32,
        "shared": compiled.metadata.shared,
        "parameters": count_parameters(compiled.asm["ptx"]),
        "scratch": getattr(compiled.metadata, "global_scratch_size", 0) or 0,
    }
    (folder / "kernel.cubin").write_bytes(compiled.asm["cubin"])
    (folder / "kernel.json").write_text(json.dumps(info))


def _problem(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if error.__cause__ is None else f"{text}\n{_problem(error.__cause__)}"


def count_parameters(ptx: str) -> int:
    """Of the kernel's function in PTX."""
    entry = re.search(r"\.entry\s+\w+\s*\(([^)]*)\)", ptx)
    assert entry is not None
    return entry.group(1).count(".param")


def expected_variant(source: KernelSource, hint: Callable[[Any], int]) -> Variant:
    """The variant that is built ahead of time: of aligned pointers, and the likely sizes that `hint` gives."""
    sizes = [hint(item) for item in source.arguments if not isinstance(item, str)]
    settings = source.settings
    multiples = bool(sizes) and all(size % 16 == 0 for size in sizes)
    wide = any(evaluate_host_text(text, sizes) > settings["limit"] for text in settings["limits"])
    return Variant(True, multiples, wide)


def variants(source: KernelSource) -> list[Variant]:
    """Every variant that the launcher may ask for."""
    settings = source.settings
    aligned = (True, False) if settings["unaligned"] else (True,)
    multiples = (False, True) if settings["sizes"] else (False,)
    wide = (False, True) if settings["limits"] else (False,)
    return [Variant(*flags) for flags in itertools.product(aligned, multiples, wide)]


# Loading and launching.


def load(source: KernelSource, context: CodegenContext) -> Callable[..., None]:
    """A function that launches the kernel on the current stream; it takes `source.arguments`, in order, as ints.

    May be called from several threads. KernelBuildError if the kernel does not compile.
    """
    index = context.target.index
    device = torch.cuda.current_device() if index is None else index
    capability, cache = divmod(context.target.capability, 10), context.cache
    compiler = getattr(context.options, "cpp_compiler", None)
    native_launch.prepare(compiler, cache.counted())
    return Launcher(
        source,
        device,
        lambda variant: build(source, capability, cache, variant),
        expected_variant(source, context.program.hint),
        lambda: native_launch.load(compiler, cache.counted()),
    ).function


class Launcher:
    """Launches one kernel: chooses the variant, computes the grid. `function` is what callers call.

    device: its index. binary: gives a variant's binary when it is first needed; `expected` is needed at once.
    native: gives `native_launch`'s module, or None to launch through ctypes.
    """

    def __init__(
        self,
        source: KernelSource,
        device: int,
        binary: Callable[[Variant], Binary],
        expected: Variant,
        native: Callable[[], ModuleType | None] = lambda: None,
    ) -> None:
        self.source, self.device, self.binary, self.native = source, device, binary, native
        self._launches: list[Callable[..., None] | None] = [None] * 8  # by the variant's number
        self._lock = threading.Lock()
        self.function = self._make_function(expected)

    def _load(self, variant: Variant) -> tuple[cuda_driver.Function, int]:
        """A variant's kernel on the device, and the bytes of scratch memory that each program wants."""
        binary = self.binary(variant)
        arguments = len(self.source.arguments) + (binary.scratch > 0)
        function = cuda_driver.load_function(
            binary.cubin, binary.name, self.device, binary.threads, binary.shared, arguments, binary.parameters
        )
        return function, binary.scratch

    def _launch(self, number: int) -> Callable[..., None]:
        """The launch function of a variant, built now if this is its first use."""
        found = self._launches[number]
        return found or self._keep(number, *self._load(Variant.of(number)))

    def _keep(self, number: int, function: cuda_driver.Function, scratch: int) -> Callable[..., None]:
        launch = cuda_driver.make_launch(function, self.native())
        if scratch:
            launch = with_scratch(launch, scratch, self.device)
        with self._lock:
            found = self._launches[number] = self._launches[number] or launch
            return found

    def _make_function(self, expected: Variant) -> Callable[..., None]:
        settings = self.source.settings
        grid, sizes, unaligned = settings["grid"], settings["sizes"], settings["unaligned"]
        function, scratch = self._load(expected)
        fixed = not sizes and grid != 0 and not scratch and not settings["limits"]
        native = self.native() if fixed else None
        if native is not None:
            # Nothing is computed, so callers call what launches.
            otherwise = (lambda *values: self._launch(0)(grid, *values)) if unaligned else None
            return cuda_driver.make_fixed_launch(function, native, grid, unaligned, otherwise)
        self._keep(expected.number, function, scratch)
        # The general case as a function of its own text: its arithmetic is on local variables.
        parameters = [f"p{n}" for n in range(len(settings["pointers"]))] + [f"s{n}" for n in range(sizes)]
        listed = ", ".join(parameters)
        number = ["1"]
        if unaligned:
            number = [f"(({' | '.join(f'p{n}' for n in unaligned)}) & 15 == 0)"]
        if sizes:
            number.append(f"(({' | '.join(f's{n}' for n in range(sizes))}) & 15 == 0) << 1")
        if settings["limits"]:
            wide = " or ".join(f"{text} > {settings['limit']}" for text in settings["limits"])
            number.append(f"(({wide}) << 2)")
        lines = [
            f"def function({listed}):",
            f"    grid = {grid}",
            "    if grid > 0:",
            f"        number = {' | '.join(number)}",
            f"        (launches[number] or launch(number))(grid, {listed})",
        ]
        scope: dict[str, Any] = {"launches": self._launches, "launch": self._launch}
        exec("\n".join(lines), scope)
        made: Callable[..., None] = scope["function"]
        return made


def with_scratch(launch: Callable[..., None], nbytes: int, device: int) -> Callable[..., None]:
    """A launch that hands the kernel memory of its own. It may be freed at once: the allocator gives it to nobody but
    what follows on the same stream."""
    place = torch.device("cuda", device)

    def launchwith_scratch(grid: int, *values: int) -> None:
        scratch = torch.empty(grid * nbytes, dtype=torch.uint8, device=place)
        launch(grid, *values, scratch.data_ptr())

    return launchwith_scratch

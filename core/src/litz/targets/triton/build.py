"""Building Triton kernels: from the text of a `KernelSource` to a cubin in the cache, and from there to a launcher.

An entry of the cache's kind "triton" holds what `litz.targets.triton.compile` puts there, in this process or in one of
its workers. A process that finds its kernels there imports no Triton at all; it loads cubins through the CUDA driver.

One text may be compiled into several variants, which the launcher tells apart by its arguments: are the sizes
multiples of 16 (then masks leave 16-byte accesses whole), do all pointers start at multiples of 16 bytes, are 64-bit
indices needed. The one that the hints expect is built ahead of time, others when they are first needed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch

from litz.cache.disk import Cache, digest, folder_for_texts
from litz.errors import KernelBuildError
from litz.target.devices import nearest_family
from litz_plugins import CodegenContext, KernelSource

from . import cuda_driver, native_launch, workers
from .compile import CUBIN, INFO, SETTINGS, Compile, Job, Variant, compile_job
from .imports import HELPERS, imported_helpers

FORMAT = "3"
"""Part of every key: to be raised when what an entry holds changes."""


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
    """Returns the value of a grid or a limit of `KernelSource.settings` for the size arguments."""
    return int(eval(_compiled(str(text)), {f"s{n}": size for n, size in enumerate(sizes)}))


@cache
def _compiled(text: str) -> CodeType:
    return compile(text, "<litz size>", "eval")


@cache
def _toolchain() -> str:
    """Returns a digest of all but the source that decides how a kernel comes out: Triton's version, the helpers."""
    names = ("helpers", "float8", "backend")
    helpers = "".join((files("litz.targets.triton") / f"{name}.py").read_text(encoding="utf-8") for name in names)
    return digest(FORMAT, importlib.metadata.version("triton"), helpers)


@cache
def _text_of(module: str) -> str:
    """The text of a plugin's module of device functions, '' where the plugin is not installed."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    return "" if spec is None or spec.origin is None else Path(spec.origin).read_text(encoding="utf-8")


def build(
    source: KernelSource, capability: tuple[int, int], cache: Cache, variant: Variant, compile_: Compile = compile_job
) -> Binary:
    """Returns the kernel's binary, from the cache or made by `compile_`. Raises KernelBuildError if that fails."""
    settings = {name: source.settings.get(name, 1) for name in SETTINGS}
    shared = nearest_family(capability[0] * 10 + capability[1]).shared_kib << 10
    job = Job(source.text, source.symbol, settings, capability, shared, variant)
    others = [_text_of(module) for module in sorted(imported_helpers(job.text)) if module != HELPERS]
    key = digest(_toolchain(), *others, job.text, json.dumps(list(settings.values())), repr(variant), repr(capability))

    def make(folder: Path) -> None:
        problem = compile_(job, folder)
        if problem:
            raise _failure(source, job, problem, cache)

    def read(folder: Path) -> Binary:
        return Binary((folder / CUBIN).read_bytes(), **json.loads((folder / INFO).read_text(encoding="utf-8")))

    return cache.use("triton", key, make, read, (INFO, CUBIN))


def _failure(source: KernelSource, job: Job, problem: str, cache: Cache) -> KernelBuildError:
    """The error of a kernel that does not compile; its text is kept where the user can look at it."""
    kept = folder_for_texts(cache.root) / f"{source.name}-{digest(source.text)[:8]}.py"
    kept.write_text(source.text, encoding="utf-8")
    command = f"triton.compile for sm_{job.capability[0]}{job.capability[1]} with {job.variant}"
    return KernelBuildError(source.name, command, problem, source=str(kept))


def expected_variant(source: KernelSource, hint: Callable[[Any], int]) -> Variant:
    """Returns the variant that is built ahead of time: for aligned pointers, and the likely sizes that `hint` gives."""
    sizes = [hint(item) for item in source.arguments if not isinstance(item, str)]
    settings = source.settings
    multiples = bool(sizes) and all(size % 16 == 0 for size in sizes)
    wide = any(evaluate_host_text(text, sizes) > settings["limit"] for text in settings["limits"])
    return Variant(True, multiples, wide)


def variants(source: KernelSource) -> list[Variant]:
    """Returns every variant of a kernel that the launcher may ask for."""
    settings = source.settings
    aligned = (True, False) if settings["unaligned"] else (True,)
    multiples = (False, True) if settings["sizes"] else (False,)
    wide = (False, True) if settings["limits"] else (False,)
    return [Variant(*flags) for flags in itertools.product(aligned, multiples, wide)]


# Loading and launching.


def load(source: KernelSource, context: CodegenContext) -> Callable[..., None]:
    """Returns a function that launches the kernel on the current stream; it takes `source.arguments`, in order, as
    ints.

    May be called from several threads. KernelBuildError if the kernel does not compile.
    """
    index = context.target.index
    device = torch.cuda.current_device() if index is None else index
    capability, cache = divmod(context.target.capability, 10), context.cache
    compiler, compile_ = getattr(context.options, "cpp_compiler", None), workers.compiling(context.options)
    native_launch.prepare(compiler, cache.counted())
    return Launcher(
        source,
        device,
        lambda variant: build(source, capability, cache, variant, compile_),
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
    """Returns a launch that hands the kernel memory of its own. The memory may be freed at once: the allocator
    gives it to nobody but what follows on the same stream."""
    place = torch.device("cuda", device)

    def launchwith_scratch(grid: int, *values: int) -> None:
        scratch = torch.empty(grid * nbytes, dtype=torch.uint8, device=place)
        launch(grid, *values, scratch.data_ptr())

    return launchwith_scratch

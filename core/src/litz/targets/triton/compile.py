"""Compiling Triton kernels: from a kernel's text to a cubin, by Triton. Imports no torch, and needs no GPU.

In: a `Job`, which is data. Out: `kernel.py` (the text), `kernel.cubin` and `kernel.json` (what a launch needs) in a
folder, or why they are not there. `compile_job` is what this process does and what its workers do
(`litz.targets.triton.workers`).
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from litz.cache.disk import temporary_folder
from litz.origins.trust import OWN, warn_once

from .tile_shape import warps_of

if TYPE_CHECKING:
    from litz_plugins import KernelSource

SETTINGS = ("pointers", "sizes", "unaligned", "num_warps", "num_stages", "limits", "asserts", "contracts")
"""What of a `KernelSource`'s settings a compilation goes by; 1 where a source does not say."""
TEXT, CUBIN, INFO = "kernel.py", "kernel.cubin", "kernel.json"

_modules = itertools.count()
_import_lock = threading.Lock()


@dataclass(frozen=True)
class Variant:
    """The facts about its arguments that one compilation of a kernel may assume."""

    aligned: bool = True
    """The pointers of settings["unaligned"] start at multiples of 16 bytes too."""
    multiples: bool = False
    """All sizes are multiples of 16."""
    wide: bool = False
    """Indices are 64 bits wide."""

    @property
    def number(self) -> int:
        """Returns the variant's number, as the launcher computes it from its arguments."""
        return self.aligned | self.multiples << 1 | self.wide << 2

    @staticmethod
    def of(number: int) -> Variant:
        """Returns the variant that has this number."""
        return Variant(bool(number & 1), bool(number & 2), bool(number & 4))


@dataclass(frozen=True)
class Job:
    """One compilation, as data.

    text, symbol: of a `KernelSource`. settings: those of `SETTINGS`. capability: of the GPU, (9, 0) for sm_90. shared:
    bytes of shared memory that a block has there.
    """

    text: str
    symbol: str
    settings: Mapping[str, Any]
    capability: tuple[int, int]
    shared: int
    variant: Variant = Variant()

    def to_data(self) -> dict[str, Any]:
        """Returns the job as JSON-able data, which `from_data` reads."""
        return asdict(self)

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Job:
        """Returns the job that `to_data` wrote."""
        major, minor = data["capability"]
        return Job(**{**data, "capability": (major, minor), "variant": Variant(**data["variant"])})


Compile = Callable[[Job, Path], str]
"""Puts a job's files into a folder. Returns why it cannot, '' if it could."""


def compile_job(job: Job, folder: Path) -> str:
    """Compiles a job in this process into files of `folder`. Returns why it does not compile; '' if it does."""
    try:
        compiled = _compile_fitting(job, folder)
    except Exception as error:
        return _problem(error)
    info = {
        "name": compiled.metadata.name,
        "threads": compiled.metadata.num_warps * compiled.metadata.target.warp_size,
        "shared": compiled.metadata.shared,
        "parameters": count_parameters(compiled.asm["ptx"]),
        "scratch": getattr(compiled.metadata, "global_scratch_size", 0) or 0,
    }
    (folder / CUBIN).write_bytes(compiled.asm["cubin"])
    (folder / INFO).write_text(json.dumps(info), encoding="utf-8")
    return ""


def _compile_fitting(job: Job, folder: Path) -> Any:
    """The kernel with as many stages as shared memory has room for: Triton's versions differ in what a stage takes."""
    for stages in range(job.settings["num_stages"], 0, -1):
        fewer = replace(job, settings={**job.settings, "num_stages": stages})
        compiled = compile_kernel(fewer, make_target(job.capability), job.variant, folder)
        if compiled.metadata.shared <= job.shared:
            return compiled
    raise ValueError(f"{compiled.metadata.shared} bytes of shared memory with one stage; a block has {job.shared}")


def _problem(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if error.__cause__ is None else f"{text}\n{_problem(error.__cause__)}"


def compile_kernel(
    source: KernelSource | Job, target: Any, variant: Variant = Variant(), folder: Path | None = None
) -> Any:
    """Returns Triton's CompiledKernel. target: a `triton.backends.compiler.GPUTarget`. folder: for the text."""
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
        "num_warps": warps_of(settings["num_warps"], target.warp_size),
        "num_stages": settings.get("num_stages", 1),
        # Assertions are compiled in debug mode only; the checks of integer overflow that come with it are not wanted.
        "debug": settings["asserts"],
        "sanitize_overflow": False,
        # Denormals count, as in eager.
        "enable_reflect_ftz": False,
        "enable_fp_fusion": bool(settings.get("contracts", True)),
    }
    source_ast = ASTSource(kernel, signature, constants, attributes)
    keep_tritons_cache_own()
    compiled = retried(lambda: triton.compile(source_ast, target=target, options=options))
    written = compiled.asm.get("ptx", "")  # other vendors have none
    ptx = _PACKED_ADD.sub(_TWO_ADDS, written)
    if ptx == written:
        return compiled
    with tempfile.NamedTemporaryFile("w", suffix=".ptx", encoding="utf-8") as file:
        file.write(ptx)
        file.flush()
        return retried(lambda: triton.compile(source_ast, target=target, options={**options, "ir_override": file.name}))


_PACKED_ADD = re.compile(r"add\.[su]16x2\s+(%\w+),\s*(%\w+),\s*(%\w+);")
_TWO_ADDS = (
    r"{ .reg .b16 %low, %high, %low2, %high2; mov.b32 {%low, %high}, \2; mov.b32 {%low2, %high2}, \3; "
    r"add.s16 %low, %low, %low2; add.s16 %high, %high, %high2; mov.b32 \1, {%low, %high}; }"
)
"""ptxas 12.8 to 13.1 loses the constant of some additions of two 16-bit numbers in one register, which LLVM makes of
positions that fit (triton-lang/triton issue 11581): each number is added by itself."""


def keep_tritons_cache_own() -> None:
    """Gives Triton's cache, from which it loads libraries, a temporary folder in this process where others may write
    to it."""
    from triton import knobs

    problem = OWN.problem_of(knobs.cache.dir)
    if problem:
        warn_once(f"litz has Triton go on without its cache: {problem}, or name another: TRITON_CACHE_DIR=/path")
        knobs.cache.dir = str(temporary_folder(knobs.cache))


def make_target(capability: tuple[int, int]) -> Any:
    """Returns Triton's target for a compute capability, such as (9, 0)."""
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", capability[0] * 10 + capability[1], 32)


def load_module(text: str, folder: Path | None = None) -> ModuleType:
    """Returns the generated module, imported from a file, as Triton reads its functions' source."""
    place = folder or temporary_folder()
    try:
        with _import_lock:
            return _import(f"litz_generated_triton_{next(_modules)}", text, place)
    finally:
        if folder is None:
            shutil.rmtree(place, ignore_errors=True)


def _import(name: str, text: str, folder: Path) -> ModuleType:
    path = folder / TEXT
    path.write_text(text, encoding="utf-8")
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


PARSES = 8
"""Tries before a parser's failure counts: each needs another thread in the parser at the same moment."""


def retried(compile_: Callable[[], Any]) -> Any:
    """Runs a compilation again when Python's parser tripped over another thread.

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
    """Returns whether Python's parser is the cause. Triton wraps an error in a called function in one of its own."""
    while error is not None:
        if isinstance(error, SystemError) and "recursion depth mismatch" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def count_parameters(ptx: str) -> int:
    """Returns how many parameters the kernel's function has in PTX."""
    entry = re.search(r"\.entry\s+\w+\s*\(([^)]*)\)", ptx)
    assert entry is not None
    return entry.group(1).count(".param")

"""Kernels in C++ in a package. See `litz_plugins.Exporter` for what such a module has."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from litz.cache import manifest
from litz.runtime import host_memory
from litz.runtime.libraries import load_library
from litz.target import target_of
from litz.targets.cpp import build as cpp_build
from litz_plugins import CodegenContext, KernelSource, Target

from .errors import PackageError
from .package import AGAIN


def here() -> Target:
    """Returns the target of this machine's processor."""
    return target_of("cpu")


def made_for(target: Target) -> str:
    """Returns the instruction set as text: machines with equal texts can run the same library."""
    return f"instruction set {hashlib.sha256(cpp_build.cpu_flags().encode()).hexdigest()[:16]}"


def pack(source: KernelSource, context: CodegenContext, folder: Path, common: Path) -> dict[str, Any]:
    """Writes the shared object into `folder`, named by its content, as the loader takes equal paths for one library.
    Returns its name as "library"."""
    _pack_allocator(context, common)
    library = cpp_build.build(source, context.options, context.cache)
    name = f"{manifest.sum_of(library)[:16]}.so"
    (folder / name).write_bytes(library.read_bytes())
    return {"library": name}


def _pack_allocator(context: CodegenContext, common: Path) -> None:
    """Writes the allocator of host memory; a process of another torch does without it."""
    options: Any = context.options
    found = host_memory.find(options.cpp_compiler, context.cache) if options.memory_pool else None
    if found is not None and not (common / found.name).exists():
        shutil.copyfile(found, common / found.name)


def unpack(source: KernelSource, files: Mapping[str, Path], data: Mapping[str, Any]) -> Callable[..., Any]:
    """Loads a kernel's library and returns the function that launches it. Errors: PackageError for a library that
    cannot be loaded."""
    path = files[data["library"]]
    try:
        library = load_library(path)
    except OSError as cause:
        problem = f"the kernel {source.name} cannot be loaded: {cause}"
        raise PackageError(problem, path=str(path), todo=AGAIN) from cause
    return cpp_build.bind(library[source.symbol], source)

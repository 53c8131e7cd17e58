"""The extension module that launches CUDA kernels (`native_launch.cpp`), built once and loaded.

In: a compiler's name and the cache. Out: the module, or None where it cannot be had: there is no C++ compiler, Python
came without its headers, or there is no folder to build it in. Launching goes through ctypes then (`cuda_driver`),
which does the same and takes 2 to 3 µs more. litz neither fails nor warns: a machine that runs kernels built
elsewhere needs no compiler, and nothing that the user asked for is missing. `litz doctor` says which of the two it is,
and why.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import shutil
import sys
import sysconfig
import threading
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from types import ModuleType

from litz.cache.disk import Cache, digest
from litz.runtime.libraries import problem_of
from litz.runtime.native_build import build_native, unless_it_fails

NAME = "litz_native_launch"
SOURCE = files("litz.targets.triton") / "native_launch.cpp"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden", "-w")

_lock = threading.RLock()


@functools.cache
def library_name() -> str:
    """Returns the library's file name, which depends on its source, Python's version, system and processor."""
    source = SOURCE.read_text(encoding="utf-8")
    return f"{NAME}-{digest(source)[:8]}{sysconfig.get_config_var('EXT_SUFFIX')}"


def load(compiler: str | None, cache: Cache) -> ModuleType | None:
    """Returns the module, built if the cache does not have it; None where it cannot be had. compiler: as
    `find_compiler` takes.

    Its type `Launch` is called with a kernel's arguments. A process tries once for each compiler: Python's own table of
    modules remembers what came of it.
    """
    name = f"{NAME}@{compiler or ''}"
    with _lock:
        if name not in sys.modules:
            path = find(compiler, cache)
            # None is what Python's table has for a module that is not to be had.
            sys.modules[name] = None if path is None else load_library(path)  # type: ignore[assignment]
        return sys.modules[name]


def prepare(compiler: str | None, cache: Cache) -> None:
    """Calls `load` ahead of its use. Where one thread does so, other threads go on with their kernels, which take
    longer."""
    if _lock.acquire(blocking=False):
        try:
            load(compiler, cache)
        finally:
            _lock.release()


def find(compiler: str | None, cache: Cache) -> Path | None:
    """Returns the result of `build`; None where the module cannot be built."""
    return unless_it_fails(build, compiler, cache)


def build(compiler: str | None, cache: Cache) -> Path:
    """Builds the extension module, or finds it in the cache, and returns its file. Errors: CompilerNotFoundError,
    KernelBuildError, CacheError."""
    includes = dict.fromkeys(sysconfig.get_path(name) for name in ("include", "platinclude"))
    flags = (*FLAGS, *(f"-I{path}" for path in includes))
    return build_native(NAME, library_name(), SOURCE, compiler, cache, flags=flags, made_for=(sys.version,))


def put_into(folder: Path, compiler: str | None, cache: Cache) -> None:
    """Copies the module into a folder for processes that build nothing; a process of another Python does without."""
    native = find(compiler, cache)
    if native is not None and not (folder / native.name).exists():
        shutil.copyfile(native, folder / native.name)


def load_from(files: Mapping[str, Path]) -> ModuleType | None:
    """Returns the module that `put_into` has put among files, loaded once; None where there is none for this Python."""
    path = files.get(library_name())
    return None if path is None else _loaded(path)


@functools.cache
def _loaded(path: Path) -> ModuleType | None:
    return load_library(path)


def load_library(path: Path) -> ModuleType | None:
    """Returns the extension module of a file; None if the file is for another Python or another machine, cannot be
    loaded from where it lies, or is not whole."""
    if problem_of(path):
        return None
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError:
        return None
    return module

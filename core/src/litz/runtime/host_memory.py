"""The allocator of host memory that keeps what was given back (`host_memory.cpp`), built once and loaded.

In: a compiler's name and the cache. Out: the address of the allocator, or 0 where it cannot be had: there is no C++
compiler, or torch came without its headers. Memory comes from torch's own allocator then, which is as right, and slower
where large blocks are mapped anew in each call. A machine without it gets no error and no warning.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
import threading
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from litz.cache.disk import Cache, digest

from .libraries import problem_of
from .native_build import build_native, unless_it_fails

NAME = "litz_host_memory"
SOURCE = files("litz.runtime") / "host_memory.cpp"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w")

_lock = threading.Lock()


@functools.cache
def library_name() -> str:
    """Returns the library's file name, which depends on its source, torch's version, system and processor."""
    made_for = (SOURCE.read_text(encoding="utf-8"), torch.__version__, sys.platform, platform.machine())
    return f"{NAME}-{digest(*made_for)[:8]}.so"


def load(compiler: str | None, cache: Cache) -> int:
    """Returns the address of the process's allocator; 0 where it cannot be had. compiler: as `find_compiler` takes. A
    process tries once for each compiler."""
    with _lock:
        known = _tried_with(compiler)
        if not known:
            path = find(compiler, cache)
            known.append(0 if path is None else address(path))
        return known[0]


@functools.cache
def _tried_with(compiler: str | None) -> list[int]:
    """Returns the list that holds the result of a trial, once it is known."""
    return []


def find(compiler: str | None, cache: Cache) -> Path | None:
    """Returns the result of `build`; None where the library cannot be built."""
    return unless_it_fails(build, compiler, cache)


def build(compiler: str | None, cache: Cache) -> Path:
    """Builds the library, or finds it in the cache, and returns its file. Errors: CompilerNotFoundError,
    KernelBuildError, CacheError."""
    here = Path(torch.__file__).parent
    if sys.platform == "darwin":
        linked = ["-undefined", "dynamic_lookup"]
    else:
        linked = [f"-L{here / 'lib'}", "-lc10", f"-Wl,-rpath,{here / 'lib'}", "-pthread"]
    flags = (*FLAGS, f"-I{here / 'include'}")
    made_for = (torch.__version__,)
    return build_native(NAME, library_name(), SOURCE, compiler, cache, flags=flags, linked=linked, made_for=made_for)


@functools.cache
def _library(path: Path) -> Any:
    """The loaded library of a file; None if the file is for another torch or another machine, or is not whole."""
    if problem_of(path):
        return None
    try:
        library = ctypes.CDLL(str(path))
        library.litz_allocator.restype = ctypes.c_void_p
    except (OSError, AttributeError):
        return None
    return library


def address(path: Path) -> int:
    """Returns the address of the allocator in a library; 0 if the library cannot be loaded."""
    library = _library(path)
    return 0 if library is None else int(library.litz_allocator())


def counts(path: Path) -> tuple[int, int, int]:
    """Returns the bytes in use, the bytes kept, and the number of blocks in use, of a library that can be loaded."""
    three = (ctypes.c_size_t * 3)()
    _library(path).litz_count(three)
    return three[0], three[1], three[2]


def release(path: Path) -> None:
    """Gives all that an allocator keeps back to the system."""
    _library(path).litz_release()

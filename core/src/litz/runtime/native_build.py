"""litz's own native libraries, built once on a machine: the launch module and the allocator of host memory.

In: a source of litz's, a command, and the cache. Out: the library's file. A machine without a compiler does without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import as_file
from importlib.resources.abc import Traversable
from pathlib import Path

from litz.cache.disk import Cache, digest
from litz.errors import CacheError, CompilerNotFoundError, KernelBuildError

from .cpp_compiler import compile_library, find_compiler


def build_native(
    label: str,
    name: str,
    source: Traversable,
    compiler: str | None,
    cache: Cache,
    *,
    flags: Sequence[str],
    linked: Sequence[str] = (),
    made_for: Sequence[str] = (),
) -> Path:
    """Builds a library, or finds it in the cache, and returns its file.

    label: its name in errors. name: of the file. compiler: as `find_compiler` takes. linked: flags behind the source.
    made_for: what else the library depends on, such as Python's version. Errors: CompilerNotFoundError,
    KernelBuildError, CacheError.
    """
    found = find_compiler(compiler)
    command = [*found.words, *flags]

    def make(folder: Path) -> None:
        with as_file(source) as file:  # litz may be in an archive
            line = [*command, "-o", str(folder / name), str(file), *linked]
            problem = compile_library(line, folder / name)
        if problem:
            raise KernelBuildError(label, line, problem, str(source))

    key = digest(name, source.read_text(encoding="utf-8"), *made_for, found.version, " ".join((*command, *linked)))
    return cache.build("native", key, make, needs=(name,)) / name


def unless_it_fails(build: Callable[[str | None, Cache], Path], compiler: str | None, cache: Cache) -> Path | None:
    """Returns the result of `build`; None where the library cannot be built."""
    try:
        return build(compiler, cache)
    except (CompilerNotFoundError, KernelBuildError, CacheError, OSError):
        return None

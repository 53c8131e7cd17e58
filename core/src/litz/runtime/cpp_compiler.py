"""The system's C++ compiler: which one it is, and the flags that make it careful.

In: what the user named, if anything. Out: a `Compiler`. This file needs no torch: `litz doctor` runs without.
"""

from __future__ import annotations

import functools
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from litz.errors import CompilerNotFoundError

COMPILERS = ("g++", "clang++", "c++")
FORMS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "without libmvec": (("-ULITZ_LIBMVEC",), ("-ULITZ_LIBMVEC", "-fveclib=none")),
    "without vectors": (
        ("-fno-tree-loop-vectorize", "-fno-tree-slp-vectorize"),
        ("-fno-vectorize", "-fno-slp-vectorize", "-fno-openmp-simd"),
    ),
    "unoptimized": (("-O0",), ("-O0",)),
}
"""Safe forms of a kernel: the flags of g++ and of clang that are added where a compiler gets a construct wrong."""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler, as found. `words` start its command line, mostly one; `version` is the first line of `--version`;
    `clang` says which family it is of."""

    words: tuple[str, ...]
    version: str
    clang: bool


def find_command(wanted: str) -> tuple[str, ...] | None:
    """Returns the words of a compiler's name ("g++", "ccache g++"), the first as the path that it stands for; None
    where there is no such program. A path with blanks that exists is one word."""
    whole = shutil.which(wanted)
    words = [wanted] if whole else shlex.split(wanted)
    path = whole or (shutil.which(words[0]) if words else None)
    return None if path is None else (path, *words[1:])


@functools.lru_cache
def find_compiler(wanted: str | None = None) -> Compiler:
    """Returns the compiler `wanted`, or the first of `COMPILERS` that runs. Raises CompilerNotFoundError."""
    tried = (wanted,) if wanted else COMPILERS
    for name in tried:
        words = find_command(name)
        if words is None:
            continue
        done = subprocess.run([*words, "--version"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            version = done.stdout.splitlines()[0] if done.stdout else ""
            return Compiler(words, version, "clang" in done.stdout.lower())
    raise CompilerNotFoundError(tried)

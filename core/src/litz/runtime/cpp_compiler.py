"""The system's C++ compiler: which one it is, and the flags that make it careful.

In: what the user named, if anything. Out: a `Compiler`. This file needs no torch: `litz doctor` runs without.
"""

from __future__ import annotations

import functools
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from litz.errors import CompilerNotFoundError

from .builders import run_program
from .libraries import problem_of

VERSION_SECONDS = 30.0
"""A compiler may take to say its version: a tenth of a second, more where it lies on a slow disk."""
COMPILERS = ("g++", "clang++", "c++")
WIDEST = 64  # bytes of the widest vectors
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
    tried = {name: "" for name in ((wanted,) if wanted else COMPILERS)}
    for name in tried:
        words = find_command(name)
        if words is None:
            continue
        tried[name], said = _version(words)
        if not tried[name]:
            return Compiler(words, said.splitlines()[0] if said else "", "clang" in said.lower())
    raise CompilerNotFoundError([name + (f" (whose --version {why})" if why else "") for name, why in tried.items()])


def _version(words: tuple[str, ...]) -> tuple[str, str]:
    """Returns why a compiler does not say its version, and what it says. A compiler that hangs is not asked twice."""
    if words in _hangs():
        return _hangs()[words], ""
    done = run_program([*words, "--version"], VERSION_SECONDS)
    if "did not end" in done.problem:
        _hangs()[words] = done.problem
    return done.problem, done.output


@functools.cache
def _hangs() -> dict[tuple[str, ...], str]:
    return {}


def compile_library(line: Sequence[str], library: Path) -> str:
    """Runs a compiler. Returns '' if it leaves a whole library; else what it said, and how it ended."""
    done = run_program(line)
    if done.problem:
        return done.errors if done.errors.strip() and "signal" not in done.problem else f"the compiler {done.problem}"
    problem = problem_of(library)
    wrong = f"{done.errors}\nthe compiler ended as if all were well, and left no whole library: {problem}"
    return wrong if problem else ""

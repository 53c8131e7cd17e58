"""Kernels built with AddressSanitizer: an access beyond the end of a buffer ends the process, and says where.

In: a folder. Out: settings of a worker's environment. torch's own kernels are not built so, but their memory is
allocated by the sanitizer, so that what lies around each tensor is known.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from litz.runtime.cpp_compiler import Compiler

OPTIONS = ("detect_leaks=0", "abort_on_error=1", "detect_odr_violation=0", "allocator_may_return_null=1")
LIBRARIES = ("libasan.so", "libstdc++.so")
"""What the process loads first. The second has what the first looks for when C++ throws."""

SCRIPT = """#!/bin/sh
case " $* " in
  *" --version "* | *" -dumpversion "* | *" -dM "*) ;;
  *) set -- -fsanitize=address -fno-omit-frame-pointer -g "$@" ;;
esac
exec {compiler} "$@"
"""
"""What stands in for the compiler; what the compiler is asked about itself stays as it is."""


def settings(compiler: Compiler, folder: Path) -> list[str]:
    """Returns settings of the environment, "NAME=VALUE". compiler: a g++. folder: for a script that stands in for the
    compiler. Errors: ValueError where the compiler has no such libraries."""
    found = [_library(compiler, name) for name in LIBRARIES]
    script = folder / "sanitizing"
    script.write_text(SCRIPT.format(compiler=shlex.join(compiler.words)), encoding="utf-8")
    script.chmod(0o700)
    return [f"LITZ_CXX={script}", f"LD_PRELOAD={' '.join(found)}", f"ASAN_OPTIONS={':'.join(OPTIONS)}"]


def _library(compiler: Compiler, name: str) -> str:
    """A library of the compiler's."""
    asked = [*compiler.words, f"-print-file-name={name}"]
    found = subprocess.run(asked, capture_output=True, text=True, encoding="utf-8", check=True).stdout.strip()
    if not Path(found).is_file():
        raise ValueError(f"{shlex.join(compiler.words)} has no {name}: AddressSanitizer needs a g++ with its libraries")
    return str(Path(found).resolve())


__all__ = ["settings"]

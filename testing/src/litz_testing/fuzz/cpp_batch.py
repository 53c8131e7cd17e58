"""The C++ kernels of many programs in one source file, built by one run of the compiler.

`CppBatch.load` stands in for `litz.targets.cpp.build.load_kernel`: `build` builds all that wait at once.
Kernels include nothing and share nothing, so each goes into a namespace of its own.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from litz.options import make_options
from litz.targets.cpp import build as cpp_build
from litz.targets.cpp.codegen import SYMBOL


class CppBatch:
    """Kernels that wait to be built, and those that were. level: the compiler's -O; the product has 3."""

    def __init__(self, level: int = 1) -> None:
        self.level = level
        self.folder = tempfile.TemporaryDirectory(prefix="litz-fuzz-")
        self._waiting: dict[str, list[_Launcher]] = {}
        self._builds = 0
        self.kernels = 0
        """Built so far."""

    def load(self, source: Any, context: Any) -> Callable[..., Any]:
        """Returns a function that launches the kernel. `build` builds it together with others; the call does, if
        nobody has."""
        launcher = _Launcher(source, self.build)
        self._waiting.setdefault(source.text, []).append(launcher)
        return launcher

    def build(self) -> None:
        """Builds what waits. A kernel that the compiler does not take raises when it is launched."""
        waiting, self._waiting = self._waiting, {}
        if not waiting:
            return
        if (message := self._build(waiting)) and len(waiting) > 1:
            for text, launchers in waiting.items():
                self._build({text: launchers})
        elif message:
            for launcher in next(iter(waiting.values())):
                launcher.error = message

    def _build(self, kernels: dict[str, list[_Launcher]]) -> str:
        """An empty string, or what the compiler says."""
        self._builds += 1
        source = Path(self.folder.name) / f"batch{self._builds}.cpp"
        library = source.with_suffix(".so")
        source.write_text(_one_source(list(kernels)), encoding="utf-8")
        options = make_options()  # LITZ_CXX and LITZ_CPP_MARCH name another compiler or processor
        compiler = cpp_build.find_compiler(options.cpp_compiler)
        flags = [f"-O{self.level}" if f == "-O3" else f for f in cpp_build.command(compiler, options.cpp_march)]
        line = [*flags, "-o", str(library), str(source), *cpp_build.libraries(compiler)]
        done = subprocess.run(line, capture_output=True, text=True, encoding="utf-8", check=False)
        if done.returncode:
            if len(kernels) == 1:
                for launcher in next(iter(kernels.values())):
                    launcher.error = done.stderr
            return done.stderr or "the compiler failed"
        loaded = ctypes.CDLL(str(library))
        for number, launchers in enumerate(kernels.values()):
            for launcher in launchers:
                launcher.launch = cpp_build.bind(getattr(loaded, f"{SYMBOL}_{number}"), launcher.source)
        self.kernels += len(kernels)
        source.unlink()
        library.unlink()
        return ""


def _one_source(texts: list[str]) -> str:
    """Each kernel in a namespace; what names symbols of the assembler's, which knows no namespaces, is there once."""
    seen: set[str] = set()
    parts = []
    for number, text in enumerate(texts):
        renamed = text.replace(f'extern "C" int {SYMBOL}(', f'extern "C" int {SYMBOL}_{number}(')
        lines = [line for line in renamed.splitlines() if line not in seen]
        seen.update(line for line in lines if line.startswith(('extern "C" LOCAL', "asm(")))
        parts.append(f"namespace space_{number} {{\n" + "\n".join(lines) + "\n}\n")
    return "".join(parts)


class _Launcher:
    """Calls its kernel. build: builds what waits, as a kernel does that dynamo asks for between `build` and its call
    (once a guard of a graph fails that it has compiled before)."""

    def __init__(self, source: Any, build: Callable[[], None]) -> None:
        self.source, self.build = source, build
        self.launch: Callable[..., Any] | None = None
        self.error = ""

    def __call__(self, *arguments: int) -> Any:
        if self.launch is None and not self.error:
            self.build()
        if self.launch is None:
            raise RuntimeError(self.error)
        return self.launch(*arguments)

"""The code of one compiled graph in a folder: a wrapper, the tensors that the wrapper names, and kernels' binaries.

In: what a compile made. Out: files and JSON-able data; and from these what runs the graph, in a process that compiles
nothing. Packages and artifacts hold such folders, and vouch for the files.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from litz.runtime import host_memory
from litz.runtime.compiled_graph import Entry, load_wrapper
from litz.runtime.pool import Pool
from litz.runtime.stored import function_at, place_of, read_tensors, write_tensors
from litz.runtime.wrapper_support import support
from litz_plugins import Exporter, KernelSource

WRAPPER, WEIGHTS, COMMON, KERNELS = "wrapper.py", "weights.bin", "common", "kernels"
MOST_ARGUMENTS = 1 << 16
"""Of a kernel."""

Pack = Callable[[KernelSource, Path, Path], tuple[Exporter, Mapping[str, Any]]]
"""Puts what a kernel's launch needs into a folder, and what all kernels need into another; returns the exporter that
did, and what its module wants to know again."""


@dataclass(frozen=True)
class Code:
    """A compiled graph in parts that can be written. wrapper: the module's text. objects: what it names besides kernels
    and ops (tensors, functions of modules). sources: of kernels, by name. state: more tensors, by name, that lie beside
    the code."""

    wrapper: str
    objects: Mapping[str, Any]
    sources: Mapping[str, KernelSource]
    state: Mapping[str, torch.Tensor]


def write_code(code: Code, folder: Path, common: Path, pack: Pack) -> dict[str, Any]:
    """Writes the code into a folder, and what all kernels need into `common`; returns what `LoadedCode` has to know.
    Errors: FunctionPlaceError for a function that no other process can import."""
    folder.mkdir(parents=True, exist_ok=True)
    common.mkdir(exist_ok=True)
    (folder / WRAPPER).write_text(code.wrapper, encoding="utf-8")
    tensors = {**code.state, **{k: v for k, v in code.objects.items() if isinstance(v, torch.Tensor)}}
    kernels = {}
    for name, source in code.sources.items():
        (folder / KERNELS / name).mkdir(parents=True)
        exporter, known = pack(source, folder / KERNELS / name, common)
        kernels[name] = {
            "exporter": exporter.module,
            "language": source.language,
            "symbol": source.symbol,
            "arguments": len(source.arguments),
            "settings": dict(source.settings),
            "data": dict(known),
        }
    return {
        "tensors": write_tensors(tensors, folder / WEIGHTS),
        "functions": {k: place_of(v) for k, v in code.objects.items() if not isinstance(v, torch.Tensor)},
        "kernels": kernels,
    }


class LoadedCode:
    """The code that `write_code` wrote, loaded. entry: runs the graph. tensors: those that lie beside it, by name.

    root: the folder that holds the code's folder and `common`. inside: the code's folder in it, "" for the root itself.
    files: the names of all files in the root that somebody vouches for.
    """

    def __init__(self, root: Path, inside: str, data: Mapping[str, Any], files: Collection[str]) -> None:
        self._root, self._inside, self._files = root, inside, files
        folder = root / inside
        self.tensors = read_tensors(data["tensors"], folder / WEIGHTS)
        functions = {name: function_at(place) for name, place in data["functions"].items()}
        launchers = {name: self._launcher(name, kernel) for name, kernel in data["kernels"].items()}
        library = f"{COMMON}/{host_memory.library_name()}"
        pool = Pool((lambda: host_memory.address(root / library)) if library in files else lambda: 0)
        namespace = {**support(pool), **self.tensors, **functions, **launchers}
        text = (folder / WRAPPER).read_text(encoding="utf-8")
        self.entry: Entry = load_wrapper(text, folder / WRAPPER, namespace)

    def _launcher(self, name: str, kernel: Mapping[str, Any]) -> Callable[..., Any]:
        if type(kernel["arguments"]) is not int or not 0 <= kernel["arguments"] <= MOST_ARGUMENTS:
            raise ValueError(f"the kernel {name} takes {kernel['arguments']!r} arguments")
        arguments = tuple(f"a{n}" for n in range(kernel["arguments"]))
        source = KernelSource(name, kernel["language"], "", kernel["symbol"], arguments, kernel["settings"])
        places = (COMMON, str(PurePosixPath(self._inside, KERNELS, name)))
        found = (path for path in map(PurePosixPath, self._files) if str(path.parent) in places)
        files = {path.name: self._root / path for path in found}
        launcher: Callable[..., Any] = importlib.import_module(kernel["exporter"]).unpack(source, files, kernel["data"])
        return launcher

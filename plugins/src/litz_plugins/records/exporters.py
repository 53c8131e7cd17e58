"""How kernels get into packages, and out of them again; and what torch saves of a compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Saver = Callable[[Any, Sequence[Any], Any], Callable[..., Any] | None]
"""Of what dynamo captured, its example inputs and the compiler: what runs the graph and has bytes for torch to keep."""

FUNCTIONS = {
    "here": (),
    "made_for": ("target",),
    "pack": ("source", "context", "folder", "common"),
    "unpack": ("source", "files", "data"),
}
"""The functions of an exporter's module, and their parameters."""


@dataclass(frozen=True)
class Exporter:
    """The way kernels get into a package (`litz_aot.compile`), and are launched from there (`litz_aot.load`).

    module: the name of a module. A process that loads a package imports this module, and neither a compiler nor other
    plugins, so the module must import no compiler. plugin: filled in by the manager. The module has four functions, or
    the last two if it exports kernels on another plugin's target:

    - ``here()``: the `Target` of this process's device, `assumed` if there is none.
    - ``made_for(target)``: what the binaries depend on, as text: a package is loaded where that is the same.
    - ``pack(source, context, folder, common)``: puts the files that a `KernelSource` needs into its own folder, and
      what all kernels need into another; returns what `unpack` is to know, as JSON-able data.
    - ``unpack(source, files, data)``: what `Codegen.load` would return, from the files by name. The source has no text.
    """

    module: str
    plugin: str = ""

    def __post_init__(self) -> None:
        if not all(part.isidentifier() for part in self.module.split(".")):
            raise ValueError(f"an exporter needs the full name of a module, not {self.module!r}")


__all__ = ["FUNCTIONS", "Exporter", "Saver"]

"""What a wrapper calls its ops and constants: globals of the module, defined in its text where they can be spelled.

In: op targets and constant arguments. Out: names and literals; `paths` and `objects` say what the names stand for.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Collection
from typing import Any

import torch

from .bindings import BINDINGS


class CallNames:
    """Python names for the op and the constants of a library call. taken: names that stand for something else in the
    functions of the module, as those of inputs do: a saved result of `torch.complex` may be called `complex_1`."""

    def __init__(self, objects: dict[str, Any], taken: Collection[str] = ()) -> None:
        self.objects = objects
        self.taken = taken
        self.paths: dict[str, str] = {}
        self._by_id: dict[int, str] = {}

    def target(self, target: Callable[..., Any]) -> str:
        """Returns the name of a global that holds the op; the text defines this global where the op has an import
        path."""
        if isinstance(target, torch._ops.OpOverload):
            name = self._free(str(target))
            packet = target._schema.name.replace("::", ".")
            path = BINDINGS.get(target) or f"torch.ops.{packet}.{target._overloadname}"
            if not any(keyword.iskeyword(part) or not part.isidentifier() for part in path.split(".")):
                self.paths[name] = path
                return name
        return self._hold(target, getattr(target, "__name__", type(target).__name__))

    def constant(self, value: Any) -> str:
        """Returns the text of a constant argument, or the name of the global that holds the constant."""
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        if isinstance(value, float):
            return repr(value) if value == value and abs(value) != float("inf") else f'float("{value}")'
        if isinstance(value, torch.device):
            return f'torch.device("{value}")'
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        return self._hold(value, type(value).__name__)

    def _hold(self, value: Any, label: str) -> str:
        found = self._by_id.get(id(value))
        if found is None:
            found = self._free(f"{label}_{len(self._by_id)}")
            self._by_id[id(value)] = found
            self.objects[found] = value
        return found

    def _free(self, label: str) -> str:
        name = re.sub(r"\W", "_", label)
        while name in self.taken:
            name += "_"
        return name

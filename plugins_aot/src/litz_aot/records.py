"""AOTAutograd's records as JSON-able data and back. A record that is read is made without calling anything of its
class.

In: dataclasses, enumerations and plain values of `torch._functorch._aot_autograd`. Out: data that names their classes;
no class of another module is ever named, apart from a tensor subclass, and no function is.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import torch

from litz.runtime.stored import imported, path_of

ROOM = "torch._functorch._aot_autograd."
"""Whose classes are read back as records."""
VIEWS = "torch._C._functionalization"
"""Whose classes say how a view is made of its base; made by the constructor, of plain values."""
_VALUES: tuple[type, ...] = (torch.dtype, torch.memory_format, torch.layout)


def encoded(value: Any) -> Any:
    """Returns a record as data. Errors: ValueError for what is no record, and no plain value."""
    if value is None or isinstance(value, (bool, str)) or type(value) in (int, float):
        return value
    if isinstance(value, (torch.Size, tuple)) and not hasattr(value, "_fields"):
        return {"tuple": [encoded(item) for item in value]}
    if isinstance(value, list):
        return [encoded(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return {"set": sorted(encoded(item) for item in value)}
    if isinstance(value, dict):
        return {"dict": [[encoded(key), encoded(item)] for key, item in value.items()]}
    if isinstance(value, _VALUES):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, type):
        return {"type": path_of(value)}
    if isinstance(value, enum.Enum):
        return {"enum": path_of(type(value)), "name": value.name}
    module = type(value).__module__
    if module == VIEWS and isinstance(value, torch._C._functionalization.ViewMeta):
        return {"view": type(value).__name__, "args": encoded(value.as_tuple())}
    if module == VIEWS:
        return {"inverse": value.name}
    if module.startswith(ROOM) and hasattr(value, "sequence"):  # what else is in it serves to compare views
        if any(view.has_symbolic_inputs for view in value.sequence):
            return None  # which AOTAutograd does not replay
        return {"record": path_of(type(value)), "fields": {"sequence": encoded(value.sequence)}}
    if module.startswith(ROOM):
        return {"record": path_of(type(value)), "fields": {k: encoded(v) for k, v in _fields(value).items()}}
    raise ValueError(f"{type(value).__module__}.{type(value).__qualname__} cannot be said as data")


def _fields(value: Any) -> dict[str, Any]:
    return dict(vars(value)) if hasattr(value, "__dict__") else {f.name: getattr(value, f.name) for f in _known(value)}


def _known(value: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()


def decoded(data: Any) -> Any:
    """Returns what `encoded` made data of. Errors: ValueError, KeyError, TypeError, AttributeError for other data."""
    if isinstance(data, list):
        return [decoded(item) for item in data]
    if not isinstance(data, dict):
        return data
    (kind, found), *more = data.items()
    match kind:
        case "tuple":
            return tuple(decoded(item) for item in found)
        case "set":
            return {decoded(item) for item in found}
        case "dict":
            return {decoded(key): decoded(item) for key, item in found}
        case "torch":
            value = getattr(torch, found)
            if isinstance(value, _VALUES):
                return value
        case "device":
            return torch.device(found)
        case "type":
            return _type(found)
        case "enum":
            return _room(found, enum.Enum)[more[0][1]]
        case "view":
            return _view(found)(decoded(more[0][1]))
        case "inverse":
            return torch._C._functionalization.InverseReturnMode.__members__[found]
        case "record":
            return _record(_room(found, object), more[0][1])
    raise ValueError(f"no record is of the kind {kind!r}")


def _record(made: Any, fields: dict[str, Any]) -> Any:
    found = object.__new__(made)
    for name, item in fields.items():
        object.__setattr__(found, name, decoded(item))
    return found


def _room(path: str, kind: type) -> Any:
    """A class of AOTAutograd's."""
    if not path.startswith(ROOM):
        raise ValueError(f"{path} is no record of AOTAutograd's")
    found = imported(path)
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise ValueError(f"{path} is no class of records")
    return found


def _view(name: str) -> Any:
    """A class that says how a view is made of its base."""
    found = getattr(torch._C._functionalization, name)
    if not (isinstance(found, type) and name.endswith("ViewMeta")):
        raise ValueError(f"{name} is no view")
    return found


def _type(path: str) -> type:
    """A type of values, or a tensor subclass."""
    if path.partition(":")[0] in ("builtins", "torch", "torch.nn.parameter"):
        found = imported(path)
    else:
        found = imported(path)
        if not (isinstance(found, type) and issubclass(found, torch.Tensor)):
            raise ValueError(f"{path} is no subclass of tensors")
    if not isinstance(found, type):
        raise ValueError(f"{path} is no type")
    return found

"""What a wrapper names besides kernels, as files: tensors as their bytes, functions as where to import them from.

In: tensors and functions by name. Out: JSON-able data and one file of bytes, and from these the same again.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from litz.errors import FunctionPlaceError
from litz.origins.plugin_call import Owner, PluginCall, source_digest
from litz.origins.sources import version_of

ALIGNMENT = 64
"""Bytes at whose multiples a tensor starts in the file."""


def write_tensors(tensors: Mapping[str, torch.Tensor], path: Path) -> dict[str, Any]:
    """Writes the tensors' elements one after the other, and returns the place of each as JSON-able data."""
    found: dict[str, Any] = {}
    with path.open("wb") as file:
        for name, tensor in tensors.items():
            file.write(bytes(-file.tell() % ALIGNMENT))
            # A dense copy in the order of its strides, so that what comes back has them too.
            order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
            dense = tensor.detach().permute(order).contiguous()
            found[name] = {
                "at": file.tell(),
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "size": list(dense.shape),
                "order": order,
                "device": str(tensor.device),
            }
            file.write(dense.cpu().reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b"")
    return found


Place = str | Mapping[str, Any]
"""The place to import a function from; of a plugin's with the plugin, its version and a digest of the source."""


def place_of(value: Any) -> Place:
    """Returns where a function can be imported from. Errors: FunctionPlaceError for a function without such a place."""
    if not isinstance(value, PluginCall):
        return path_of(value)
    owner, path = value.owner, path_of(value.function)
    known: dict[str, Any] = {"path": path, "plugin": owner.plugin, "dist": owner.dist, "version": owner.version}
    known["writes"] = list(value.writes)
    return {**known, "source": source_digest(value.function)}


def function_at(place: Place) -> Any:
    """Returns the function at a place. Errors: FunctionPlaceError for a function that is missing or has changed."""
    path = place if isinstance(place, str) else place["path"]
    owner = None if isinstance(place, str) else Owner(place["plugin"], place["dist"], place["version"])
    whose = f"the function {path}" + (f" of the plugin {owner.plugin!r} ({owner.origin})" if owner else "")
    try:
        found = imported(path)
    except (ImportError, AttributeError) as cause:
        problem = f"it calls {whose}, which is not here: {type(cause).__name__}: {cause}"
        raise FunctionPlaceError(problem, todo=f"install {owner.origin}" if owner and owner.dist else "") from cause
    if owner is None or isinstance(place, str):
        return found
    here = version_of(owner.dist) if owner.dist else ""
    if here != owner.version:
        problem = f"it calls {whose}, and {f'{owner.dist} {here}' if here else 'no such dist'} is here"
        raise FunctionPlaceError(problem, todo=f"pip install {owner.dist}=={owner.version}, or write it anew here")
    if source_digest(found) != place["source"]:
        raise FunctionPlaceError(f"it calls {whose}, whose source was edited since", todo="write it anew here")
    return PluginCall(owner, found, tuple(place.get("writes", ())))


def path_of(value: Any) -> str:
    """Returns the import path of an object, "module:qualified.name". Errors: FunctionPlaceError where there is
    none."""
    path = f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', '')}"
    with contextlib.suppress(ImportError, AttributeError, ValueError):
        if imported(path) is value:
            return path
    raise FunctionPlaceError(
        f"the graph calls {value!r}, which has no name in a module", todo="compile it just in time"
    )


def imported(path: str) -> Any:
    """Imports and returns the object at "module:qualified.name". Errors: ImportError, AttributeError."""
    module, _, name = path.partition(":")
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))


def read_tensors(places: Mapping[str, Any], path: Path) -> dict[str, torch.Tensor]:
    """Reads tensors back from a file. places: what `write_tensors` returned."""
    if not places:
        return {}
    data = torch.frombuffer(bytearray(path.read_bytes() or b"\0"), dtype=torch.uint8)
    found = {}
    for name, place in places.items():
        dtype = getattr(torch, place["dtype"])
        nbytes = math.prod(place["size"]) * dtype.itemsize
        flat = data[place["at"] : place["at"] + nbytes].clone().view(dtype)
        back = [place["order"].index(dim) for dim in range(len(place["order"]))]
        found[name] = flat.view(place["size"]).permute(back).to(place["device"])
    return found

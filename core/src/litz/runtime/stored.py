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

from litz.errors import PackageError

ALIGNMENT = 64
"""Bytes at whose multiples a tensor starts in the file."""


def write_tensors(tensors: Mapping[str, torch.Tensor], path: Path) -> dict[str, Any]:
    """The tensors' elements one after the other; returns where each lies."""
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


def path_of(value: Any) -> str:
    """Where to import an object from. PackageError for what has no such place."""
    path = f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', '')}"
    with contextlib.suppress(ImportError, AttributeError, ValueError):
        if imported(path) is value:
            return path
    raise PackageError(f"the graph calls {value!r}, which has no name in a module", todo="compile it just in time")


def imported(path: str) -> Any:
    module, _, name = path.partition(":")
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))


def read_tensors(places: Mapping[str, Any], path: Path) -> dict[str, torch.Tensor]:
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

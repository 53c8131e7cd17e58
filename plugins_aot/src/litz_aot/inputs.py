"""What an artifact may be called with: in, the inputs' description as data, and a call's arguments; out, an error or
nothing.

Nobody guards the call of an artifact, and its kernels go by the sizes and strides that it was compiled for. So each
call compares them, in half a microsecond a tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from litz.runtime.stored import imported

from .errors import ArtifactInputError

MOST_SIZES = 64
"""Sets of sizes of which the numbers are remembered."""
_Row = tuple[int, tuple[int | None, ...], tuple[int | None, ...], torch.dtype, torch.device]
_MATH: Mapping[str, Any] = {"math": math, "min": min, "max": max}


class Inputs:
    """Compares a call's arguments with those that a graph was compiled for.

    data: inputs, a record for each: {"kind": "tensor", "name", "dtype", "device", "size", "stride", "conj", "grad"},
    {"kind": "number", "name", "value"} or {"kind": "other", "name", "type"}, where sizes and numbers are ints, texts
    over symbols, or None for what no argument tells; guards, texts over symbols; written, positions."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._all = data["inputs"]
        self._guards = [(text, compile(text, "<litz guard>", "eval")) for text in data["guards"]]
        self._tensors = [(at, item) for at, item in enumerate(self._all) if item["kind"] == "tensor"]
        self._numbers = [(at, item) for at, item in enumerate(self._all) if item["kind"] == "number"]
        self._others = [(at, item) for at, item in enumerate(self._all) if item["kind"] == "other"]
        self._gradless = [(at, item) for at, item in self._tensors if item["grad"] is False]
        self._bound = self._binding()
        self._rows: dict[tuple[int, ...], list[_Row]] = {}
        self._checked = data["checked"]
        self._written = [at for at in data["written"] if self._all[at]["kind"] == "tensor"]

    def _binding(self) -> dict[str, tuple[int, int | None]]:
        """Returns the argument's position and the dimension that each symbol is read off."""
        found: dict[str, tuple[int, int | None]] = {}
        for at, item in self._numbers:
            if isinstance(item["value"], str) and item["value"].isidentifier():
                found.setdefault(item["value"], (at, None))
        for at, item in self._tensors:
            for dim, text in enumerate(item["size"]):
                if isinstance(text, str) and text.isidentifier():
                    found.setdefault(text, (at, dim))
        return found

    def check(self, args: Sequence[Any]) -> None:
        """Raises ArtifactInputError for arguments of another kind than the graph was compiled for."""
        if self._checked:
            self._compare(args)
        if self._written:
            self._check_memory(args)

    def _compare(self, args: Sequence[Any]) -> None:
        if len(args) != len(self._all):
            raise ArtifactInputError(f"it is given {len(args)} inputs, and takes {len(self._all)}")
        for at, item in self._tensors:
            if not isinstance(args[at], torch.Tensor):
                raise ArtifactInputError(f"{item['name']} is {type(args[at]).__name__}; a tensor is expected")
        try:
            key = tuple(args[at] if dim is None else args[at].shape[dim] for at, dim in self._bound.values())
            rows = self._rows.get(key)
            if rows is None:
                rows = self._rows_for(key)
        except (IndexError, TypeError):  # fewer dimensions, a number of another type
            rows = self._rows_for(())
        for at, size, stride, dtype, device in rows:
            value = args[at]
            if value.shape != size or value.stride() != stride or value.dtype != dtype or value.device != device:
                self._look(at, value, size, stride, dtype, device)
        for at, item in self._tensors:
            value = args[at]
            if value.is_conj() != item["conj"] or value.is_neg():
                raise ArtifactInputError(f"{item['name']} is lazily conjugated or negated; give {item['name']}.clone()")
        for at, item in self._gradless:
            if args[at].requires_grad and torch.is_grad_enabled():
                raise ArtifactInputError(f"{item['name']} requires gradients, and was compiled without")
        self._check_others(args, key if rows else ())

    def _rows_for(self, key: tuple[int, ...]) -> list[_Row]:
        sizes = dict(zip(self._bound, key, strict=False))
        for text, code in self._guards:
            if key and not eval(code, dict(_MATH), sizes):
                raise ArtifactInputError(f"it was compiled for sizes with {text}; these are {sizes}")
        rows = []
        for at, item in self._tensors:
            size, stride = (tuple(_value(number, sizes) for number in item[name]) for name in ("size", "stride"))
            dtype = getattr(torch, item["dtype"].removeprefix("torch."))
            rows.append((at, size, stride, dtype, torch.device(item["device"])))
        while len(self._rows) >= MOST_SIZES:
            self._rows.pop(next(iter(self._rows)))
        self._rows[key] = rows
        return rows

    def _look(
        self, at: int, value: torch.Tensor, size: Sequence[Any], stride: Sequence[Any], dtype: Any, device: Any
    ) -> None:
        """Looks again at what is not plainly equal: sizes that no argument tells, strides along dimensions of size
        1."""
        item = self._all[at]
        name, made = item["name"], "the artifact was made for"
        if value.layout != torch.strided:
            raise ArtifactInputError(f"{name} is of the layout {value.layout}; {made} memory with strides")
        if value.dtype != dtype or value.device != device:
            raise ArtifactInputError(f"{name} is {value.dtype} on {value.device}; {made} {dtype} on {device}")
        pairs = zip(value.shape, size, strict=False)
        if value.dim() != len(size) or any(want is not None and have != want for have, want in pairs):
            wanted = ", ".join(map(str, item["size"]))
            raise ArtifactInputError(f"{name} has the sizes {list(value.shape)}; {made} [{wanted}]")
        steps = zip(value.shape, value.stride(), stride, strict=True)
        if value.numel() and any(want is not None and n > 1 and have != want for n, have, want in steps):
            raise ArtifactInputError(f"{name} has the strides {list(value.stride())}; {made} {list(stride)}")

    def _check_others(self, args: Sequence[Any], key: tuple[int, ...]) -> None:
        sizes = dict(zip(self._bound, key, strict=False))
        for at, item in self._numbers:
            wanted = item["value"] if not isinstance(item["value"], str) else _value(item["value"], sizes)
            if wanted is not None and (args[at] != wanted or isinstance(args[at], torch.Tensor)):
                raise ArtifactInputError(f"{item['name']} is {args[at]!r}; the artifact was made for {wanted!r}")
        for at, item in self._others:
            if type(args[at]) is not imported(item["type"]):
                raise ArtifactInputError(f"{item['name']} is {type(args[at]).__name__}; {item['type']} is expected")

    def _check_memory(self, args: Sequence[Any]) -> None:
        """Raises where an input that the graph writes shares memory with another one: it was compiled for none."""
        places = [(at, *_span(args[at])) for at, _ in self._tensors]
        written = {at for at in self._written}
        for at, first, end in places:
            if at not in written:
                continue
            for other, its_first, its_end in places:
                if other != at and its_first < end and first < its_end and _meet(args[at], args[other]):
                    names = f"{self._all[at]['name']} and {self._all[other]['name']}"
                    raise ArtifactInputError(f"{names} share memory, one of which it writes; give it a clone of one")


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first byte and of the one after its last."""
    first = tensor.data_ptr()
    if not tensor.numel():
        return first, first
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return first, first + (sum((n - 1) * step for n, step in steps) + 1) * tensor.itemsize


def _meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether two tensors whose first to last bytes cross share a byte."""
    find: Callable[[torch.Tensor, torch.Tensor], bool] = imported("litz.capture.aliasing:meet")
    return find(a, b)


def _value(number: int | str | None, sizes: Mapping[str, int]) -> int | None:
    if not isinstance(number, str):
        return number
    try:
        return int(eval(number, dict(_MATH), dict(sizes)))
    except NameError:  # depends on a size that no argument tells
        return None

"""What makes Triton's interpreter quicker and its results no worse: blocks are combined whole, modules patched once,
types made once.

Triton's own way calls the combining function of a reduction or a scan once for each element, in their order, and looks
through `triton.language` whenever a device function is called; both take a hundred times as long as the arithmetic. A
reduction is a tree here, as on a device. Each value of a small block has a type and a shape of new objects, which take
longer than its arithmetic: equal ones are the same here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import triton.language as tl

Blocks = list[np.ndarray]
"""A value of each of the tensors that are combined, as arrays of one shape."""


@contextmanager
def quicker() -> Iterator[None]:
    """Inside, kernels that Triton's interpreter runs take less time. For one kernel: what it has patched is undone when
    it ends."""
    from triton.runtime import interpreter

    with (
        mock.patch.object(interpreter, "_patch_lang", _patching_once(interpreter._patch_lang)),
        mock.patch.object(interpreter.ReduceOps, "generic_reduce", _reduce),
        mock.patch.object(interpreter.ScanOps, "generic_scan", _scan),
        mock.patch.object(interpreter, "_get_np_dtype", _once_by_name(interpreter._get_np_dtype)),
        mock.patch.object(tl.core.block_type, "__init__", _once_by_shape(tl.core.block_type.__init__)),
        mock.patch.object(tl.core.tensor, "__init__", _once_by_block(tl.core.tensor.__init__)),
    ):
        yield


def _once_by_name(numpy_type: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function that returns numpy's type of a type, or of a block's elements, called once for each type's name."""
    found: dict[str, Any] = {}

    def once(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in found:
            found[name] = numpy_type(kind)
        return found[name]

    return once


def _once_by_shape(init: Callable[..., None]) -> Callable[..., None]:
    """A block type's `__init__`: types of equal shapes and the same elements have the same attributes."""
    found: dict[Any, dict[str, Any]] = {}

    def once(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([size.value if isinstance(size, tl.constexpr) else size for size in shape])
        known = found.get((id(element_ty), sizes))
        if known is None:
            init(self, element_ty, shape)
            found[id(element_ty), sizes] = dict(vars(self))  # has element_ty, whose id stays its own
        else:
            vars(self).update(known)

    return once


def _once_by_block(init: Callable[..., None]) -> Callable[..., None]:
    """A tensor's `__init__`: tensors whose types share a shape share their own, which is made of it."""
    found: dict[int, tuple[Any, dict[str, Any]]] = {}

    def once(self: Any, handle: Any, type: Any) -> None:
        shape = getattr(type, "shape", None)  # a scalar's type has none
        known = found.get(id(shape))
        if known is None:
            init(self, handle, type)
            made = {name: value for name, value in vars(self).items() if name not in ("handle", "type", "dtype")}
            found[id(shape)] = (shape, made)
        else:
            vars(self).update(known[1])
            self.handle, self.type, self.dtype = handle, type, type.scalar

    return once


def _patching_once(patch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The interpreter's function that patches the modules that a function sees. A call looks at no file twice, and
    patches nothing for a file that sees only modules that are patched."""
    files: set[int] = set()
    patched: set[int] = set()

    def once(function: Any) -> Any:
        names = function.__globals__
        if id(names) not in files:
            files.add(id(names))
            modules = {id(value) for value in names.values() if value is tl or value is tl.core}
            if not modules <= patched or not modules:
                patched.update(modules)
                return patch(function)
        return SimpleNamespace(restore=lambda: None)

    return once


def _combined(ops: Any, types: Sequence[Any], left: Blocks, right: Blocks) -> Blocks:
    """Returns what the combining function makes of each element of `left` and the element of `right` at its place."""
    shape = left[0].shape
    values = [ops.to_tensor(array.reshape(-1), kind) for array, kind in zip([*left, *right], [*types, *types])]
    found = ops.combine_fn.fn(*values)
    results = found if isinstance(found, tuple) else (found,)
    arrays = (result.handle.data if isinstance(result, tl.tensor) else result for result in results)
    flat = left[0].size
    return [
        np.broadcast_to(array, (flat,)).astype(old.dtype, copy=False).reshape(shape)
        for array, old in zip(arrays, left, strict=True)
    ]


def _reduce(ops: Any, tensors: Sequence[Any]) -> list[Any]:
    """`ReduceOps.generic_reduce`: neighbours are combined, then the neighbours of what that made, as a tree."""
    types = [tensor.dtype for tensor in tensors]
    arrays = [tensor.handle.data for tensor in tensors]
    dimensions = arrays[0].ndim
    state = [array.reshape(-1) if ops.axis is None else np.moveaxis(array, ops.axis, 0) for array in arrays]
    while len(state[0]) > 1:  # a power of two, as all sizes of blocks are
        state = _combined(ops, types, [array[0::2] for array in state], [array[1::2] for array in state])
    made = [array[0] for array in state]
    if ops.keep_dims:
        axes = tuple(range(dimensions)) if ops.axis is None else ops.axis
        made = [np.expand_dims(array, axes) for array in made]
    return [ops.to_tensor(array, kind) for array, kind in zip(made, types)]


def _scan(ops: Any, tensors: Sequence[Any]) -> list[Any]:
    """`ScanOps.generic_scan`: each element is combined with that of a step before, at steps of 1, 2, 4 and so on."""
    types = [tensor.dtype for tensor in tensors]
    state = [np.moveaxis(tensor.handle.data, ops.axis, 0) for tensor in tensors]
    step = 1
    while step < len(state[0]):
        merged = _combined(ops, types, [np.roll(array, step, 0) for array in state], state)
        state = [np.concatenate([old[:step], new[step:]]) for old, new in zip(state, merged)]
        step *= 2
    return [ops.to_tensor(np.moveaxis(array, 0, ops.axis), kind) for array, kind in zip(state, types)]

"""Reductions and scans of whole blocks, as kernels have them in Triton's interpreter, against one element at a time."""

from __future__ import annotations

import functools
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

import triton.language as tl

from litz_testing.triton_interpreter_fast import (
    _once_by_block,
    _once_by_name,
    _once_by_shape,
    _patching_once,
    _reduce,
    _scan,
)

SHAPES = [(1,), (8,), (4, 8), (8, 1), (2, 4, 8)]


def after(scale: Any, shift: Any, then_scale: Any, then_shift: Any) -> tuple[Any, Any]:
    """x -> x * scale + shift, and then another such: its order counts, and in uint32 it is exact."""
    with np.errstate(over="ignore"):
        return scale * then_scale, shift * then_scale + then_shift


def ops(axis: int | None, keep_dims: bool = False) -> Any:
    return SimpleNamespace(
        axis=axis, keep_dims=keep_dims, combine_fn=SimpleNamespace(fn=after), to_tensor=lambda array, dtype: array
    )


def tensors(shape: tuple[int, ...]) -> list[Any]:
    numbers = np.random.default_rng(0).integers(0, 2**32, (2, *shape), dtype=np.uint32)
    return [SimpleNamespace(dtype=None, handle=SimpleNamespace(data=array)) for array in numbers]


def rows(given: list[Any], axis: int) -> tuple[list[tuple[Any, Any]], tuple[int, ...]]:
    """The pairs along an axis, in their order: for each, an array over the other axes."""
    pair = [np.moveaxis(tensor.handle.data, axis, 0) for tensor in given]
    return list(zip(*pair, strict=True)), pair[0].shape[1:]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("keep", [False, True])
def test_a_reduction_keeps_the_order(shape: tuple[int, ...], keep: bool) -> None:
    given = tensors(shape)
    for axis in range(len(shape)):
        pairs, _ = rows(given, axis)
        expected = functools.reduce(lambda a, b: after(*a, *b), pairs)
        for found, right in zip(_reduce(ops(axis, keep), given), expected, strict=True):
            np.testing.assert_array_equal(found, np.expand_dims(right, axis) if keep else right)


@pytest.mark.parametrize("keep", [False, True])
def test_a_reduction_of_everything(keep: bool) -> None:
    given = tensors((4, 8))
    flat = [SimpleNamespace(dtype=None, handle=SimpleNamespace(data=t.handle.data.reshape(-1))) for t in given]
    expected = functools.reduce(lambda a, b: after(*a, *b), rows(flat, 0)[0])
    for found, right in zip(_reduce(ops(None, keep), given), expected, strict=True):
        assert found == right and found.shape == ((1, 1) if keep else ())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_scan_keeps_the_order(shape: tuple[int, ...]) -> None:
    given = tensors(shape)
    for axis in range(len(shape)):
        pairs, _ = rows(given, axis)
        states = list(itertools.accumulate(pairs, lambda a, b: after(*a, *b)))
        for number, found in enumerate(_scan(ops(axis), given)):
            np.testing.assert_array_equal(found, np.stack([state[number] for state in states], axis))


def test_what_a_kernel_sees_is_patched_once_and_put_back() -> None:
    import triton.language as tl

    done: list[str] = []

    def patch(function: Any) -> Any:
        done.append("patched")
        return SimpleNamespace(restore=lambda: done.append("put back"))

    once = _patching_once(patch)
    kernel, same_file, other_file = {"tl": tl}, {"tl": tl, "x": 1}, {"core": tl.core}
    scope = once(SimpleNamespace(__globals__=kernel))
    for seen in (kernel, same_file, same_file):
        once(SimpleNamespace(__globals__=seen)).restore()
    assert done == ["patched"]
    once(SimpleNamespace(__globals__=other_file))
    assert done == ["patched", "patched"], "a module that was not patched yet"
    scope.restore()
    assert done[-1] == "put back"


KINDS = [tl.int1, tl.int64, tl.float16, tl.float8e5, tl.pointer_type(tl.float32), tl.pointer_type(tl.int8)]


@pytest.mark.parametrize("sizes", [[1], [8], [4, 8], [8, 4]])
def test_types_and_tensors_that_are_made_once_are_as_if_made_anew(sizes: list[int]) -> None:
    """In each order, and for sizes as numbers or as constants of a kernel."""
    by_shape, by_block = _once_by_shape(tl.block_type.__init__), _once_by_block(tl.tensor.__init__)
    for kind in [*KINDS, *reversed(KINDS)]:
        for given in (sizes, [tl.constexpr(size) for size in sizes], [1], tl.block_type(kind, sizes).shape):
            mine, right = object.__new__(tl.block_type), tl.block_type(kind, given)
            by_shape(mine, kind, given)
            assert vars(mine).keys() == vars(right).keys()
            assert mine == right and str(mine) == str(right) and mine.numel == right.numel
            for type_ in (mine, kind):
                handle = object()
                tensor, wanted = object.__new__(tl.tensor), tl.tensor(handle, type_)
                by_block(tensor, handle, type_)
                assert vars(tensor).keys() == vars(wanted).keys()
                assert tensor.handle is handle and tensor.type is type_ and tensor.dtype is wanted.dtype
                assert str(tensor) == str(wanted) and tensor.numel.value == wanted.numel.value


def test_numpys_type_is_that_of_each_types_name() -> None:
    from triton.runtime.interpreter import _get_np_dtype

    once = _once_by_name(_get_np_dtype)
    for kind in [*KINDS, *reversed(KINDS)]:
        for each in (kind, tl.block_type(kind, [8])):
            assert once(each) == _get_np_dtype(each)

"""What generated kernels call beside NumPy itself.

`buffer` is the memory of a tensor as a flat array of elements; a value is an array with an axis for each range of its
loop, output ranges first, of length 1 where it does not vary, or one number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import erf as erf
from math import erfc as erfc
from statistics import NormalDist
from typing import Any

import numpy as np

Array = Any
"""An array or a number of NumPy's."""


class OutsideError(Exception):
    """A position that a kernel checks is out of range. number: of the check, in the kernel's settings."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


# ------------------------------------------------------------------------------------------------- memory and accesses


class _Memory:
    """NumPy's own protocol for memory that is somebody else's."""

    def __init__(self, address: int, count: int, dtype: Any) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (count,),
            "typestr": np.dtype(dtype).str,
            "version": 3,
        }


def flat(address: int, count: int, dtype: Any) -> Array:
    """The `count` elements at an address."""
    return np.asarray(_Memory(address, count, dtype)) if count > 0 else np.empty(0, dtype)


def variable(number: int, of: int, extent: int) -> Array:
    """A loop variable: 0, 1, ... along one of the axes."""
    return np.arange(extent).reshape([extent if each == number else 1 for each in range(of)])


def strided(buffer: Array, offset: int, shape: Sequence[int], steps: Sequence[int]) -> Array:
    """Elements at `offset` and so many `steps` on along each axis, as a view. NumPy sees to it that the view lies
    within the buffer."""
    if 0 in shape:
        return np.empty(shape, buffer.dtype)
    size = buffer.itemsize
    return np.ndarray(shape, buffer.dtype, buffer, offset * size, [step * size for step in steps])


def gather(buffer: Array, index: Array, mask: Array) -> Array:
    """Elements at positions, 0 where the mask is False."""
    if not buffer.size:
        return np.zeros(np.broadcast(index, mask).shape, buffer.dtype)
    return np.where(mask, buffer[np.where(mask, index, 0)], buffer.dtype.type(0))


def bounded(position: Array, size: int, number: int, mask: Array = np.True_) -> Array:
    """The position, 0 where the mask is False and it is outside of the size. OutsideError if one counts that is."""
    outside = (position < 0) | (position >= size)
    if np.any(outside & mask):
        raise OutsideError(number)
    return np.where(outside, 0, position)


def points(shape: Sequence[int], index: Array, value: Array, mask: Array = np.True_) -> tuple[Array, Array]:
    """The positions and the values of the points of a shape at which a store happens."""
    chosen = np.broadcast_to(mask, shape)
    return np.broadcast_to(index, shape)[chosen], np.broadcast_to(value, shape)[chosen]


# ---------------------------------------------------------------------------------------------------------- reductions


def rows(value: Array, outer: int, lengths: Sequence[int]) -> Array:
    """The value at every point of the reduction ranges, which are `lengths` long and become one last axis."""
    value = np.asarray(value)
    shape = value.shape[:outer] if value.ndim else (1,) * outer
    # NumPy sums neighbours pairwise, and others one by one, which is less exact.
    return np.ascontiguousarray(np.broadcast_to(value, (*shape, *lengths)).reshape(*shape, math.prod(lengths)))


def over(result: Array, inner: int) -> Array:
    """A result of rows, with an axis of length 1 for each reduction range."""
    return np.reshape(result, np.shape(result) + (1,) * inner)


def mean(row: Array) -> Array:
    return np.add.reduce(row, axis=-1, keepdims=True) / row.dtype.type(row.shape[-1])


def fold(merge: Callable[..., Sequence[Array]], identity: Sequence[Array], states: Sequence[Array]) -> list[Array]:
    """States along the last axis merged, neighbours first, so that order is kept."""
    states = np.broadcast_arrays(*states)
    while (size := states[0].shape[-1]) != 1:
        if size == 0 or size % 2:
            ends = [np.full((*state.shape[:-1], 1), none) for state, none in zip(states, identity)]
            states = [np.concatenate(pair, -1) for pair in zip(states, ends)]
        if size:
            states = np.broadcast_arrays(*merge(*(s[..., 0::2] for s in states), *(s[..., 1::2] for s in states)))
    return [state[..., 0] for state in states]


# ------------------------------------------------------------------------------------------------------ types and ops


def widen(bits: Array) -> Array:
    """bfloat16 as float32, whose upper half it is."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrow(value: Array) -> Array:
    """float32 as bfloat16, rounded to nearest, halves to even."""
    bits = value.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(value), np.uint16(0x7FC0), rounded.astype(np.uint16))


def truncdiv(a: Array, b: Array) -> Array:
    quotient = a // b
    return quotient + ((quotient * b != a) & ((a < 0) != (b < 0))).astype(quotient.dtype)


def pow_int(a: Array, b: Array) -> Array:
    """Powers of integers; NumPy has none for negative exponents, where only 1 and -1 give more than 0."""
    inverse = np.where(a == 1, 1, np.where(a == -1, 1 - 2 * (b % 2), 0)).astype(a.dtype)
    return np.where(b < 0, inverse, np.power(a, np.maximum(b, b.dtype.type(0))))


def by_element(function: Callable[[float], float], value: Array) -> Array:
    value = np.asarray(value)
    return np.fromiter(map(function, value.ravel().tolist()), value.dtype, value.size).reshape(value.shape)


def lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):  # at its poles, and beyond the greatest number
        return math.inf


def erfinv(x: float) -> float:
    if not -1 < x < 1:
        return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    guess = NormalDist().inv_cdf((x + 1) / 2) / math.sqrt(2) if abs(x) > 1e-3 else x * math.sqrt(math.pi) / 2
    for _ in range(2):  # Newton's method
        guess -= (erf(guess) - x) * math.sqrt(math.pi) / 2 * math.exp(guess * guess)
    return guess


_KEYS, _ROUNDS, _MASK = (0x9E3779B9, 0xBB67AE85), (0xD2511F53, 0xCD9E8D57), np.uint64(0xFFFFFFFF)


def philox(seed: Array, position: Array) -> tuple[Array, Array]:
    """The first two words, as int64, of Philox 4x32-10: the same bits as `litz.ir.philox`."""
    seed, position = np.asarray(seed).astype(np.uint64), np.asarray(position).astype(np.uint64)
    half = np.uint64(32)
    keys = [seed & _MASK, seed >> half]
    c0, c1, c2, c3 = position & _MASK, np.uint64(0), np.uint64(0), np.uint64(0)
    for _ in range(10):
        first, second = c0 * np.uint64(_ROUNDS[0]), c2 * np.uint64(_ROUNDS[1])
        c0, c1, c2, c3 = (second >> half) ^ c1 ^ keys[0], second & _MASK, (first >> half) ^ c3 ^ keys[1], first & _MASK
        keys = [(key + np.uint64(step)) & _MASK for key, step in zip(keys, _KEYS)]
    return c0.astype(np.int64), c1.astype(np.int64)


def uniform(bits: Array) -> Array:
    """float32 in [0, 1)."""
    signed = bits.astype(np.uint32).view(np.int32)
    return np.where(signed < 0, -1 - signed, signed).astype(np.float32) * np.float32(4.6566127342e-10)


def normal(first: Array, second: Array) -> Array:
    """float32 from the standard normal distribution, by Box and Muller."""
    radius = np.sqrt(np.float32(-2) * np.log(np.maximum(uniform(first), np.float32(1e-7))))
    return radius * np.cos(np.float32(2 * math.pi) * uniform(second))

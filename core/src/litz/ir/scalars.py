"""Scalar nodes without loops or buffers: constants, ops of the table, casts. `litz.ir.build` has these and the rest.

All apply the type rules, fold what is constant, intern.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

import torch

from .dtypes import FLOAT8, ROUNDED, survives
from .node import Node, intern
from .ops import AS_HALF, OPS

Scalar = bool | int | float


def no_such(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """Returns the error for a name that no op, reduction or scan has; the error names the nearest known names. kind:
    such as "op"."""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.4)
    hint = f"; the nearest: {', '.join(near)}" if near else ""
    return ValueError(f"the IR has no {kind} {name!r}{hint} (docs/plugins/ir-ops.md lists all)")


def const(value: Scalar, dtype: torch.dtype) -> Node:
    """Returns a constant of `dtype`. The value is converted as torch would: 1.7 as int64 is 1, 2 as bool is True, and
    integers wrap: -2 as uint8 is 254."""
    if dtype == torch.bool:
        value = bool(value)
    elif dtype in FLOAT8:  # nothing computes with them: it is what memory would hold
        value = float(torch.tensor(float(value), device="cpu").to(dtype).float())
    elif dtype.is_floating_point:
        value = float(value)
    elif isinstance(value, float) and not math.isfinite(value):
        value = int(torch.tensor(value, dtype=torch.float64, device="cpu").to(dtype).item())
    else:
        bits = 8 * dtype.itemsize
        value = int(value) % (1 << bits)
        if dtype.is_signed and value >> (bits - 1):
            value -= 1 << bits
    return intern("const", dtype, (), (value,))


def call(name: str, *args: Node) -> Node:
    """Returns the op `name` of the table on nodes. Errors: ValueError for a name that is not in the table; TypeError if
    the nodes' number or dtypes do not fit the op's row."""
    row = OPS.get(name)
    if row is None:
        raise no_such("op", name, OPS)
    if len(args) != row.arity:
        raise TypeError(f"{name} takes {row.arity} arguments, got {len(args)}")
    try:
        dtype = row.rule(tuple(arg.dtype for arg in args))
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
    if name == "where" and args[0].op == "const":
        return args[1] if args[0].attrs[0] else args[2]
    if name == "where" and args[1] is args[2]:
        return args[1]
    return intern(name, dtype, args, ())


def cast(value: Node, dtype: torch.dtype) -> Node:
    """Returns `value` converted to `dtype` as torch's `.to` does; a conversion to a half type rounds."""
    if value.dtype == dtype:
        return value
    if value.op == "const" and not (value.dtype.is_floating_point and not dtype.is_floating_point):
        held = torch.tensor(value.attrs[0], dtype=value.dtype, device="cpu").to(dtype)
        return const(held.item(), dtype)
    if value.op == "cast" and survives(value.args[0].dtype, value.dtype) and value.args[0].dtype == dtype:
        return value.args[0]
    return intern("cast", dtype, (value,), ())


def promoted(value: Node, dtype: torch.dtype) -> Node:
    """Returns `value` in the dtype in which it meets others. A half type does not round it: kernels compute in float32,
    where an integer as a bfloat16 would have 8 bits."""
    exact = value.dtype.itemsize == 1 or survives(value.dtype, dtype)
    return cast(value, dtype) if exact or dtype not in AS_HALF or value.op == "const" else call(AS_HALF[dtype], value)


def rounded(value: Node) -> Node:
    """Returns a half value as memory would hold it, though it may have come straight from a computation in float32: for
    comparisons, of which one side may have been stored and the other computed again. Returns other values, constants
    and casts as they are."""
    held = value.dtype not in ROUNDED or value.op in ("const", "cast")
    return value if held else intern("cast", value.dtype, (value,), ())


def bitcast(value: Node, dtype: torch.dtype) -> Node:
    """Returns the same bits as another dtype of the same width. Errors: TypeError for another width."""
    if value.dtype == dtype:
        return value
    if value.dtype.itemsize != dtype.itemsize:
        raise TypeError(f"bitcast from {value.dtype} to {dtype} changes the width")
    return intern("bitcast", dtype, (value,), ())

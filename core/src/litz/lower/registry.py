"""The table of lowerings: which function makes the IR of which ATen op.

    @lowering(aten.relu.default)
    def relu(ctx: LoweringContext, x: Tensor) -> Tensor: ...

A lowering takes the context and the op's own arguments in the order of its schema: tensors as `View` or `Computed`,
sizes as int or sympy expressions, lists as lists, everything else as it is; arguments that the schema makes
keyword-only come by keyword. A lowering returns a Tensor, or a tuple of them for an op with several results (None for a
result that is not made). NotImplementedError means "not this case": the op then becomes an Extern.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

import torch
from torch._ops import HigherOrderOperator, OpOverload

Lowering = Callable[..., Any]
Target = OpOverload | HigherOrderOperator
"""The callee of a node of an FX graph."""
_F = TypeVar("_F", bound=Lowering)

MODULES = (
    *("assertions", "shapes", "pointwise", "arithmetic", "cast", "reduction", "creation", "contraction"),
    *("collective", "indexing"),
)
"""The files of this room with lowerings in them.

An op that capture decomposes needs no lowering, unless its rule may decline (`split_with_sizes`, `copy`) or torch makes
it after decomposition: `reshape`, `square` and `true_divide` come from Python scalars that are made tensors.
"""

_TABLE: dict[str, Lowering] = {}
_UNSEEN: set[str] = set()
"""The names of the table for which `core_lowerings` looks again, as torch defines some ops when they are first used;
those of aten when it is imported."""
_BY_OP: dict[Target, Lowering] = {}
"""The table by op, of those found: a copy of a dict does not hash its ops again."""
ANY_DTYPE = "_litz_any_dtype"
"""Attribute of lowerings that make no Loops, and so take what Loops cannot hold (complex numbers)."""
MOVES = "_litz_moves"
"""Attribute of lowerings that move and convert elements, and so take what nothing computes with (float8)."""


def lowering(*ops: OpOverload | str, any_dtype: bool = False, moves: bool = False) -> Callable[[_F], _F]:
    """Enters the function below as the lowering of `ops`. Errors: ValueError for an op that has one.

    An op may be named by a string ("aten._softmax.default", "higher_order.flex_attention"): torch defines some ops only
    when a part of it is first used, and `core_lowerings` leaves out ops that torch does not have by then. any_dtype:
    the lowering is index arithmetic alone (a view), so complex tensors may come. moves: its loops only move or convert
    elements, so float8 tensors may come. Without `ops` the function is marked alone, as a plugin's lowering.
    """

    def enter(function: _F) -> _F:
        setattr(function, ANY_DTYPE, any_dtype)
        setattr(function, MOVES, moves)
        for name in map(str, ops):
            if name in _TABLE:
                raise ValueError(f"two lowerings for {name}: {_TABLE[name].__module__} and {function.__module__}")
            _TABLE[name] = function
            _UNSEEN.add(name)
        return function

    return enter


def find_op(name: str) -> Target | None:
    """Returns the op that "aten.add.Tensor" or "higher_order.cond" names, None if this version of torch has no such
    op."""
    try:
        return operator.attrgetter(name)(torch.ops)
    except AttributeError:
        return None


@cache
def _load() -> None:
    for name in MODULES:
        import_module(f"{__package__}.{name}")


def core_lowerings() -> dict[Target, Lowering]:
    """Returns litz's own lowerings by op, as a new dict."""
    _load()
    for name in [*_UNSEEN]:  # all of them takes milliseconds, and every graph asks
        op = find_op(name)
        if op is not None:
            _BY_OP[op] = _TABLE[name]
        if op is not None or name.startswith("aten."):
            _UNSEEN.discard(name)
    return _BY_OP.copy()

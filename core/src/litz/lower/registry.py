"""The table of lowerings: which function makes the IR of which ATen op.

    @lowering(aten.relu.default)
    def relu(ctx: LoweringContext, x: Tensor) -> Tensor: ...

A lowering takes the context and the op's own arguments in the order of its schema: tensors as `View` or `Computed`,
sizes as int or sympy expressions, lists as lists, everything else as it is; arguments that the schema makes
keyword-only come by keyword. It returns a Tensor, or a tuple of them for an op with several results (None for a result
that is not made). NotImplementedError from it means "not this case": the op then becomes an Extern.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cache, partial, update_wrapper
from importlib import import_module
from typing import Any, TypeVar

import torch
from torch._ops import HigherOrderOperator, OpOverload

Lowering = Callable[..., Any]
Target = OpOverload | HigherOrderOperator
"""What a node of a graph calls."""
_F = TypeVar("_F", bound=Lowering)

MODULES = (
    "assertions",
    "shapes",
    "pointwise",
    "arithmetic",
    "cast",
    "reduction",
    "creation",
    "contraction",
    "attention",
    "sdpa",
    "attention_backward",
    "user_kernels",
    "collective",
    "joining",
    "indexing",
    "scatter",
    "pooling",
    "planes",
    "sampling",
    "average_pooling",
    "adaptive",
    "upsample",
    "random",
    "scans",
)
"""The files of this room with lowerings in them.

An op that capture decomposes needs no lowering, unless its rule may decline (`split_with_sizes`, `copy`) or torch makes
it after decomposition: `reshape`, `square` and `true_divide` come from Python scalars that are made tensors.
"""

_TABLE: dict[str, Lowering] = {}
_FOUND: dict[str, Target] = {}
"""Ops that were found. Some are defined by torch when they are first used, so others are looked for again."""
ANY_DTYPE = "_litz_any_dtype"
"""Attribute of lowerings that make no Loops, and so take what Loops cannot hold (complex numbers)."""
MOVES = "_litz_moves"
"""Attribute of lowerings that move and convert elements, and so take what nothing computes with (float8)."""


def lowering(*ops: OpOverload | str, any_dtype: bool = False, moves: bool = False) -> Callable[[_F], _F]:
    """Enter the function below as the lowering of `ops`. Two for one op is a ValueError.

    An op may be named by a string ("aten._softmax.default", "higher_order.flex_attention"). `core_lowerings` leaves out
    those that torch does not have by then: some ops are defined only when a part of torch is first used.
    any_dtype: it is index arithmetic alone (a view), so that complex tensors may come. moves: its loops move elements,
    or convert them, so that float8 tensors may come.
    """

    def enter(function: _F) -> _F:
        setattr(function, ANY_DTYPE, any_dtype)
        setattr(function, MOVES, moves)
        for name in map(str, ops):
            if name in _TABLE:
                raise ValueError(f"two lowerings for {name}: {_TABLE[name].__module__} and {function.__module__}")
            _TABLE[name] = function
        return function

    return enter


def lowering_by_rank(ranks: Sequence[int], *ops: str, **given: Any) -> Callable[[_F], _F]:
    """As `lowering`, for ops that differ in the number of dimensions that they work on ("aten.avg_pool{}d.default"),
    which the function takes before all else. given: what else it takes."""

    def enter(function: _F) -> _F:
        for ndim in ranks:
            named = (op.format(ndim) for op in ops)
            lowering(*named)(update_wrapper(partial(function, ndim, **given), function))
        return function

    return enter


def find_op(name: str) -> Target | None:
    """The op that "aten.add.Tensor" or "higher_order.cond" names, None if this version of torch has no such op."""
    try:
        return operator.attrgetter(name)(torch.ops)
    except AttributeError:
        return None


@cache
def _load() -> None:
    for name in MODULES:
        import_module(f"{__package__}.{name}")


def core_lowerings() -> dict[Target, Lowering]:
    """Every lowering that litz itself has; a fresh dict."""
    _load()
    for name in _TABLE.keys() - _FOUND.keys():  # all of them takes milliseconds, and every graph asks
        op = find_op(name)
        if op is not None:
            _FOUND[name] = op
    return {_FOUND[name]: function for name, function in _TABLE.items() if name in _FOUND}

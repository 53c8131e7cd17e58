"""What strict mode leaves of what is registered: in, decompositions, lowerings, passes or templates; out, some of them.

An op that no row of the table names stays whole, and is the library's call. Views stay views: those are no kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._ops import OpOverload

from .exact import Row, exact_table, is_view

COMMUNICATION = "_c10d_functional"
USERS_KERNELS = "triton_kernel_wrapper"
"""The beginning of the names of higher-order ops that launch a user's own kernels."""


def _decompositions(registered: Mapping[Any, Any]) -> Mapping[Any, Any]:
    table = exact_table()
    return {op: rule for op, rule in registered.items() if is_view(op) or table.row("decomposition", op) is not None}


def _lowerings(registered: Mapping[Any, Any]) -> Mapping[Any, Any]:
    return {op: rule for op, given in registered.items() if (rule := _lowering(op, given)) is not None}


def _lowering(op: Any, lowering: Callable[..., Any]) -> Callable[..., Any] | None:
    """The lowering as strict mode uses it, None where it does not."""
    if not isinstance(op, OpOverload):
        return lowering if str(op).startswith(USERS_KERNELS) else None
    if is_view(op) or op.namespace == COMMUNICATION:
        return lowering
    row = exact_table().row("lowering", op)
    if row is None:
        return None
    return _guarded(lowering, row) if row.has_conditions else lowering


def _guarded(lowering: Callable[..., Any], row: Row) -> Callable[..., Any]:
    @functools.wraps(lowering)
    def guarded(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        made = ctx.node.meta.get("val")
        values = [node.meta.get("val") for node in ctx.node.all_input_nodes]
        why = row.refuses([*values, *(made if isinstance(made, (tuple, list)) else (made,))], args, kwargs)
        if why:
            raise NotImplementedError(why)
        dtype = made.dtype if isinstance(made, torch.Tensor) else None
        return lowering(ctx, *row.taken(args, dtype), **kwargs)

    return guarded


def _passes(registered: Mapping[Any, Any]) -> Mapping[Any, Any]:
    kept = exact_table().passes
    return {name: item for name, item in registered.items() if name in kept}


NARROWED: Mapping[str, Callable[[Mapping[Any, Any]], Mapping[Any, Any]]] = {
    "decomposition": _decompositions,
    "lowering": _lowerings,
    "pass": _passes,
    "template": lambda registered: {},
}
"""What strict mode uses of what is registered, by the kind that the hook `litz_narrow` names."""

"""Calls of operators that write into their arguments, which AOTAutograd wraps as functions of copies.

In: the wrapped call (`auto_functionalized`), whose results are what the operator has written. Out: a call of the
operator itself, on copies, which litz's passes take out where nobody reads the old values. The call is data that other
processes can load; the wrapped one copies at run time, inside of torch's Python, and has no name for a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from litz.lower.context import LoweringContext
from litz.lower.registry import ANY_DTYPE
from litz.lower.strides import layout_of, overlap
from litz.lower.view import Tensor, View


def wrapped_call(ctx: LoweringContext, op: torch._ops.OpOverload, **given: Any) -> tuple[Any, ...]:
    """Lowers one call. given: the operator's arguments by name. Returns what the wrapped call does: None, then each
    argument that is written, as it is afterwards. Errors: NotImplementedError for what stays torch's call: an operator
    that returns something or takes lists of tensors, and written memory whose elements overlap."""
    if op._schema.returns:
        raise NotImplementedError(f"{op} returns something besides what it writes")
    written = [one.name for one in op._schema.arguments if one.alias_info is not None and one.alias_info.is_write]
    views: dict[str, View] = {}
    passed: dict[str, Any] = {}
    device = None
    for name, value in given.items():
        if isinstance(value, (list, tuple)) and any(isinstance(item, Tensor) for item in value):
            raise NotImplementedError(f"{op} takes a list of tensors")
        if not isinstance(value, Tensor):
            passed[name] = value
            continue
        device = device or value.device
        layout = layout_of(ctx.node.kwargs[name].meta["val"])  # type: ignore[union-attr]
        if name not in written:
            passed[name] = ctx.ref(value, layout.stride)
            continue
        if overlap(layout, ctx.hint):
            raise NotImplementedError(f"{name} is written, and its elements share memory")
        views[name] = ctx.copy(value, layout.stride)
        passed[name] = views[name].ref()
    if device is None:
        raise NotImplementedError(f"{op} has no tensor")
    buffers = tuple(view.buffer.name for view in views.values())
    ctx.add_extern(op, (), passed, device, mutates=buffers, effect=not buffers)
    return (None, *(views.get(name) for name in written))


def lowerings() -> Mapping[Any, Callable[..., Any]]:
    """Returns the lowering by higher-order op."""
    setattr(wrapped_call, ANY_DTYPE, True)  # operators load and store what litz's own loops cannot
    return {torch.ops.higher_order.auto_functionalized: wrapped_call}

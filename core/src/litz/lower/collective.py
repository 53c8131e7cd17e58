"""Functional collectives: communication that is started here, and waited for where `wait_tensor` stands.

A Collective or Wait is called as an Extern is. The result of a wait is the memory of its argument.
"""

from __future__ import annotations

from typing import Any

from litz.capture import torch_api
from litz.errors import LoweringError
from litz.ir import Collective, Wait
from litz.ir.index import ZERO

from .context import LoweringContext
from .fallback import fallback
from .registry import lowering
from .view import View

STARTED = (
    *("all_reduce", "all_reduce_coalesced", "all_gather_into_tensor", "all_gather_into_tensor_coalesced"),
    *("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "all_to_all_single", "broadcast", "all_reduce_"),
    *("all_reduce_coalesced_", "all_gather_into_tensor_out", "reduce_scatter_tensor_out", "broadcast_"),
)
"""The collectives of `_c10d_functional`; those ending in `_` or `_out` write an argument. Tracing turns the older
`c10d_functional` and the autograd variants into these."""


@lowering(*(f"_c10d_functional.{name}.default" for name in STARTED), any_dtype=True)
def collective(ctx: LoweringContext, *args: Any, **kwargs: Any) -> Any:
    """Lowers a collective to a Collective, which only starts the communication; ranks are those of its group."""
    name = group_name(args, kwargs)
    ranks = torch_api.group_ranks(name)
    return fallback(ctx, args, kwargs, operation=Collective, group=name, ranks=ranks, effect=True)


@lowering("_c10d_functional.wait_tensor.default", any_dtype=True)
def wait(ctx: LoweringContext, x: Any) -> Any:
    """Lowers `wait_tensor` to a Wait, whose result is its argument's memory."""
    result = fallback(ctx, (x,), {}, operation=Wait)
    if isinstance(result, View) and isinstance(x, View) and x.is_whole:
        # The same tensor, so views of it are views of memory that is known.
        ctx.storage_offsets[result.buffer.name] = ctx.storage_offsets.get(x.buffer.name, ZERO)
    return result


@lowering(*(f"_c10d_functional.{name}.default" for name in ("isend", "irecv", "batch_p2p_ops")), any_dtype=True)
def point_to_point(ctx: LoweringContext, *args: Any) -> Any:
    """Refuses messages from one rank to another: a receive writes its argument, which no schema says, and ranks start
    different ones. Errors: LoweringError, always."""
    raise LoweringError(
        str(ctx.node.target),
        ctx.node.name,
        "litz does not compile messages from one rank to another",
        todo="let dynamo leave them out of the graph: torch._dynamo.config.enable_p2p_compilation"
        " = False, the default; to run the graph as it is: options={'fallback': 'eager'}",
    )


def group_name(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Returns the name of a functional collective's process group: its last string argument; '' if it has none."""
    names = [value for value in (*args, *kwargs.values()) if isinstance(value, str)]
    return names[-1] if names else ""

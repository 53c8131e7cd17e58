"""The type of a kernel's positions and offsets."""

from __future__ import annotations

from collections.abc import Sequence

from litz.codegen.kernel_plan import KernelPlan
from litz.codegen.sizes import INT32
from litz.ir.index import Expr, known_nonnegative

LIMIT = INT32 - 2**17
"""Offsets and positions up to here may be 32 bits wide: beyond the end of a range lies at most one block."""


def choose_index_type(plan: KernelPlan) -> tuple[str, list[Expr]]:
    """Returns the type of indices and the expressions that must not exceed LIMIT. The type has 32 bits where every
    offset and position fits; where symbolic sizes leave that open it is the kernel's parameter INDEX, which the
    launcher sets."""
    spans = [buffer.layout.span for buffer in plan.buffers.values()]
    spans += [size for loop in plan.loops for size in (loop.numel, loop.reduction_numel)]
    return index_type_of(spans, bool(plan.sizes))


def index_type_of(spans: Sequence[Expr], symbolic: bool) -> tuple[str, list[Expr]]:
    """Returns the type of indices, and the limits that decide it at run time. spans: how far offsets and positions
    reach. symbolic: is any size a symbol?"""
    open_ones: list[Expr] = []
    for span in dict.fromkeys(spans):
        if span.is_Integer:
            if int(span) > LIMIT:
                return "tl.int64", []
        elif not known_nonnegative(LIMIT - span):
            open_ones.append(span)
    return ("INDEX", open_ones) if open_ones or symbolic else ("tl.int32", [])

"""Sizes that kernels are told instead of working them out.

A kernel adds, multiplies, divides and compares sizes. What else Python and torch know of them (rounding, bit
operations, powers, floats, division by what may be negative) is worked out by the wrapper, in Python's own arithmetic,
and passed as one number. In: loops and their buffers. Out: the same, each such expression a symbol of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from litz.ir import Buffer, Layout, Loop, Range
from litz.ir.index import Expr, FloorDiv, Mod, PythonMod, Symbol, is_placeholder
from litz.ir.node import Node, intern, with_args
from litz.ir.transform import map_stores


def printable(expr: Expr, own: frozenset[Symbol]) -> bool:
    """Returns whether kernels have a text for an index expression. own: the loop variables."""
    if expr.is_Integer or expr.is_Symbol:
        return True
    if isinstance(expr, (FloorDiv, Mod, PythonMod)):
        # Kernels divide as C does. Sizes that an index is divided by are positive; what a user divides by may not be.
        known = bool(expr.args[1].is_positive) or _varies(expr, own)
    else:
        power = expr.is_Pow and expr.exp.is_Integer and 0 < int(expr.exp) <= 4
        known = expr.is_Add or expr.is_Mul or power or type(expr).__name__ in ("Max", "Min")
    return known and all(printable(arg, own) for arg in expr.args)


def _varies(expr: Expr, own: frozenset[Symbol]) -> bool:
    return any(symbol in own or is_placeholder(symbol) for symbol in expr.free_symbols)


def name_sizes(
    loops: tuple[Loop, ...], buffers: Mapping[str, Buffer]
) -> tuple[tuple[Loop, ...], Mapping[str, Buffer], Mapping[Symbol, Expr]]:
    """Returns the loops and the buffers with every size expression that has no text in a kernel replaced by a symbol of
    its own, and the expression that each such symbol stands for."""
    own = frozenset(r.var for loop in loops for r in loop.all_ranges)
    sizes = [r.size for loop in loops for r in loop.all_ranges]
    touched = {name: buffers[name] for loop in loops for name in (*loop.reads, *loop.writes)}
    layouts = [expr for b in touched.values() for expr in (*b.layout.size, *b.layout.stride, b.layout.offset)]
    indices = (expr for loop in loops for expr in loop.expressions)
    exprs = [expr for expr in (*sizes, *layouts, *indices) if not expr.is_Integer]
    if all(printable(expr, own) for expr in exprs):
        return loops, buffers, {}
    positive = {*sizes, *layouts}
    named: dict[Expr, Symbol] = {}

    def visit(expr: Expr) -> None:
        if printable(expr, own):
            return
        if _varies(expr, own) or expr.is_Add or expr.is_Mul:
            for arg in expr.args:
                visit(arg)
        elif expr not in named:
            known = True if expr in positive else expr.is_nonnegative
            named[expr] = Symbol(f"size{len(named)}", integer=True, nonnegative=known)

    for expr in exprs:
        visit(expr)

    def told(layout: Layout) -> Layout:
        size, stride = (tuple(expr.xreplace(named) for expr in exprs) for exprs in (layout.size, layout.stride))
        return Layout(size, stride, layout.offset.xreplace(named))

    changed = {name: replace(buffer, layout=told(buffer.layout)) for name, buffer in touched.items()}
    renamed = tuple(_renamed(loop, named) for loop in loops)
    return renamed, {**buffers, **changed}, {symbol: expr for expr, symbol in named.items()}


def _renamed(loop: Loop, named: Mapping[Expr, Symbol]) -> Loop:
    def change(node: Node, args: tuple[Node, ...]) -> Node:
        if node.op == "load":
            index = tuple(expr.xreplace(named) for expr in node.index)
            return intern("load", node.dtype, args, (node.buffer, index, node.attrs[2]))
        if node.op in ("index", "bounded"):
            return intern(node.op, node.dtype, args, (node.attrs[0].xreplace(named), *node.attrs[1:]))
        return with_args(node, args)

    stores = map_stores(loop.stores, change, lambda store: tuple(expr.xreplace(named) for expr in store.index))
    ranges, inner = (
        tuple(Range(r.var, r.size.xreplace(named)) for r in group) for group in (loop.ranges, loop.reduction_ranges)
    )
    return replace(loop, ranges=ranges, reduction_ranges=inner, stores=stores)

"""Simpler bodies: constants folded, and selections that inlining made twice. In and out: a Program.

Only what is exact for every value, NaN and signed zeros among them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from litz.ir import Loop, Node, Program, build
from litz.ir.dtypes import compute_dtype
from litz.ir.node import walk, with_args
from litz.ir.ops import OPS
from litz.ir.transform import map_stores
from litz_plugins import PassContext


def simplify_bodies(program: Program, context: PassContext) -> Program:
    """Returns the program with the bodies of all loops simplified; the same program where nothing changes (a pass)."""
    operations = tuple(_simplified(o) if isinstance(o, Loop) else o for o in program.operations)
    if all(new is old for new, old in zip(operations, program.operations, strict=True)):
        return program
    return replace(program, operations=operations)


def _simplified(loop: Loop) -> Loop:
    changed = False
    checks = any(node.op == "bounded" for node in loop.nodes)

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        nonlocal changed
        old = with_args(node, args)
        new = simplify(old)
        if checks and new is not old and _checks(old) - _checks(new):
            new = old  # what is not chosen is computed in eager, too, and an index out of range there is an error
        changed |= new is not node
        return new

    stores = map_stores(loop.stores, change)
    return replace(loop, stores=stores) if changed else loop


def _checks(node: Node) -> set[Node]:
    return {each for each in walk(node) if each.op == "bounded"}


def simplify(node: Node) -> Node:
    """Returns the node, or a simpler one of the same value."""
    if node.op == "where":
        condition, yes, no = node.args
        if yes.op == "where" and yes.args[0] is condition:
            yes = yes.args[1]
        if no.op == "where" and no.args[0] is condition:
            no = no.args[2]
        return build.call("where", condition, yes, no)
    if node.op == "load" and node.mask is not None and node.mask.op == "const":
        return build.load(node.buffer, node.index, node.dtype, node.indirect, node.mask)
    if node.op == "bitwise_and" and node.dtype == torch.bool:
        for one, other in (node.args, node.args[::-1]):
            if one.op == "const":
                return other if one.attrs[0] else one
    if node.op not in OPS or node.op.startswith("random"):
        return node
    if node.args and all(arg.op == "const" for arg in node.args):
        return _folded(node)
    if node.op in ("mul", "div") and _is_const(node.args[1], 1):
        return node.args[0]
    if node.op == "div" and (inverse := _exact_inverse(node.args[1])) is not None:
        return build.call("mul", node.args[0], inverse)
    if node.op == "mul" and _is_const(node.args[0], 1):
        return node.args[1]
    if node.op == "sub" and _is_const(node.args[1], 0):
        return node.args[0]
    if (held := _held(node)) is not None:
        return held
    return node


def _held(node: Node) -> Node | None:
    """Returns a test of a float that is held above or below a constant (a relu) as a test of the float, where both are
    the same for every value: NaN stays NaN, and what lies beyond the constant becomes the constant. An integer may be
    a position, which is proved inside by the test of the very node that is chosen (`litz.ir.intervals`)."""
    if (node.op != "isnan" and node.op not in _BEYOND) or not node.args[0].dtype.is_floating_point:
        return None
    value, limit = node.args[0], node.args[-1]
    if value.op not in ("maximum", "minimum") or value.args[1].op != "const" or math.isnan(value.args[1].attrs[0]):
        return None
    if node.op == "isnan":
        return build.call("isnan", value.args[0])
    same = limit.op == "const" and limit.attrs[0] == value.args[1].attrs[0]  # 0.0 and -0.0 compare as equals
    return build.call(node.op, value.args[0], limit) if same and _BEYOND[node.op] == value.op else None


_BEYOND = {"le": "maximum", "gt": "maximum", "ge": "minimum", "lt": "minimum"}
"""Comparison with a constant: what a value may be held by at that constant without a change of the result."""


def _exact_inverse(node: Node) -> Node | None:
    """Returns one over a power of two, if that is a normal number of the dtype, else None: a product with it is the
    quotient, rounded once as well."""
    if node.op != "const" or not node.dtype.is_floating_point or not node.attrs[0]:
        return None
    mantissa, exponent = math.frexp(node.attrs[0])
    if abs(mantissa) != 0.5 or not math.isfinite(node.attrs[0]):
        return None
    limits = torch.finfo(node.dtype)
    least, most = math.frexp(limits.tiny)[1], math.frexp(limits.max)[1]
    return build.const(1 / node.attrs[0], node.dtype) if least <= 2 - exponent <= most else None


def _is_const(node: Node, value: int) -> bool:
    """Returns whether the node is this constant. A -0.0 is not 0, and a bool is no number."""
    return node.op == "const" and node.dtype != torch.bool and repr(float(node.attrs[0])) == repr(float(value))


def _folded(node: Node) -> Node:
    """An op on constants, worked out in the type that it would be computed in."""
    args = [torch.tensor(arg.attrs[0], dtype=compute_dtype(arg.dtype)) for arg in node.args]
    try:
        value = OPS[node.op].torch(*args)
    except RuntimeError:  # an integer divided by zero: left to run time, as in eager
        return node
    return build.const(value.item(), node.dtype)
